# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments in Python: each is an error of our family that names the argument and the fix, never a bare one."""

from __future__ import annotations

import threading

import pytest
from typer.testing import CliRunner

from sqsim import (
    InputError,
    RecordError,
    RunRecord,
    Scenario,
    ScenarioError,
    compare,
    load_scenario,
    metrics,
    simulate,
)
from sqsim.cli.app import app
from sqsim.record.files import write_record
from tests.sqsim.tiny_record import tiny_record

SCENARIO = Scenario(traces="t.jsonl")
RECORD = tiny_record()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Scenario(traces="t.jsonl", load={1: 2}), r"load: \{1: 2\} names no load"),
        (lambda: Scenario(traces=(each for each in "t")), "traces: .* should be a valid tuple"),
        (lambda: Scenario(traces="t.jsonl", tasks=None), "tasks: an empty value is not allowed; allowed: all"),
        (lambda: Scenario(**{"traces": "t.jsonl", "x\ny": 1}), r"^scenario: 'x\\ny': unknown key"),
        (lambda: SCENARIO.with_([1]), "with_: a list of 1 is no mapping"),
        (lambda: SCENARIO.with_("seed=1"), "with_: 'seed=1' is no mapping"),
        (lambda: SCENARIO.with_(seed=threading.Lock()), "with_: seed: lock is no plain value"),
        (lambda: SCENARIO.with_(traces=(each for each in "t")), "with_: traces: generator is no plain value"),
        (lambda: SCENARIO.model_copy(update=[1]), "with_: a list of 1 is no mapping"),
        (lambda: Scenario.model_validate({"traces": "t.jsonl", "seed": "x"}), "^scenario: seed: 'x' should be"),
        (lambda: Scenario.model_validate(3), "a scenario is a mapping such as .*, not 3"),
        (lambda: load_scenario("s.yaml", [3]), "overrides: 3 is no text"),
        (lambda: load_scenario("s.yaml", "seed=1"), "overrides: 'seed=1' is no list"),
        (lambda: load_scenario(None), "None is no path"),
        (lambda: load_scenario("a\0b"), "holds a NUL character"),
        (lambda: load_scenario("a" * 5000), "File name too long"),
    ],
)  # fmt: skip
def test_a_wrong_scenario_is_a_scenario_error(call, message):
    with pytest.raises(ScenarioError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate("s.yaml"), r"simulate: 's.yaml' is no Scenario; .*load_scenario\(file\)"),
        (lambda: compare("rec/a", "rec/b"), r"compare: 'rec/a' is no RunRecord; .*RunRecord.load\(directory\)"),
        (lambda: metrics("rec/a"), r"metrics: 'rec/a' is no RunRecord; .*RunRecord.load\(directory\)"),
        (lambda: compare(RECORD, RECORD, names=["a"]), "names: 1 are given for 2 runs"),
        (lambda: compare(RECORD, RECORD, names=["a", "a"]), "names: 'a' is given twice"),
        (lambda: compare(RECORD, RECORD, names=["a", None]), "names: None is no text"),
        (lambda: compare(RECORD, RECORD, directories=[]), "directories: 0 are given for 2 runs"),
        (compare, "^compare: 0 runs given; a comparison takes at least two$"),
        (lambda: compare(RECORD), "^compare: 1 run given; a comparison takes at least two$"),
        (lambda: RECORD.to_pandas([]), r"to_pandas: \[\] is no table"),
    ],
)
def test_a_wrong_argument_is_an_input_error(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("path", ["a\0b", "a" * 300, None, 3])
def test_a_path_that_the_system_cannot_take_is_a_record_error(path):
    for call in (RECORD.save, RunRecord.load):
        with pytest.raises(RecordError, match=r"(choose another directory|the directory of a run)$"):
            call(path)


def test_advice_is_in_the_words_of_its_reader(tmp_path):
    """An argument in Python, a flag on the command line."""
    RECORD.save(tmp_path / "a")
    with pytest.raises(RecordError, match=r"choose another directory, or add overwrite=True$"):
        RECORD.save(tmp_path / "a")
    with pytest.raises(RecordError, match=r"choose another --output-dir, or add --overwrite$"):
        write_record(RECORD, tmp_path / "a")
    other = tiny_record()
    other.run = {**other.run, "traces": [{"sha256": "f" * 64}]}
    with pytest.raises(RecordError, match=r"or pass allow_other_traces=True$"):
        compare(RECORD, other)
    other.save(tmp_path / "b")
    with pytest.raises(RecordError, match=r"or add --allow-other-traces$"):
        CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")], catch_exceptions=False)


def test_a_run_may_be_compared_with_itself(tmp_path):
    RECORD.save(tmp_path / "a")
    done = CliRunner().invoke(app, ["compare", *[str(tmp_path / "a")] * 3, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert '/a (2)"' in done.stdout
    assert '/a (3)"' in done.stdout
