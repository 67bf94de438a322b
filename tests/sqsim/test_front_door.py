# SPDX-License-Identifier: Apache-2.0
"""`import sqsim`: what it exports, what it costs, and that Python gets the errors that a file gets."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqsim
from sqsim import errors
from sqsim.policies.keep_last import KeepLast
from sqsim.policies.none import NoEviction
from sqsim.record.definitions import DEFINITIONS
from sqsim.record.metrics import metrics
from sqsim.record.schema import TABLES, RunRecord
from sqsim.scenario import keys as scenario_keys
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import ClosedLoad
from sqsim.scenario.scenario import Scenario, load_scenario, make_scenario
from tests.sqsim.tiny_record import tiny_record

ROOT = Path(__file__).parents[2]
HEAVY = ("simpy", "pyarrow", "plotly", "numpy", "pydantic", "scipy", "typer", "yaml")


def python(code, **options):
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, **options)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def message(call, *args, **keys):
    with pytest.raises(sqsim.ScenarioError) as caught:
        call(*args, **keys)
    return str(caught.value)


# What is exported (after httpx, tests/test_exported_members.py).


def test_every_exported_name_exists_and_is_documented():
    assert sqsim.__all__ == sorted(sqsim.__all__)
    for name in sqsim.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(sqsim, name)), name
            assert f"`{name}`" in sqsim.__doc__, f"the front door's docstring leaves out {name}"


def test_nothing_else_is_public():
    """Whatever modules were imported: of these, only folders and files of the package itself are seen besides."""
    modules = {info.name for info in pkgutil.iter_modules(sqsim.__path__)}
    own = {"annotations", "sys", "import_module", "ModuleType", "TYPE_CHECKING"}  # what the file itself imports
    public = {name for name in vars(sqsim) if not name.startswith("_")}
    assert public - modules - own <= set(sqsim.__all__)
    assert set(dir(sqsim)) == set(sqsim.__all__)


def test_all_errors_are_exported():
    family = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}  # fmt: skip
    assert family <= set(sqsim.__all__)
    assert all(issubclass(getattr(sqsim, name), sqsim.SqsimError) for name in family)


def test_importing_costs_next_to_nothing():
    """Before anything is used, none of the libraries is there."""
    loaded = python("import sys, sqsim; print(*sorted({name.split('.')[0] for name in sys.modules}))").split()
    assert not set(HEAVY) & set(loaded)


def test_a_name_means_one_thing_whatever_was_imported_before():
    """Python sets an imported submodule on its package; no exported name may turn into a module by that."""
    rooms = "sqsim.simulation.simulate, sqsim.record.metrics, sqsim.comparison.runs, sqsim.scenario.scenario, sqsim.record.schema"
    ask = "names = [getattr(sqsim, name) for name in sqsim.__all__]"
    kinds = "import types; print([name for name in names if isinstance(name, types.ModuleType)])"
    assert python(f"import {rooms}; {ask}; {kinds}") == "[]"
    assert python(f"import sqsim; {ask}; import {rooms}; {ask}; {kinds}") == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'sqsim' has no attribute 'simulat'"):
        sqsim.simulat  # noqa: B018 - asking is the test


# A scenario built in Python.


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"traces": []},
        {"traces": "t.jsonl", "engine": {"cache": "radx", "pagesize": 4}, "lod": {"concurrency": 1}},
        {"traces": "t.jsonl", "load": {"rate_per_s": 1, "concurrency": 2}},
        {"traces": "t.jsonl", "policy": {"name": "keep"}},
        {"traces": "t.jsonl", "policy": {"name": "keep_last", "n": -1}},
        {"traces": "t.jsonl", "policy": {"name": "sidequest"}},
        {"traces": "t.jsonl", "engine": {"page_size": 3}},
        {"traces": ["t.jsonl", 4], "seed": "7", "tasks": None},
    ],
    ids=str,
)
def test_python_gets_the_errors_of_a_file(keys, tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(keys))
    of_file = re.sub(
        rf"^{re.escape(str(file))}(:1)?: ", "scenario: ", message(load_scenario, file), flags=re.MULTILINE
    )
    assert message(lambda: Scenario(**keys)) == of_file


def test_parts_and_paths_build_the_scenario_of_a_file():
    built = Scenario(
        traces=Path("t.jsonl"),
        engine=Engine(cache="session"),
        load=ClosedLoad(concurrency=8),
        policy=KeepLast(name="keep_last", after_eviction="in_place"),
    )
    content = {
        "traces": "t.jsonl",
        "engine": {"cache": "session"},
        "load": {"concurrency": 8},
        "policy": {"name": "keep_last", "after_eviction": "in_place"},
    }
    assert built == make_scenario(content)
    assert Scenario(traces=["a", Path("b")]).traces == ("a", "b")


def test_a_part_names_its_own_faults():
    said = message(lambda: Engine(gpu=4, cahe="radix"))
    assert said.splitlines() == [
        "Engine: gpu: 4 should be a valid string; allowed: a GPU that `sqsim support` lists",
        f"Engine: cahe: unknown key; did you mean cache?; allowed here: {', '.join(Engine.model_fields)}",
    ]
    assert message(lambda: Engine(page_size=3)).startswith("Engine: chunked_prefill: 8192 is no multiple of")


def test_what_type_checkers_may_be_given_are_the_keys():
    for form in (scenario_keys.ScenarioKeys, scenario_keys.ScenarioChanges):
        assert list(Scenario.model_fields) == sorted(
            get_type_hints(form), key=list(Scenario.model_fields).index
        )
    assert scenario_keys.ScenarioKeys.__required_keys__ == {"traces"}


# A scenario derived from another.


def test_a_derived_scenario_is_the_one_that_says_so_itself():
    base = Scenario(traces="t.jsonl", engine={"page_size": 16}, policy={"name": "keep_last"})
    derived = base.with_({"load.concurrency": 8, "policy.n": 2}, seed=1)
    content = {
        "traces": "t.jsonl",
        "engine": {"page_size": 16},
        "policy": {"name": "keep_last", "n": 2},
        "load": {"concurrency": 8},
        "seed": 1,
    }
    assert derived == Scenario(**content)
    assert base.policy.n == 3
    assert base.with_() == base


def test_a_derived_scenario_takes_defaults_anew():
    """Off fixes the ratio of the pools; on again it is the default and not what off had made it."""
    off = Scenario(traces="t.jsonl", engine=Engine(swa_pool=False))
    assert off.engine.swa_full_tokens_ratio == 1.0
    assert off.with_({"engine.swa_pool": True}) == Scenario(traces="t.jsonl", engine={"swa_pool": True})
    bursts = Scenario(traces="t.jsonl", load={"rate_per_s": 1, "arrivals": "bursts"})
    assert bursts.with_({"load.arrivals": "uniform"}).load.arrivals == "uniform"


def test_a_part_may_be_given_anew_and_changed():
    derived = Scenario(traces="t.jsonl").with_(
        {"engine.page_size": 16}, engine=Engine(max_running=4), load=ClosedLoad(), policy=NoEviction()
    )
    assert (derived.engine.page_size, derived.engine.max_running, derived.load.concurrency) == (16, 4, 24)


def test_a_part_that_no_change_is_of_stays_the_object_that_it_is():
    """A policy may be an object that no file can name."""
    base = Scenario(traces="t.jsonl", policy=KeepLast(name="keep_last"))
    assert base.with_(seed=1).policy is base.policy
    assert base.with_({"policy.n": 1}).with_(policy=base.policy) == base


def test_a_wrong_change_is_named_and_so_is_what_a_file_said(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text("traces: t.jsonl\nengine: {cache: session}\n")
    base = load_scenario(file)
    assert base.with_(seed=2).trace_paths == (tmp_path / "t.jsonl",)
    assert message(base.with_, {"load.concurrency": 0}).startswith("with_: load.concurrency: 0 should be")
    assert message(base.with_, {"engine.cahce": "radix"}).startswith("with_: engine.cahce: unknown key")
    assert message(base.with_, {"engine.page_size.x": 1}).startswith("with_: engine.page_size")
    assert message(base.with_, {"": 1}) == "with_: '' is no key of a scenario, such as 'load.concurrency'"
    assert message(base.with_, policy={"name": "keep_last"}).startswith("with_: policy.after_eviction:")


def test_pydantics_own_copy_is_checked_too():
    base = Scenario(traces="t.jsonl")
    assert base.model_copy(update={"seed": 3}) == base.with_(seed=3)
    assert message(base.model_copy, update={"seed": -1}).startswith("with_: seed: -1")
    assert message(base.engine.model_copy, update={"gpu": 4}).startswith("Engine: gpu: 4")
    assert base.model_copy() == base == copy.deepcopy(base)


@given(st.integers(1, 10**6), st.sampled_from(["radix", "session"]), st.integers(0, 99))
def test_with_says_what_set_says(concurrency, cache, seed):
    values = {"load.concurrency": concurrency, "engine.cache": cache, "seed": seed}
    given_ = {"traces": "t.jsonl", "max_turns": 4}
    changed = make_scenario(given_, [f"{key}={value}" for key, value in values.items()])
    assert make_scenario(given_).with_(values) == changed


# One line each.


def test_one_line_says_what_a_scenario_is():
    text = repr(Scenario(traces=["a.jsonl", "b.jsonl"], tasks=4, policy={"name": "keep_last"}))
    assert (
        text
        == "<Scenario keep_last / radix, gpt-oss-20b on h100-sxm, concurrency 24, 4 tasks of a.jsonl, b.jsonl>"
    )


def test_one_line_says_what_a_record_is():
    """tiny_record.py: 1 of 2 tasks completed; 22 tokens in 10 s would be 2.2."""
    record = tiny_record()
    found = metrics(record)
    rate = f"{found['output_tok_s']:,.1f} output tokens/s"
    assert (
        repr(record) == f"<RunRecord simulated, sidequest / session, no load: 1 of 2 tasks completed, {rate}>"
    )
    assert repr(RunRecord({})) == "<RunRecord run, None / None, no load: 0 of 0 tasks completed, no throughput>"


# A record.


def test_a_records_metrics_are_the_metrics_with_units_and_evidence():
    record = tiny_record()
    found = record.metrics()
    assert found == metrics(record)
    assert json.loads(json.dumps(found)) == metrics(record)
    assert {name: (found.unit(name), found.meaning(name)) for name in DEFINITIONS} == DEFINITIONS
    assert found.unit("failed_context_limit") == "tasks"
    assert "every number is simulated" in found.evidence
    with pytest.raises(KeyError):
        found.unit("speed")


def test_printed_metrics_have_their_units_and_their_evidence():
    record = tiny_record()
    lines = str(record.metrics()).splitlines()
    assert next(line.split() for line in lines if line.startswith("output_tokens ")) == ["output_tokens", str(metrics(record)["output_tokens"]), "tokens"]  # fmt: skip
    assert "- every number is simulated" in lines


def test_a_record_is_saved_and_loaded(tmp_path):
    record = tiny_record()
    record.save(tmp_path / "a")
    loaded = sqsim.RunRecord.load(tmp_path / "a")
    assert loaded.run.items() >= record.run.items()
    assert all(loaded.table(name) == record.table(name) for name in TABLES)
    with pytest.raises(sqsim.RecordError, match="a record is there already"):
        record.save(tmp_path / "a")
    record.save(tmp_path / "a", overwrite=True)
    with pytest.raises(sqsim.RecordError, match="no such directory"):
        sqsim.RunRecord.load(tmp_path / "c")


def test_an_unknown_table_is_refused_by_name():
    with pytest.raises(sqsim.InputError, match="'steps' is no table of a record; there are tasks, turns, aux"):
        tiny_record().to_pandas("steps")


def test_without_pandas_the_error_says_how_to_get_it(monkeypatch):
    schema = importlib.import_module(RunRecord.__module__)
    monkeypatch.setattr(schema, "find_spec", lambda name: None)
    with pytest.raises(sqsim.MissingPackageError, match="`pip install pandas`"):
        tiny_record().to_pandas()


def test_a_table_becomes_a_dataframe():
    pandas = pytest.importorskip("pandas")
    record = tiny_record()
    frame = record.to_pandas("tasks")
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame) == record.tasks.schema.names
    assert frame["task"].tolist() == ["a", "b"]
    assert frame["end_s"].tolist() == record.tasks["end_s"].to_pylist()
    assert frame["parent"].isna().all()
    assert len(record.to_pandas()) == record.turns.num_rows


# A comparison.


def test_a_comparison_prints_values_units_and_changes():
    base, other = tiny_record(), tiny_record()
    other.run = copy.deepcopy(base.run)
    other.run["scenario"]["policy"] = {"name": "none"}
    lines = str(sqsim.compare(base, other, names=["before", "after"])).splitlines()
    assert lines[0].split() == ["metric", "unit", "before", "after", "change", "%"]
    value = f"{metrics(base)['output_tokens']:,}"
    assert ["output_tokens", "tokens", value, value, "0"] in [line.split() for line in lines]
    assert ["scenario.policy.name", "sidequest", "none"] in [line.split() for line in lines]
    assert "- every number is simulated" in lines


def test_a_part_copied_with_a_change_keeps_what_is_auto():
    engine = sqsim.Scenario(traces="t.jsonl", engine={"kernel_costs": "auto", "kv_capacity": "auto"}).engine
    changed = engine.model_copy(update={"page_size": 16})
    assert (changed.kernel_costs, changed.kv_capacity, changed.page_size) == (None, None, 16)
