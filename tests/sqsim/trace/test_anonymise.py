# SPDX-License-Identifier: Apache-2.0
"""What an anonymised trace keeps, and that nothing of what was said or named is left in it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.anonymise import WELL_KNOWN_TOOLS, anonymised
from sqsim.trace.checks import Checks
from sqsim.trace.formats import FORMATS
from sqsim.trace.importing import import_files
from sqsim.trace.schema import SCHEMA, Carried, Outcome, RecordedAux, Reset, Source, Strict, Task
from sqsim.trace.statistics import prompts, statistics
from sqsim.trace.store import read_tasks, write_tasks
from tests.sqsim.cli.test_cli import sqsim
from tests.sqsim.tasks import call, families, task, tasks, turn

ROOT = Path(__file__).parents[3]
FIXTURES = sorted(
    path
    for folder in (
        ROOT / "traces",
        *(
            ROOT / "tests/data" / name
            for name in ("traces", "faults", "codex", "lengths", "recordings", "served", "agents")
        ),
    )
    for path in folder.rglob("*")
    if path.is_file() and path.suffix in {".json", ".jsonl", ".gz", ".csv", ".pkl", ".traj"}
)
FINISH = get_args(Outcome.model_fields["finish"].annotation)
OWN_WORDS = {SCHEMA, "anonymised", "error", *get_args(Carried), *FINISH, *FORMATS, *WELL_KNOWN_TOOLS}
"""Words that an anonymised trace may hold: the schema's, the formats', and names of public tools."""


def texts(value: object) -> Iterator[str]:
    """Every text in a JSON value; keys of a trace are the schema's."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def left(made: list[Task]) -> list[str]:
    """The texts of tasks that are no words of ours."""
    return [
        text
        for each in made
        for text in texts(each.model_dump(mode="json", by_alias=True))
        if text not in OWN_WORDS
    ]


def grams(parts: list[str] | str) -> set:
    return {tuple(parts[at : at + 8]) for at in range(len(parts) - 7)}


def raw(path: Path) -> str:
    """What a file says, escapes resolved where its lines are JSON."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
    return text + "\n" + "\n".join(said(text))


def said(text: str) -> Iterator[str]:
    for part in [text, *text.splitlines()]:
        try:
            yield from texts(json.loads(part))
        except ValueError:
            continue


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_eight_characters_or_words_of_a_recording_are_left(path):
    try:
        report = import_files([path])
    except TraceError:  # a file of the tests of refusals: no task comes of it, so nothing can be left
        return
    made = list(anonymised(report.tasks))
    original = raw(path)
    for text in left(made):
        assert not any("".join(gram) in original for gram in grams(text)), text
        assert not grams(text.split()) & grams(original.split())
        assert re.fullmatch(r"(task|prefix|tool)-\d+", text)


def test_every_importer_has_a_fixture():
    formats = set()
    for path in FIXTURES:
        try:
            formats |= {task.source.format for task in import_files([path]).tasks}
        except TraceError:
            continue
    assert formats >= set(FORMATS)


def planted(part: Strict, number: Iterator[int]) -> Strict:
    """A part of a task with a secret in every field that can hold a free text."""
    update: dict[str, object] = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Strict):
            update[name] = planted(value, number)
        elif isinstance(value, tuple) and any(isinstance(each, Strict) for each in value):
            update[name] = tuple(planted(each, number) for each in value)
        elif field.annotation in {str, str | None} and not (name == "error" and value is None):
            update[name] = f"secret {next(number)}"
    return part.model_copy(update=update)


@given(drawn=tasks(), start=st.integers(10**6, 10**9))
def test_whatever_field_can_hold_a_text_is_emptied(drawn, start):
    """The schema is walked, so a field that it gains later is tried too."""
    numbers = iter(range(start, 10**10))
    full = drawn.model_copy(update={"aux": (RecordedAux(turn=0, output_tokens=3, named=()),)})
    secret = planted(full, numbers)
    assert sum("secret" in text for text in left([secret])) > 8
    (made,) = anonymised([secret])
    assert all(re.fullmatch(r"(task|prefix|tool)-1?\d", text) for text in left([made]))


def test_token_ids_and_digests_are_texts_too():
    drawn = task(
        turn(call(0)),
        turn(call(1), reset=Reset(keep_tokens=2, keep_token_ids=(8, 9))),
        source=Source(format="x", file="f", sha256="0" * 64, licence="ours"),
    )
    (made,) = anonymised([drawn])
    assert made.turns[1].reset == Reset(keep_tokens=2)
    assert made.source == Source(format="anonymised")


def test_a_well_known_licence_stays():
    (made,) = anonymised(import_files([ROOT / "traces/weka/trace_0617.json"], licence="Apache-2.0").tasks)
    assert made.source == Source(format="weka_trace", licence="Apache-2.0")


@given(drawn=families())
def test_structure_counts_times_and_references_stay(drawn):
    made = list(anonymised(drawn))
    checks = Checks()
    for before, after in zip(drawn, made, strict=True):
        checks.task(after)
        assert prompts(after) == prompts(before)
        assert (after.spawn, after.arrival_s, after.reasoning_kept) == (
            before.spawn,
            before.arrival_s,
            before.reasoning_kept,
        )
        assert [turn.uses for turn in after.turns] == [turn.uses for turn in before.turns]
    assert statistics(made) == statistics(drawn)
    same = [[a.prefix.id == b.prefix.id for b in drawn] for a in drawn]
    assert [[a.prefix.id == b.prefix.id for b in made] for a in made] == same


@pytest.mark.parametrize("name", ["weka", "claude_code", "mooncake", "tau_bench"])
def test_figures_of_recordings_stay(name):
    plain = import_files([ROOT / "traces" / name]).tasks
    made = list(anonymised(plain))
    before, after = statistics(plain), statistics(made)
    texts_before = [key for key in before if key.startswith("carries_text")]
    assert {k: v for k, v in after.items() if not k.startswith("carries_text")} == {
        k: v for k, v in before.items() if k not in texts_before
    }


def test_shared_blocks_stay_shared():
    plain = import_files([ROOT / "traces/mooncake/conversation_head300.jsonl"]).tasks
    made = list(anonymised(plain))
    names = {}
    for before, after in zip(plain, made, strict=True):
        for old, new in zip(before.question.hash_ids, after.question.hash_ids, strict=True):
            assert names.setdefault(old, new) == new
    assert sorted(names.values()) == list(range(1, len(names) + 1))


def test_tools_are_known_or_numbered():
    drawn = [
        call(n).model_copy(update={"tool": tool}) for n, tool in enumerate(["Bash", "mcp__acme__pay", "x", "x"])
    ]
    (made,) = anonymised([task(turn(*drawn))])
    assert [each.tool for each in made.turns[0].calls] == ["Bash", "tool-1", "tool-2", "tool-2"]


def test_the_command_writes_what_can_be_read_again(tmp_path):
    write_tasks(tmp_path / "in.jsonl", [task(turn(call(0)), name="/home/someone")])
    done = sqsim("trace", "anonymise", "in.jsonl", "-o", "out.jsonl.zst", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (made,) = read_tasks(tmp_path / "out.jsonl.zst")
    assert made.task_id == "task-1"
    again = sqsim("trace", "anonymise", "in.jsonl", "-o", "out.jsonl.zst", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
