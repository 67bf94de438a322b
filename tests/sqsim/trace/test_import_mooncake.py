# SPDX-License-Identifier: Apache-2.0
"""`mooncake_trace` against counts read with jq and wc, its sessions, and the export's round trip."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.exports import export
from sqsim.trace.importing import import_files
from sqsim.trace.schema import Carries, Prefix, Reset
from sqsim.trace.statistics import prompts
from sqsim.trace.synthesis import synthesise
from tests.sqsim.tasks import call, chain, task, tasks, turn
from tests.sqsim.trace.reports import changes

HEAD = Path(__file__).parents[3] / "traces/mooncake/conversation_head300.jsonl"


def lines(tmp_path, *values: dict) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_counts_are_those_of_the_file():
    """wc -l: 300; jq -s: input_length sums to 4,269,971, output_length to 113,079, the last timestamp is 102000 ms,
    8,490 hash ids, and the first block is 0 in every line."""
    report = import_files([HEAD])
    assert len(report.tasks) == 300
    assert sum(task.question.tokens for task in report.tasks) == 4_269_971
    assert sum(task.answer.output_tokens for task in report.tasks) == 113_079
    assert report.tasks[-1].arrival_s == 102
    assert sum(len(task.question.hash_ids) for task in report.tasks) == 8_490
    assert {task.question.hash_ids[0] for task in report.tasks} == {0}
    assert {task.question.block_tokens for task in report.tasks} == {512}
    assert all(task.steps == 1 and task.prefix.tokens == 0 for task in report.tasks)
    assert report.carries["timing"] == report.carries["usage"] == {"recorded": 300}


def test_lines_of_a_session_are_the_steps_of_a_task(tmp_path):
    path = lines(
        tmp_path,
        {"session_id": "a", "timestamp": 1500, "input_length": 100, "output_length": 10, "hash_ids": [7]},
        {"session_id": "b", "timestamp": 1600, "input_length": 50, "output_length": 5},
        {"session_id": "a", "delay": 2500, "input_length": 150, "output_length": 20},
        {"session_id": "a", "delay": 100, "input_length": 90, "output_length": 30},
    )
    a, b = import_files([path]).tasks
    assert (a.task_id, a.arrival_s, b.arrival_s) == ("a", 1.5, 1.6)
    assert prompts(a) == [100, 150, 90]
    assert [turn.tool_wait_s + turn.user_wait_s for turn in a.turns] == [2.5, 0.1, 0]
    assert a.turns[0].calls[0].response_tokens == 40
    assert a.turns[2].reset.keep_tokens == 90
    assert b.steps == 1


def test_without_timestamps_arrivals_and_latencies_are_absent(tmp_path):
    path = lines(tmp_path, {"input_length": 9, "output_length": 1})
    (task,) = import_files([path], timing="none", references="none").tasks
    assert task.arrival_s is None
    assert task.carries == Carries(usage="recorded")


def test_zero_lengths_are_normalised_and_counted(tmp_path):
    report = import_files([lines(tmp_path, {"input_length": 0, "output_length": 0, "timestamp": 0})])
    assert (report.tasks[0].question.tokens, report.tasks[0].answer.output_tokens) == (1, 1)
    assert changes(report) == {"a prompt of 0 tokens counts as 1": 1, "an output of 0 tokens counts as 1": 1}


def test_arrivals_need_no_order_and_hashes_are_64_bits(tmp_path):
    """Unsorted arrivals are kept as they are; u64 hashes are read as integers (FORMATS.md)."""
    big = 2**64 - 1
    path = lines(
        tmp_path,
        {"timestamp": 900, "input_length": 9, "output_length": 1, "hash_ids": [big]},
        {"timestamp": 100, "input_length": 9, "output_length": 1, "hash_ids": [big - 1]},
    )
    late, early = import_files([path]).tasks
    assert (late.arrival_s, early.arrival_s) == (0.9, 0.1)
    assert late.question.hash_ids != early.question.hash_ids


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"timestamp": -1, "input_length": 5, "output_length": 1}, "timestamp"),
        ({"timestamp": 1e40, "input_length": 5, "output_length": 1}, "timestamp"),
        ({"timestamp": 0, "input_length": -5, "output_length": 1}, "input_length"),
        ({"timestamp": 0, "input_length": 5, "output_length": True}, "output_length"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [2**64]}, "hash_ids"),
    ],
)
def test_a_bad_line_is_named(tmp_path, value, field):
    good = {"timestamp": 0, "input_length": 5, "output_length": 1}
    with pytest.raises(TraceError) as caught:
        import_files([lines(tmp_path, good, value)])
    assert (caught.value.line, caught.value.field) == (2, field)


def sized(tmp_path, *rows: tuple[int, int], **more) -> list[int | None]:
    """Block sizes of single requests, each with its input_length and number of hash ids."""
    values = [{"input_length": n, "output_length": 1, "hash_ids": list(range(ids)), **more} for n, ids in rows]
    return [task.question.block_tokens for task in import_files([lines(tmp_path, *values)]).tasks]


def test_a_block_s_size_is_derived_from_lengths_and_numbers_of_ids(tmp_path):
    """144 tokens in 9 blocks: 144 / 10 < size < 144 / 8; 16 is the only power of two. 512 wherever it fits."""
    assert sized(tmp_path, (144, 9)) == [16]
    assert sized(tmp_path, (1000, 16), (900, 14)) == [64, 64]
    assert sized(tmp_path, (1000, 2), (5, 1)) == [512, 512]
    assert sized(tmp_path, (1000, 10), block_size=100) == [100]


def test_a_stated_size_that_lengths_contradict_is_refused(tmp_path):
    with pytest.raises(
        TraceError, match="blocks of 512 tokens, as stated, do not fit: 9 blocks make 144 tokens"
    ):
        sized(tmp_path, (144, 9), block_size=512)
    path = lines(tmp_path, {"input_length": 144, "output_length": 1, "hash_ids": list(range(9))})
    with pytest.raises(TraceError, match="as given, do not fit") as caught:
        import_files([path], block_tokens=512)
    assert (caught.value.line, caught.value.field) == (1, "hash_ids")


def test_lines_that_contradict_each_other_are_refused(tmp_path):
    """9 blocks of 144 tokens are below 18 tokens; 2 blocks of 1,000 are above 333."""
    with pytest.raises(
        TraceError, match=r"no usual block size fits: 9 blocks make 144 tokens.*line 2"
    ) as caught:
        sized(tmp_path, (144, 9), (1000, 2))
    assert caught.value.line == 1
    with pytest.raises(TraceError, match=r"allow 91 to 111 tokens.*--block-tokens"):
        sized(tmp_path, (1000, 10))


def waits(task) -> list[float]:
    return [round(turn.tool_wait_s + turn.user_wait_s, 6) for turn in task.turns]


def written(task) -> list[int]:
    return [turn.output_tokens for turn in task.turns] + ([task.answer.output_tokens] if task.answer else [])


def test_export_keeps_what_the_format_can_say(tmp_path):
    made = list(synthesise("frames", 12, 3))
    exported = export(iter(made), tmp_path / "m.jsonl.zst")
    assert (exported.tasks, exported.lines) == (12, sum(task.steps for task in made))
    failed = sum(call.error is not None for task in made for turn in task.turns for call in turn.calls)
    assert exported.lost["a failed call became a successful one"] == failed
    assert not any("length" in text or "wait between" in text for text in exported.lost if "prefix" not in text)
    back = import_files([tmp_path / "m.jsonl.zst"])
    assert back.warnings == {}
    for before, after in zip(made, back.tasks, strict=True):
        assert after.task_id == before.task_id
        assert prompts(after) == prompts(before)
        assert written(after) == written(before)
        assert waits(after) == [pytest.approx(wait, abs=1e-6) for wait in waits(before)]


@settings(deadline=None, max_examples=50)
@given(drawn=tasks(), arrival=st.none() | st.integers(0, 1000))
def test_any_task_s_prompts_and_outputs_survive(drawn, arrival, tmp_path_factory):
    """Without compactions that leave a prompt of less than a block, and stripped reasoning: both cannot be told."""
    path = tmp_path_factory.mktemp("export") / "m.jsonl"
    turns = tuple(turn.model_copy(update={"reset": None}) for turn in drawn.turns)
    drawn = drawn.model_copy(update={"reasoning_kept": True, "arrival_s": arrival, "turns": turns})
    export([drawn], path)
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["input_length"] for line in read] == prompts(drawn)
    assert [line["output_length"] for line in read] == written(drawn)
    assert read[0].get("timestamp") == (None if arrival is None else arrival * 1000)
    (back,) = import_files([path]).tasks
    assert prompts(back) == prompts(drawn)
    assert written(back) == written(drawn)


def test_a_compaction_is_seen_by_its_blocks(tmp_path):
    """The prompt grows from 2,200 to 5,040 tokens, yet shares the prefix only."""
    turns = (turn(call(0, 2000)), turn(call(1, 900), reset=Reset(keep_tokens=5000)))
    export([task(*turns)], tmp_path / "m.jsonl")
    (back,) = import_files([tmp_path / "m.jsonl"]).tasks
    assert prompts(back) == prompts(task(*turns)) == [70, 5040, 5975]
    assert [t.reset is not None for t in back.turns] == [False, False]
    long = (turn(call(0, 2000)), turn(call(1, 900)), turn(call(2, 9), reset=Reset(keep_tokens=5000)))
    export([task(*long)], tmp_path / "m.jsonl")
    (back,) = import_files([tmp_path / "m.jsonl"]).tasks
    assert prompts(back) == prompts(task(*long))
    assert [t.reset is not None for t in back.turns] == [False, False, True]


def ids(path: Path) -> list[list[int]]:
    return [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]


def test_exported_blocks_are_equal_exactly_where_prefixes_are(tmp_path):
    """Prefix 1,100 tokens: two whole blocks are shared by both tasks, the third holds each one's question."""
    shared = Prefix(id="p", tokens=1100)
    both = [chain(3, 600, name=name, prefix=shared) for name in ("a", "b")]
    export(both, tmp_path / "m.jsonl")
    a, b = ids(tmp_path / "m.jsonl")[:4], ids(tmp_path / "m.jsonl")[4:]
    assert a[0][:2] == b[0][:2]
    assert a[0][2] != b[0][2]
    for one, following in pairwise(a):
        full = len(one) - 1  # the last block is partial
        assert following[:full] == one[:full], "a prompt continues the one before it"
        assert following[full] != one[full]


def test_recorded_blocks_stay_the_same_blocks(tmp_path):
    """Requests that share blocks in the recording share as many in the export."""
    report = import_files([HEAD])
    export(report.tasks[:50], tmp_path / "m.jsonl")
    names = {}
    for request, exported in zip(report.tasks, ids(tmp_path / "m.jsonl"), strict=False):
        for recorded, ours in zip(request.question.hash_ids, exported, strict=True):
            assert names.setdefault(recorded, ours) == ours
    assert len(set(names.values())) == len(names)


def test_a_sub_agent_is_said_to_be_lost(tmp_path):
    weka = import_files([HEAD.parents[1] / "weka/trace_0277.json"]).tasks
    assert export(weka, tmp_path / "m.jsonl").lost["a sub-agent became a task of its own"] == 4
