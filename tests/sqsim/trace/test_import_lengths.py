# SPDX-License-Identifier: Apache-2.0
"""Formats of lengths and hashes: agentic Mooncake, Dynamo's events, Bailian, applied_compute, AIPerf's texts; odd values."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sqsim.errors import TraceError
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Spawn, Task, Turn
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.reports import changes

DAY_MS = 1_760_000_000_000


def imported(tmp_path: Path, *rows: dict, name: str = "in.jsonl") -> ImportReport:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([path], references="none", timing="none")


def calls(turn: Turn) -> list[tuple]:
    return [(one.tool, one.response_tokens, one.latency_s, one.error, one.parallel) for one in turn.calls]


def by_id(report: ImportReport) -> dict[str, Task]:
    return {task.task_id: task for task in report.tasks}


# applied_compute_agentic

APPLIED = {
    "num_turns": 2,
    "input_prompt_length": 16,
    "assistant_response_length": [4, 5],
    "tool_call_output_length": [8, 7],
    "tool_call_latency": [0.5, 1],
    "final_assistant_response_length": 9,
}


def test_applied_compute_s_lists_are_prompts_16_28_40(tmp_path):
    """The lengths of Dynamo's own test of this fixture (ai-dynamo/dynamo, aisimulate): 16, 28, 40."""
    (task,) = imported(tmp_path, APPLIED).tasks
    assert prompts(task) == [16, 28, 40]
    assert [calls(turn) for turn in task.turns] == [
        [("tool", 8, 0.5, None, False)],
        [("tool", 7, 1.0, None, False)],
    ]
    assert (task.answer.output_tokens, task.outcome.finish, task.carries.timing) == (9, "answer", "recorded")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_turns": 3}, "num_turns"),
        ({"tool_call_output_length": [8]}, "tool_call_output_length"),
        ({"tool_call_latency": [0.5, -1]}, "tool_call_latency"),
        ({"assistant_response_length": [4, "5"]}, "assistant_response_length"),
    ],
)
def test_lists_that_do_not_fit_are_named(change, field, tmp_path):
    with pytest.raises(TraceError) as caught:
        imported(tmp_path, APPLIED, APPLIED | change)
    assert (caught.value.line, caught.value.field) == (2, field)


# qwen_bailian


def chat(own: int, parent: int, at_s: float, length: int, ids: list[int]) -> dict:
    return {
        "chat_id": own,
        "parent_chat_id": parent,
        "timestamp": at_s,
        "input_length": length,
        "output_length": 20,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }


def test_bailian_s_chats_are_chains_of_16_token_blocks(tmp_path):
    report = imported(
        tmp_path,
        chat(1, -1, 60, 40, [10, 11, 12]),
        chat(9, -1, 60.5, 16, [10]),
        chat(2, 1, 70, 80, [10, 11, 14, 15, 16]),
        chat(3, 1, 71, 80, [10, 11, 24, 25, 26]),
    )
    one, other, second = report.tasks
    assert (one.task_id, prompts(one), one.arrival_s) == ("1", [40, 80], 60)
    assert one.turns[0].user_wait_s == pytest.approx(10 - 20 * 0.01)
    assert not one.turns[0].calls, "a user writes between the requests of a chat"
    assert (other.question.hash_ids, other.question.block_tokens) == ((10,), 16)
    assert (second.task_id, second.question.hash_ids[:2]) == ("3", (10, 11))
    assert (
        report.warnings["a chat goes on from one request in two ways; the later way is a task of its own"] == 1
    )


# agentic_mooncake


def line(own: str, session: str, length: int, **more: Any) -> dict:
    return {
        "request_id": own,
        "session_id": session,
        "input_length": length,
        "output_length": 10,
        "hash_ids": [1],
        **more,
    }


def event(tool: str, start: int, end: int, **more: Any) -> dict:
    return {
        "tool_call_id": tool,
        "tool_class": tool,
        "status": "succeeded",
        "started_at_unix_ms": DAY_MS + start,
        "ended_at_unix_ms": DAY_MS + end,
        "duration_ms": float(end - start),
        **more,
    }


def test_lines_that_wait_are_steps_tools_and_sub_agents(tmp_path):
    """A line starts delay + tool_wait_ms after all that it waits for (ai-dynamo/dynamo, docs: agentic Mooncake)."""
    report = imported(
        tmp_path,
        line("a0", "a", 100, timestamp=500, branches=["b0"], prefix_reset=True),
        line("b0", "b", 50, timestamp=700, wait_for=["a0"], delay=0, prefix_reset=True),
        line(
            "a1",
            "a",
            160,
            timestamp=900,
            wait_for=["a0"],
            delay=20,
            tool_wait_ms=30,
            tool_events=[
                event("bash", 0, 20, output_tokens=7),
                event("web", 0, 30, status="error", error_type="boom", output_tokens=33),
            ],
        ),
        line("a2", "a", 250, timestamp=999, wait_for=["a1", "b0"], delay=2000),
        line("a3", "a", 90, timestamp=1999, wait_for=["a2"], delay=0, prefix_reset=True),
    )
    a, b = by_id(report)["a"], by_id(report)["b"]
    assert (a.arrival_s, prompts(a)) == (0.5, [100, 160, 250, 90])
    assert calls(a.turns[0]) == [("bash", 7, 0.02, None, True), ("web", 33, 0.03, "boom", True)]
    assert (a.turns[0].template_tokens, a.turns[0].user_wait_s) == (10, 0.02)
    assert (a.turns[1].calls, a.turns[1].template_tokens, a.turns[1].user_wait_s) == ((), 80, 2)
    assert a.turns[3].reset.keep_tokens == 90
    assert (b.parent.task_id, b.spawn, b.arrival_s) == ("a", Spawn(turn=0, join_turn=2), None)
    assert changes(report) == {}


def test_a_request_id_twice_is_refused(tmp_path):
    with pytest.raises(TraceError, match="'a0' is an earlier line's") as caught:
        imported(tmp_path, line("a0", "a", 5, wait_for=[]), line("a0", "a", 9))
    assert caught.value.line == 2


# Dynamo's events


def ended(own: str, start: int, lasts: int, length: int, hashes: list[int], **context: str) -> dict:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": DAY_MS + start + lasts,
        "agent_context": context,
        "request": {
            "request_id": own,
            "request_received_ms": DAY_MS + start,
            "total_time_ms": lasts,
            "output_tokens": 10,
            "replay": {"trace_block_size": 64, "input_length": length, "input_sequence_hashes": hashes},
        },
    }


def tooled(start: int, end: int, kind: str = "tool_end", **context: str) -> dict:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": kind,
        "event_time_unix_ms": DAY_MS + end,
        "agent_context": context,
        "tool": {"tool_call_id": f"c{start}", "tool_class": "bash", "started_at_unix_ms": DAY_MS + start},
    }


OLDER = ({"trajectory_id": "a", "session_id": "run"}, {"trajectory_id": "b", "parent_trajectory_id": "a"})
NEWER = ({"session_id": "a"}, {"session_id": "b", "parent_session_id": "a"})


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("root", "below"), [OLDER, NEWER])
def test_dynamo_s_events_are_steps_tools_and_sub_agents(root, below, wrapped, tmp_path):
    """Sub-agent and join as lib/bench's converter infers them; 64-bit hashes stay whole numbers; plain, wrapped, gzip."""
    big = 2**64 - 1
    rows = [
        ended("r1", 3000, 500, 200, [big, 5, 6, 7], **root),
        ended("r0", 1000, 500, 100, [big, 5], **root),
        tooled(1600, 1900, **root),
        tooled(1950, 2000, "tool_error", **root),
        ended("q0", 1600, 900, 30, [77], **below),
        ended("r2", 3600, 500, 260, [big, 5, 6, 7, 8], **root),
    ]
    path = tmp_path / "d.jsonl.gz"
    values = [{"timestamp": 1, "event": row} if wrapped else row for row in rows]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, values)).encode()))
    report = import_files([path], references="none", timing="none")
    a, b = by_id(report)["a"], by_id(report)["b"]
    assert (prompts(a), a.arrival_s) == ([100, 200, 260], 0)
    assert (a.question.hash_ids, a.question.block_tokens) == ((big, 5), 64)
    assert [each[0:1] + each[2:] for each in calls(a.turns[0])] == [
        ("bash", 0.3, None, False),
        ("bash", 0.05, "error", False),
    ]
    assert sum(each.response_tokens for each in a.turns[0].calls) == 90
    assert a.turns[0].user_wait_s == pytest.approx(0.5), "3.0 s less the sub-agent's end at 2.5 s"
    assert a.turns[1].user_wait_s == pytest.approx(0.1)
    assert (b.parent.task_id, b.spawn) == ("a", Spawn(turn=0, join_turn=1))


def test_a_session_in_two_of_dynamo_s_files_is_one_task(tmp_path):
    """Its recorder goes on in a new file after so many bytes; a request in both is one, a torn file is left out."""
    first = [
        ended("r0", 0, 500, 100, [1, 2], session_id="a"),
        ended("r1", 1500, 500, 200, [1, 2, 3, 4], session_id="a"),
    ]
    rest = [first[1], ended("r2", 3000, 500, 300, [1, 2, 3, 4, 5], session_id="a")]
    for number, rows in enumerate((first, rest)):
        (tmp_path / f"trace.00000{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = first[0] | {"event_time_unix_ms": "late"}
    (tmp_path / "trace.000002.jsonl").write_text(json.dumps(bad) + "\n")
    report = import_files([tmp_path], references="none", timing="none")
    (task,) = report.tasks
    assert prompts(task) == [100, 200, 300]
    assert report.warnings["a request that an earlier line has was left out"] == 1
    assert [Path(each.path).name for each in report.left_out] == ["trace.000002.jsonl"]


def test_calls_without_events_are_named_by_their_request(tmp_path):
    first = ended("r0", 0, 500, 100, [1, 2], session_id="a")
    first["request"]["finish_reason_metadata"] = {
        "tool_calls": [{"id": "x", "name": "ls"}, {"id": "y", "name": "cat"}]
    }
    (task,) = imported(tmp_path, first, ended("r1", 1500, 500, 200, [1, 2, 3, 4], session_id="a")).tasks
    assert calls(task.turns[0]) == [("ls", 45, 1.0, None, True), ("cat", 45, 1.0, None, True)]


def test_hashes_that_do_not_make_a_prompt_are_refused(tmp_path):
    with pytest.raises(TraceError, match="1 hashes of 64 tokens do not make 200 tokens"):
        imported(tmp_path, ended("r0", 0, 500, 200, [1], session_id="a"))


# AIPerf's texts


def said(role: str, content: str, **more: Any) -> dict:
    return {"role": role, "content": content, **more}


CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
FIRST = [said("system", "be brief"), said("user", "list the files")]
SECOND = [*FIRST, said("assistant", "", tool_calls=[CALL]), said("tool", "a.py b.py", tool_call_id="c")]


@pytest.mark.parametrize("key", ["messages", "payload"])
def test_whole_conversations_are_threaded_by_what_they_repeat(key, tmp_path):
    rows = [
        {"session_id": "s", "timestamp": 2000, key: FIRST, "output_length": 40},
        {"session_id": "s", "delay": 1500, key: SECOND, "output_length": 30},
        {"session_id": "s", "delay": 100, key: [said("user", "a new start")], "output_length": 5},
    ]
    if key == "payload":
        rows = [row | {key: {"model": "m", "messages": row[key]}} for row in rows]
    report = imported(tmp_path, *rows)
    (task,) = report.tasks
    assert (task.task_id, task.arrival_s, task.steps) == ("s", 2.0, 3)
    assert [turn.output_tokens for turn in task.turns] == [40, 30, 5]
    assert [(one.tool, one.latency_s, one.response_text) for one in task.turns[0].calls] == [
        ("ls", 1.5, "a.py b.py")
    ]
    assert task.turns[2].reset.keep_text == "a new start"
    assert report.evidence[0].text.startswith("aiperf_messages")


@pytest.mark.parametrize(
    "rows",
    [
        [{"text_input": "one"}, {"text_input": "two and more"}],
        [
            {"messages": [said("user", "one")], "message_mode": "delta"},
            {"messages": [said("user", "two and more")], "message_mode": "delta"},
        ],
    ],
)
def test_texts_that_only_add_grow_the_prompt(rows, tmp_path):
    """The second prompt is the first, its 25 tokens of answer, and the new message."""
    report = imported(tmp_path, *(row | {"session_id": "s", "output_length": 25} for row in rows))
    (task,) = report.tasks
    one, two = prompts(task)
    assert two == one + 25 + task.turns[0].template_tokens
    assert task.turns[0].template_text == "two and more"


# AIPerf's records


def record(session: str, start: float, end: float, prompt: int, **more: Any) -> dict:
    return {
        "metadata": {
            "session_num": 0,
            "conversation_id": "c",
            "x_correlation_id": session,
            "request_start_ns": int((1.76e9 + start) * 1e9),
            "request_end_ns": int((1.76e9 + end) * 1e9),
        },
        "metrics": {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": 10, "unit": "tokens"},
        },
        **more,
    }


def test_aiperf_s_records_are_sessions_with_their_times(tmp_path):
    """The fields of `MetricRecordInfo` (ai-dynamo/aiperf): a conversation that ran twice is two sessions."""
    report = imported(
        tmp_path,
        record("s", 2, 3, 100),
        record("t", 1, 3, 100),
        record("s", 5.5, 6, 150),
        record("s", 9, 9, 150, error={"code": 500}),
    )
    one, two = by_id(report)["s"], by_id(report)["t"]
    assert (prompts(one), one.arrival_s, one.turns[0].tool_wait_s) == ([100, 150], 1, 2.5)
    assert (prompts(two), two.arrival_s, two.steps) == ([100], 0, 1)
    assert report.warnings["a request that failed was left out"] == 1


# CSV of single requests


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,1.5,ChatGPT,472,18,490,Conversation log
10450101,s,2,GPT-4,1087,0,1087,API log
"""


def test_csv_rows_are_tasks_of_one_step(tmp_path):
    """First rows of AzureLLMInferenceTrace_code.csv (Azure/AzurePublicDataset); BurstGPT's columns (HPMLL/BurstGPT)."""
    (tmp_path / "azure.csv").write_text(AZURE)
    (tmp_path / "burst.csv").write_text(BURST)
    report = import_files([tmp_path])
    one, two, three, four = report.tasks
    assert [task.question.tokens for task in report.tasks] == [4808, 3180, 472, 1087]
    assert [task.answer.output_tokens for task in report.tasks] == [10, 8, 18, 1]
    assert (one.arrival_s, two.arrival_s, three.arrival_s, four.arrival_s) == (0, 0.052, 0, 10450096)
    assert (three.model, three.steps) == ("ChatGPT", 1)
    assert report.warnings["an output of 0 tokens counts as 1"] == 1


@pytest.mark.parametrize(
    ("row", "line_number"),
    [
        ("2023-11-16,x,5", 3),
        ("2023-11-16,5", 3),
        ("yesterday,5,5", 3),
        ("2023-11-16,-5,5", 3),
        ('2023-11-16,"5,5', 3),
    ],
)
def test_a_bad_row_is_named(row, line_number, tmp_path):
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,5,5\n" + row)
    with pytest.raises(TraceError) as caught:
        import_files([tmp_path / "azure.csv"])
    assert caught.value.line == line_number


@pytest.mark.parametrize(
    "text", ["", "\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a,b\n1,2\n", "\x00\n\x00,"]
)
def test_a_csv_file_without_such_rows_is_refused(text, tmp_path):
    (tmp_path / "odd.csv").write_text(text)
    reasons = r"is empty|holds no row|begins with an object with a, b|2 values for 1 columns"
    with pytest.raises(TraceError, match=reasons):
        import_files([tmp_path / "odd.csv"])
