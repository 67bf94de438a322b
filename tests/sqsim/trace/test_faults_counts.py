# SPDX-License-Identifier: Apache-2.0
"""Count formats that were once misread (tests/data/faults): WEKA, Mooncake, AIPerf; what each has to give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.trace.exports import export
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Spawn, Task
from sqsim.trace.statistics import prompts
from sqsim.trace.store import read_tasks

FAULTS = Path(__file__).parents[2] / "data/faults"


def imported(name: str) -> ImportReport:
    return import_files([FAULTS / name])


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


def read(folder: Path, *values: dict) -> ImportReport:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return import_files([path])


def waits(task: Task) -> list[float]:
    return [round(turn.tool_wait_s + turn.user_wait_s, 3) for turn in task.turns]


# 01: AIPerf's deltas


def test_lines_that_add_to_a_prompt_are_summed():
    """What AIPerf sends: 42,277, then 42,277 + 335 + 1,855, ..., 119,280; 961,788 in all."""
    task = only(imported("01-aiperf-deltas/in.jsonl"))
    found = prompts(task)
    assert (found[:2], found[-1], sum(found)) == ([42_277, 44_467], 119_280, 961_788)
    assert not any(turn.reset for turn in task.turns)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(
        st.tuples(
            st.integers(600, 9_000),
            st.lists(st.tuples(st.integers(1, 5_000), st.integers(1, 900)), min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_deltas_and_whole_prompts_of_one_load_are_told_apart(sizes, tmp_path_factory):
    """The same sessions in both forms give the same prompts."""
    folder = tmp_path_factory.mktemp("deltas")
    whole, deltas, wanted = [], [], []
    number = 0
    for session, (first, rest) in enumerate(sizes):
        context, found = first, [first]
        ids = list(range(number, number + -(-first // 512)))
        lines = [(first, first, ids, ids)]
        number += len(ids)
        output = 100
        for added, following in rest:
            context += output + added
            ids = [*ids[: (context - output - added) // 512], *range(number, number + 40)][: -(-context // 512)]
            ids += range(number + 40, number + 40 + -(-context // 512) - len(ids))
            number += 100
            own = list(range(number, number + -(-added // 512)))
            number += len(own)
            lines.append((context, added, ids, own))
            found.append(context)
            output = following
        outputs = [100, *(following for _, following in rest)]
        for (total, added, all_ids, own_ids), out in zip(lines, outputs, strict=True):
            shared = {"session_id": f"s{session}", "output_length": out}
            whole.append({**shared, "input_length": total, "hash_ids": all_ids})
            deltas.append({**shared, "input_length": added, "hash_ids": own_ids})
        wanted.append(found)
    for values in (whole, deltas):
        assert [prompts(task) for task in read(folder, *values).tasks] == wanted


# 23, 25, 26: WEKA


@pytest.mark.parametrize("name", ["end", "start", "duration_null"])
def test_a_marker_is_read_as_the_end_or_the_start(name):
    """The same recording: the sub-agent runs from 2 s to 62 s, the parent goes on 0.5 s later."""
    parent, child = imported(f"23-weka-marker-t-is-start/{name}.json").tasks
    assert child.spawn == Spawn(turn=0, join_turn=1)
    assert waits(parent) == [0.5]
    assert waits(child) == [37]


@settings(deadline=None, max_examples=60)
@given(
    begins=st.floats(1.5, 500),
    gap=st.floats(5, 300),
    form=st.sampled_from(["end, own", "end, session's", "start, session's", "no duration"]),
)
def test_time_bases_are_told_apart(begins, gap, form, tmp_path_factory):
    value = json.loads((FAULTS / "23-weka-marker-t-is-start/end.json").read_text())
    first, child, last = value["requests"]
    first["api_time"] = round(begins - 0.5, 3)
    begins, long = round(begins, 3), round(gap + 22, 3)
    base = 0 if form == "end, own" else begins
    child["requests"][0]["t"] = base
    child["requests"][1]["t"] = round(base + gap, 3)
    child["t"] = begins if form in {"start, session's", "no duration"} else round(begins + long, 3)
    child["duration_ms"] = None if form == "no duration" else long * 1e3
    last["t"] = round(begins + long + 0.5, 3)
    parent, other = read(tmp_path_factory.mktemp("weka"), value).tasks
    if form == "start, session's" and begins - long >= -1 and gap < 1:
        return
    assert other.spawn == Spawn(turn=0, join_turn=1)
    assert waits(parent) == [pytest.approx(0.5, abs=0.01)]


def test_a_wait_is_the_gap_where_think_time_is_left_out():
    """Requests at 0 and 5 s, the first took 1 s."""
    assert waits(only(imported("25-mooncake-session-timestamps-lost/weka_no_think_time.json"))) == [4]


def test_hash_ids_that_are_too_few_are_counted():
    report = imported("26-weka-short-hash-ids/short.json")
    assert report.warnings["hash_ids name fewer blocks than the prompt has; nothing is shared by them"] == 2
    assert only(report).question.hash_ids is None


# 25: Mooncake


def test_timestamps_of_a_session_are_its_waits():
    """Lines at 0, 60 and 120 s; 100 tokens take a second (assumed)."""
    task = only(imported("25-mooncake-session-timestamps-lost/s.jsonl"))
    assert waits(task) == [59, 59]
    assert task.carries.timing == "derived"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_lines_of_a_session_are_in_the_order_of_their_times(order, tmp_path):
    rows = [
        json.loads(line)
        for line in (FAULTS / "25-mooncake-session-timestamps-lost/s.jsonl").read_text().splitlines()
    ]
    task = only(read(tmp_path, *(rows[place] for place in order)))
    assert (prompts(task), waits(task), task.arrival_s) == ([1_000, 2_000, 3_000], [59, 59], 0)


def test_a_delay_counts_before_a_gap_and_a_missing_time_is_counted(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 10, "output_length": 100},
        {"session_id": "a", "timestamp": 60_000, "delay": 7_000, "input_length": 200, "output_length": 100},
        {"session_id": "a", "input_length": 400, "output_length": 100},
    ]
    report = read(tmp_path, *rows)
    assert waits(only(report)) == [7, 0]
    assert (
        report.warnings["a line of a session has neither delay nor a time to count from; it follows at once"]
        == 1
    )


# 28: what an export cannot say


def test_an_export_names_reasoning_that_the_next_prompt_leaves_out(tmp_path):
    tasks = list(read_tasks(FAULTS / "28-export-reasoning-not-kept/pa.jsonl"))
    (lost,) = [(text, n) for text, n in export(tasks, tmp_path / "m.jsonl").lost.items() if "reasoning" in text]
    assert lost[1] == 2
