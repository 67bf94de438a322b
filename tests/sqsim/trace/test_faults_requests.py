# SPDX-License-Identifier: Apache-2.0
"""Logs of requests that were once read as chats (tests/data/faults/04), in the shapes that tools write."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Task
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.reports import changes

LOG = Path(__file__).parents[2] / "data/faults/04-litellm-request-log-misread/in.jsonl"
PROMPTS, OUTPUTS = [520, 1_800, 1_820], [30, 5, 8]
"""Of the three calls, from `prompt_tokens` and `completion_tokens`; each took 4 s and began 10 s after the last."""


def lines() -> list[dict]:
    return [json.loads(line) for line in LOG.read_text().splitlines()]


def read(folder: Path, rows: list[dict]) -> ImportReport:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([path])


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


def is_whole(task: Task, *, timed: bool = True) -> None:
    assert prompts(task) == PROMPTS
    assert [*(turn.output_tokens for turn in task.turns), task.answer.output_tokens] == OUTPUTS
    (call,) = task.turns[0].calls
    assert (call.tool, call.cursor, call.response_tokens > 1_200) == ("bash", 0, True)
    if timed:
        assert (call.latency_s, task.turns[1].user_wait_s, task.arrival_s) == (6, 6, 0)
        assert task.carries.timing == "recorded"


def test_the_calls_of_a_session_are_one_task_with_recorded_usage_and_times():
    report = import_files([LOG])
    assert report.evidence[0].text.startswith("request_log: 3 values hold the messages of a request, 3 of them")
    is_whole(only(report))
    assert report.usage == "recorded for 100 % of calls"


@pytest.mark.parametrize("seed", range(4))
def test_calls_are_threaded_without_a_session_and_out_of_order(seed, tmp_path):
    rows = lines()
    for row in rows:
        del row["session_id"], row["trace_id"]
    random.Random(seed).shuffle(rows)
    is_whole(only(read(tmp_path, rows)))


def test_calls_of_two_sessions_are_two_tasks(tmp_path):
    rows = lines()
    for row in lines():
        row |= {"session_id": "s2", "id": f"{row['id']}b"}
        row["startTime"] += 5
        row["endTime"] += 5
        rows.append(row)
    first, second = read(tmp_path, rows).tasks
    assert (first.task_id, second.task_id, second.arrival_s) == ("in:s1", "in:s2", 5)
    for task in (first, second):
        assert prompts(task) == PROMPTS


def test_a_call_that_was_logged_twice_is_one(tmp_path):
    rows = [row for row in lines() for _ in range(2)]
    report = read(tmp_path, rows)
    is_whole(only(report))
    assert changes(report) == {"a request that was logged before (same id) was left out": 3}


def test_a_side_call_of_a_session_is_a_task_of_its_own(tmp_path):
    rows = lines()
    title = lines()[0] | {
        "id": "x",
        "messages": [{"role": "user", "content": "Title?"}],
        "startTime": 1780000001.0,
    }
    report = read(tmp_path, [rows[0], title, *rows[1:]])
    whole, side = report.tasks
    is_whole(whole)
    assert side.steps == 1
    assert report.warnings["a request that goes on from none of its session begins a task of its own"] == 1


def test_a_file_a_call_as_openhands_writes_them(tmp_path):
    """`llm_completions/*.json`: messages, response, and the time at which it was written."""
    for number, row in enumerate(lines()):
        written = {"messages": row["messages"], "response": row["response"], "args": [], "timestamp": row["endTime"],
                   "kwargs": {"tools": [{"type": "function", "function": {"name": "bash"}}]}, "cost": 0.01}  # fmt: skip
        (tmp_path / f"gpt-5-{row['endTime']}.json").write_text(json.dumps(written))
        assert number < 3
    task = only(import_files([tmp_path]))
    is_whole(task, timed=False)
    assert task.prefix.text.startswith('[{"type": "function"')


def test_anthropic_requests_and_responses_are_threaded(tmp_path):
    call = {"type": "tool_use", "id": "t", "name": "bash", "input": {}}
    asked = [{"role": "user", "content": "Fix it."}]
    later = [*asked, {"role": "assistant", "content": [call]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}]  # fmt: skip
    rows = [
        {"request": {"model": "c", "system": "You help.", "messages": messages},
         "response": {"id": f"m{len(messages)}", "role": "assistant", "content": content,
                      "usage": {"input_tokens": 5, "cache_read_input_tokens": grown, "output_tokens": 9}}}
        for messages, content, grown in ((asked, [call], 95), (later, [{"type": "text", "text": "Done."}], 145))
    ]  # fmt: skip
    task = only(read(tmp_path, rows))
    assert prompts(task) == [100, 150]
    assert (task.prefix.text, task.turns[0].calls[0].response_text) == ("You help.", "ok")


def test_requests_without_responses_take_them_from_the_next_request(tmp_path):
    """As AIPerf's `messages` lines hold them: the last one's answer is nowhere, and is counted."""
    rows = [{"session_id": "s", "messages": row["messages"]} for row in lines()]
    report = read(tmp_path, rows)
    task = only(report)
    assert task.steps == 2
    assert [call.tool for call in task.turns[0].calls] == ["bash"]
    assert report.warnings["a last request without a response was left out"] == 1


def test_a_failed_request_is_left_out_and_counted(tmp_path):
    rows = lines()
    failed = lines()[1] | {"id": "f", "status": "failure", "startTime": 1780000009.0}
    report = read(tmp_path, [rows[0], failed, *rows[1:]])
    is_whole(only(report))
    assert report.warnings["a request that failed was left out"] == 1


def test_whole_conversations_with_a_session_are_chats(tmp_path):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    report = read(tmp_path, [{"session_id": "s", "messages": chat}, {"session_id": "s", "messages": chat}])
    assert [each.text.split(":")[0] for each in report.evidence] == ["openai_chat"]
