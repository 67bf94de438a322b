# SPDX-License-Identifier: Apache-2.0
"""Chats and logs of requests that were once misread (tests/data/faults): what each has to give, and others of its kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from sqsim.errors import TraceError
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Task
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.reports import changes

FAULTS = Path(__file__).parents[2] / "data/faults"


def imported(name: str) -> ImportReport:
    return import_files([FAULTS / name])


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


def document(name: str):
    return json.loads((FAULTS / name).read_text())


def read(folder: Path, value) -> ImportReport:
    path = folder / "in.json"
    path.write_text(json.dumps(value))
    return import_files([path])


# 03: Anthropic Messages


def test_content_blocks_are_calls_and_responses():
    """A system text of 2,100 characters and a response of 5,800: some 500 and 1,400 tokens."""
    report = imported("03-anthropic-messages-misread/in.json")
    task = only(report)
    assert report.evidence[0].text.startswith("anthropic_messages: ")
    assert 450 < task.prefix.tokens < 600
    (call,) = task.turns[0].calls
    assert (call.tool, call.cursor, call.error) == ("bash", 0, None)
    assert 1_300 < call.response_tokens < 1_500


@pytest.mark.parametrize("shape", ["document", "line", "list of rows", "bare messages"])
def test_anthropic_messages_are_read_in_every_shape(shape, tmp_path):
    value = document("03-anthropic-messages-misread/in.json")
    whole = only(imported("03-anthropic-messages-misread/in.json"))
    given = {"list of rows": [value], "bare messages": value["messages"]}.get(shape, value)
    path = tmp_path / "in.json"
    path.write_text(json.dumps(given, indent=None if shape == "line" else 1))
    task = only(import_files([path]))
    assert task.turns == whole.turns
    assert task.prefix.tokens == (0 if shape == "bare messages" else whole.prefix.tokens)


def test_thinking_failures_and_parallel_calls_of_blocks_are_read(tmp_path):
    value = document("03-anthropic-messages-misread/in.json")
    value["system"] = [{"type": "text", "text": "You are an engineer.", "cache_control": {"type": "ephemeral"}}]
    value["tools"] = [{"name": "bash", "input_schema": {"type": "object"}}]
    value["messages"][1]["content"] = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "tool_use", "id": "a", "name": "bash", "input": {}},
        {"type": "tool_use", "id": "b", "name": "bash", "input": {}},
    ]
    value["messages"][2]["content"] = [
        {"type": "tool_result", "tool_use_id": "b", "content": "boom", "is_error": True},
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "fine"}]},
        {"type": "text", "text": "go on"},
    ]
    turn = only(read(tmp_path, value)).turns[0]
    assert turn.reasoning_text == "hm"
    assert [(c.response_text, c.error, c.cursor, c.parallel) for c in turn.calls] == [
        ("fine", None, 0, True),
        ("boom", "boom", None, True),
    ]
    assert turn.template_text == "go on"
    assert "input_schema" in only(read(tmp_path, value)).prefix.text


# 10: failed runs


@pytest.mark.parametrize("empty", [[], None])
@pytest.mark.parametrize("place", [0, 1])
def test_a_run_without_messages_is_counted_and_the_others_are_read(empty, place, tmp_path):
    rows = document("10-tau-bench-errored-task-refuses-file/in.json")
    rows[1]["traj"] = empty
    report = read(tmp_path, rows[:: 1 if place else -1])
    assert only(report).task_id == "in:0.0"
    assert changes(report) == {"a conversation without an assistant message was left out": 1}


# 11, 22: mini-swe-agent


def test_a_fenced_command_is_a_call_and_its_output_the_response():
    task = only(imported("11-mini-swe-agent-v1-misread/in.json"))
    (call,) = task.turns[0].calls
    assert (call.tool, call.cursor) == ("bash", 0)
    assert 1_300 < call.response_tokens < 1_500
    assert task.turns[0].text == "THOUGHT: look"


def test_a_return_code_tells_a_failed_command(tmp_path):
    value = document("11-mini-swe-agent-v1-misread/in.json")
    value[3]["content"] = value[3]["content"].replace("<returncode>0", "<returncode>127")
    assert only(read(tmp_path, value)).turns[0].calls[0].error == "<returncode>127</returncode>"


def test_usage_times_and_return_codes_of_version_2_are_read():
    """Calls of 1,000 + 20 and 2,500 + 5 tokens; the tool answered 2 s after the output, with code 1."""
    report = imported("22-mini-v2-usage-and-times-ignored/mini_v2_noexit.json")
    task = only(report)
    assert prompts(task) == [1_000, 2_500]
    assert (task.turns[0].output_tokens, task.answer.output_tokens) == (20, 5)
    (call,) = task.turns[0].calls
    assert (call.latency_s, call.error, call.cursor) == (2, "returncode 1", None)
    assert (task.carries.timing, task.carries.usage) == ("recorded", "recorded")


def test_a_last_message_of_the_role_exit_is_no_prompt():
    task = only(imported("22-mini-v2-usage-and-times-ignored/mini_v2.json"))
    assert (prompts(task), task.outcome.finish) == ([1_000], "answer")
    assert task.turns[0].calls[0].response_tokens > 1_300


def test_a_chat_without_any_call_says_that_nothing_can_be_evicted(tmp_path):
    report = read(tmp_path, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    assert report.warnings["a recording without any tool call: nothing in it can be evicted"] == 1


# 16: tool definitions


@pytest.mark.parametrize("key", ["tools", "functions"])
def test_tool_definitions_are_part_of_the_prefix(key, tmp_path):
    """20 definitions of 1,200 characters and a system text of 2,100: some 5,000 to 8,000 tokens and 504."""
    value = json.loads((FAULTS / "16-tools-definitions-dropped/in.jsonl").read_text())
    with_tools = only(imported("16-tools-definitions-dropped/in.jsonl"))
    value[key] = value.pop("tools")
    assert only(read(tmp_path, value)).prefix == with_tools.prefix
    assert 5_000 < with_tools.prefix.tokens < 8_000
    del value[key]
    assert 450 < only(read(tmp_path, value)).prefix.tokens < 600


# 18: errors


@pytest.mark.parametrize(
    "response",
    ["error handling is in a.py:12\nerror codes in b.py", "Exceptions are raised in a.py", "errors: none", "Error codes are in b.py",
     "traceback.py", "a.py:3: ValueError: x", '{"error": null, "rows": 3}', '{"errors": 0}', ""],
)  # fmt: skip
def test_a_word_is_no_failure(response, tmp_path):
    value = document("18-error-by-prefix-word/in.json")
    value["messages"][2]["content"] = response
    (call,) = only(read(tmp_path, value)).turns[0].calls
    assert (call.error, call.cursor) == (None, 0)


@pytest.mark.parametrize(
    "response",
    ["Error: user not found", "ERROR - no such file", "Traceback (most recent call last):\n  File", "KeyError: 'x'", "Exception: boom",
     '{"error": "no access"}', "Error\nno such file"],
)  # fmt: skip
def test_a_title_is_a_failure(response, tmp_path):
    value = document("18-error-by-prefix-word/in.json")
    value["messages"][2]["content"] = response
    (call,) = only(read(tmp_path, value)).turns[0].calls
    assert (call.error, call.cursor) == (response.split("\n")[0], None)


# 20: refusals


def test_a_refusal_names_the_format_and_what_to_do():
    with pytest.raises(TraceError, match="Claude Code's stream-json output") as caught:
        imported("20-refusal-names-nothing/streamjson.jsonl")
    assert caught.value.fix.startswith("import the session")


def test_a_list_of_responses_items_is_imported():
    task = only(imported("20-refusal-names-nothing/responses_items.json"))
    (call,) = task.turns[0].calls
    assert (call.tool, call.response_text, task.answer.text) == ("bash", "x", "done")


def test_a_codex_rollout_without_a_model_call_is_named_as_such():
    with pytest.raises(TraceError, match="no model was called in it"):
        imported("20-refusal-names-nothing/codex.jsonl")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"resourceSpans": []}, "OTLP"),
        ({"trajectory": [], "history": [], "info": {}}, "SWE-agent"),
        ({"log": {"entries": []}}, "HAR"),
    ],
)
def test_formats_known_by_sight_are_named(value, says, tmp_path):
    with pytest.raises(TraceError, match=says):
        read(tmp_path, value)


@pytest.mark.parametrize("name", ["good.jsonl.gz", "good.jsonl"])
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_text_is_read_whatever_its_name(name, pack, tmp_path):
    whole = only(imported("20-refusal-names-nothing/good.jsonl.gz"))
    plain = gzip.decompress((FAULTS / "20-refusal-names-nothing/good.jsonl.gz").read_bytes())
    (tmp_path / name).write_bytes(pack(plain))
    assert only(import_files([tmp_path / name])).turns == whole.turns
    assert only(import_files([tmp_path])).turns == whole.turns


def test_gzip_that_is_cut_short_is_named(tmp_path):
    packed = (FAULTS / "20-refusal-names-nothing/good.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(TraceError, match=r"cut\.jsonl\.gz: the gzip stream is cut short"):
        import_files([tmp_path / "cut.jsonl.gz"])


# 21: call ids


def test_a_call_id_that_is_used_again_closes_the_call_that_nobody_answered():
    report = imported("21-call-id-reused-after-interrupt/in.json")
    first, second = only(report).turns
    assert first.calls == ()
    assert [(call.tool, call.response_text) for call in second.calls] == [("b", "2")]
    assert changes(report) == {"a tool call without a response counts as text": 1}


def test_parallel_calls_of_one_id_are_answered_in_order(tmp_path):
    value = document("21-call-id-reused-after-interrupt/in.json")
    value["messages"][3]["tool_calls"] *= 2
    value["messages"].insert(5, {"role": "tool", "tool_call_id": "call_0", "content": "3"})
    assert [call.response_text for call in only(read(tmp_path, value)).turns[1].calls] == ["2", "3"]


def test_a_response_whose_call_is_nowhere_is_a_user_s_text(tmp_path):
    value = document("21-call-id-reused-after-interrupt/in.json")
    value["messages"][4]["tool_call_id"] = "call_9"
    report = read(tmp_path, value)
    assert only(report).turns[1].template_text == "2"
    assert changes(report)["a tool response whose call is not in the recording counts as a user's text"] == 1
