# SPDX-License-Identifier: Apache-2.0
"""Claude Code sessions against the events of the files, and the traps of the format (FORMATS.md).

Usage was read with `jq -r 'select(.type=="assistant") | [.message.id, .message.usage.input_tokens, ...]'`, times and
block types by eye from the same lines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files
from sqsim.trace.references import references
from sqsim.trace.schema import Carries, Spawn
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.reports import changes

ROOT = Path(__file__).parents[3]
SESSION = ROOT / "traces/claude_code/session.jsonl"
NO_USAGE = ROOT / "tests/data/traces/claude_code_no_usage.jsonl"

# input + cache creation + cache read, and output, of the ten message ids
PROMPTS = [32_272, 35_740, 38_592, 41_131, 41_589, 42_876, 44_901, 45_279, 47_508, 48_305]
OUTPUTS = [931, 1_016, 2_475, 117, 1_275, 273, 232, 2_162, 90, 852]


@pytest.fixture(scope="module")
def session():
    (task,) = import_files([SESSION]).tasks
    return task


def test_lines_of_one_message_id_are_one_call_and_usage_is_exact(session):
    assert prompts(session) == PROMPTS
    assert [turn.output_tokens for turn in session.turns] + [session.answer.output_tokens] == OUTPUTS
    assert session.carries == Carries(
        text="recorded", timing="recorded", usage="recorded", references="derived"
    )
    assert (session.model, session.outcome.finish) == ("claude-opus-4-8", "answer")


def test_tools_and_their_latencies_are_those_of_the_events(session):
    """Emitted and answered, by eye: Bash 30.836 -> 31.696, WebSearch 31.647 -> 50.938, ..."""
    calls = [(call.tool, call.latency_s) for turn in session.turns for call in turn.calls]
    assert calls == [
        ("Bash", 0.86),
        ("WebSearch", 19.291),
        ("WebSearch", 12.688),
        ("Write", 21.467),
        ("Bash", 0.145),
        ("WebSearch", 16.113),
        ("WebFetch", 2.521),
        ("Write", 0.13),
        ("Bash", 0.187),
    ]
    assert [call.parallel for call in session.turns[0].calls] == [True, True]
    assert session.turns[0].tool_wait_s == 19.291
    assert all(not call.parallel for turn in session.turns[1:] for call in turn.calls)


def test_a_user_s_second_question_is_a_turn_without_calls(session):
    """The first answer ended at 05:42:23.420, the user wrote at 05:42:43.333; 42876-41589-1275 = 12 tokens came in."""
    turn = session.turns[4]
    assert turn.calls == ()
    assert turn.user_wait_s == pytest.approx(19.913)
    assert (turn.template_tokens, turn.template_text) == (12, "add another model qwen3 32b")


def test_what_the_server_had_cached_before_the_session_is_the_shared_prefix(session):
    """cache_read_input_tokens of the first call: 27,217."""
    assert session.prefix.tokens == 27_217
    assert session.prefix.id == "claude_code:2.1.157:claude-opus-4-8:27217"
    assert session.question.tokens == 32_272 - 27_217


def test_hidden_thinking_is_what_the_visible_output_does_not_explain(session):
    """Call 0 thinks, says 116 characters and makes two small calls with 931 tokens; call 3 is a call without thinking."""
    first = session.turns[0]
    assert first.reasoning_text is None
    assert 700 < first.reasoning_tokens < 900
    assert session.turns[3].reasoning_tokens == 0
    assert session.turns[3].calls[0].call_tokens == 117


def test_a_session_without_usage_is_estimated():
    """By eye: Write, Bash, then a user's line and a last answer; every step 5 s, the user after 40 s."""
    (task,) = import_files([NO_USAGE]).tasks
    assert [[call.tool for call in turn.calls] for turn in task.turns] == [["Write"], ["Bash"]]
    assert [turn.tool_wait_s for turn in task.turns] == [5, 5]
    assert (task.turns[1].user_wait_s, task.turns[1].template_text) == (40, "Now add a goodbye function")
    assert task.answer.text == "Done! The hello function is ready."
    assert task.task_id == "test-session-id"
    assert task.carries.usage == "derived"
    assert task.question.text == "Create a hello world function"


class Log:
    """Events of a session, a second apart."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.usage = True

    def add(self, kind: str, message: dict | None = None, at: float | None = None, **more) -> Log:
        second = len(self.lines) if at is None else at
        event = {
            "type": kind,
            "uuid": f"u{len(self.lines)}",
            "sessionId": "s",
            "timestamp": f"2026-01-01T00:00:{second:06.3f}Z",
            **more,
        }
        if message is not None:
            event["message"] = message
        self.lines.append(json.dumps(event))
        return self

    def says(self, name: str, *blocks: dict, prompt: int = 0, output: int = 0, **more) -> Log:
        message = {"id": name, "role": "assistant", "model": "m", "content": list(blocks)}
        if prompt:
            message["usage"] = {"input_tokens": prompt, "output_tokens": output}
        return self.add("assistant", message, **more)

    def hears(self, content: str | list, **more) -> Log:
        return self.add("user", {"role": "user", "content": content}, **more)

    def imported(self, tmp_path):
        path = tmp_path / "s.jsonl"
        path.write_text("\n".join(self.lines) + "\n")
        return import_files([path])


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def use(name: str, tool: str = "Bash", **given) -> dict:
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


def result(name: str, content: str | list = "ok", **more) -> dict:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def test_early_lines_of_a_message_hold_partial_usage(tmp_path):
    """FORMATS.md: output_tokens is 1-2 on early lines of a message; the last line counts."""
    log = (
        Log()
        .hears("hi")
        .says("m1", text("a"), prompt=100, output=1)
        .says("m1", text("b"), prompt=100, output=60)
    )
    (task,) = log.imported(tmp_path).tasks
    assert task.steps == 1
    assert task.answer.output_tokens == 60
    assert task.answer.text == "ab"


def test_usage_that_stays_partial_is_estimated_and_counted(tmp_path):
    report = Log().hears("hi").says("m1", text("word " * 200), prompt=100, output=2).imported(tmp_path)
    assert report.tasks[0].answer.output_tokens > 150
    assert changes(report) == {"a recorded output is shorter than its own text (partial usage); estimated": 1}


def test_results_between_the_lines_of_a_message_belong_to_it(tmp_path):
    log = Log().hears("hi").says("m1", use("a")).hears([result("a")]).says("m1", use("b")).hears([result("b")])
    (task,) = log.says("m2", text("done")).imported(tmp_path).tasks
    assert [len(turn.calls) for turn in task.turns] == [2]
    assert [call.parallel for call in task.turns[0].calls] == [False, False], (
        "b was called after a had answered"
    )


def test_a_failed_result_takes_no_cursor(tmp_path):
    log = Log().hears("hi").says("m1", use("a"), use("b"))
    log.hears([result("a", "Exit code 1\nboom", is_error=True), result("b", [text("one"), text("two")])])
    (task,) = log.says("m2", text("done")).imported(tmp_path).tasks
    failed, good = task.turns[0].calls
    assert (failed.error, failed.cursor, failed.response_text) == ("Exit code 1", None, "Exit code 1\nboom")
    assert (good.error, good.cursor, good.response_text) == (None, 0, "onetwo")


def test_references_are_found_in_calls_and_answers(tmp_path):
    log = Log().hears("find it").says("m1", use("a")).hears([result("a", "see /srv/app/main.py")])
    log.says("m2", use("b", "Read", file_path="/srv/app/main.py")).hears([result("b", "token_id 998877")])
    (task,) = log.says("m3", text("It is 998877.")).imported(tmp_path).tasks
    assert references(task) == {0: [1], 1: [2]}


def test_a_compaction_restarts_the_context(tmp_path):
    log = Log().hears("hi").says("m1", use("a"), prompt=900, output=50).hears([result("a", "file_77x")])
    log.add("system", subtype="compact_boundary").hears("Summary: file_77x", isCompactSummary=True)
    log.says("m2", use("b", path="file_77x"), prompt=300, output=20).hears([result("b")])
    (task,) = log.says("m3", text("done"), prompt=350, output=9).imported(tmp_path).tasks
    assert prompts(task) == [900, 300, 350]
    assert task.turns[1].reset.keep_text == "Summary: file_77x"
    assert references(task)[0] == [], "what the summary says is nobody's response"


def test_a_compaction_without_usage_keeps_the_summary_s_estimate(tmp_path):
    log = Log().hears("hi").says("m1", use("a")).hears([result("a", "long " * 500)])
    log.add("system", subtype="compact_boundary").hears("Summary of all", isCompactSummary=True)
    (task,) = log.says("m2", use("b")).hears([result("b")]).says("m3", text("done")).imported(tmp_path).tasks
    before, after, _ = prompts(task)
    assert task.turns[1].reset.keep_tokens == 3 + 8
    assert after == task.prefix.tokens + 11
    assert before == task.prefix.tokens + task.question.tokens


def side(log: Log, **more) -> Log:
    """A sub-agent of two calls, from second 2 to second 5."""
    log.hears("look around", isSidechain=True, at=2, parentUuid=None, **more)
    for at, block in ((3, use("c", "Read")), (5, text("found"))):
        log.says(f"side{at}", block, at=at, isSidechain=True, parentUuid=f"u{len(log.lines) - 1}", **more)
        if at == 3:
            parent = f"u{len(log.lines) - 1}"
            log.hears([result("c")], at=4, isSidechain=True, parentUuid=parent, **more)
    return log


@pytest.mark.parametrize("agent", [{}, {"agentId": "a1"}])
def test_a_sidechain_is_a_sub_agent(tmp_path, agent):
    """The call took 6 s, of which its sub-agent ran until second 5: 2 s are the call's own."""
    log = Log().hears("hi").says("m1", use("t", "Task", prompt="look around"))
    side(log, **agent).hears([result("t", "found")], at=7)
    report = log.says("m2", text("done")).imported(tmp_path)
    main, child = report.tasks
    assert child.task_id == ("s/a1" if agent else "s/agent-0")
    assert child.spawn == Spawn(turn=0, join_turn=1)
    assert (child.steps, child.question.text) == (2, "look around")
    assert (main.steps, main.turns[0].tool_wait_s, main.turns[0].user_wait_s) == (2, 0, 2)
    assert changes(report) == {}


def test_a_file_of_one_sub_agent_is_a_task(tmp_path):
    report = side(Log(), agentId="a1").imported(tmp_path)
    assert [task.task_id for task in report.tasks] == ["s/a1"]
    assert changes(report) == {"sub-agents without their parent's session are tasks of their own": 1}


def test_a_sub_agent_that_nobody_called_is_a_task_of_its_own(tmp_path):
    log = side(Log().hears("hi").says("m1", use("t", "Bash")).hears([result("t")])).says("m2", text("done"))
    report = log.imported(tmp_path)
    assert [(task.task_id, task.parent, task.arrival_s) for task in report.tasks] == [
        ("s", None, 0),
        ("s/agent-0", None, 2),
    ]
    assert changes(report) == {"a sub-agent that no call of its session started is a task of its own": 1}


def test_the_client_s_error_messages_are_no_calls(tmp_path):
    log = Log().hears("hi").says("m1", text("hello"))
    log.add("assistant", {"id": "x", "model": "<synthetic>", "content": [text("API Error")]})
    report = log.imported(tmp_path)
    assert report.tasks[0].steps == 1
    assert changes(report) == {"an error message of the client was left out": 1}


def test_a_call_that_nobody_answered_is_output(tmp_path):
    """The session was interrupted: what followed the last call is not recorded."""
    report = Log().hears("hi").says("m1", use("a"), prompt=50, output=30).imported(tmp_path)
    (task,) = report.tasks
    assert task.turns == ()
    assert task.answer.output_tokens == 30
    assert task.outcome.finish == "unknown"
    assert changes(report) == {"a tool call without a response counts as text": 1}


FAULTS = {
    "no timestamp": (lambda log: log.hears("x", timestamp=None), "timestamp", "None is not a text"),
    "bad timestamp": (lambda log: log.hears("x", timestamp="noon"), "timestamp", "'noon' is not a time"),
    "negative usage": (
        lambda log: log.says("m9", text("x"), prompt=5, output=-1),
        "message.usage.output_tokens",
        "-1 is not a token count",
    ),
    "no message": (lambda log: log.add("user"), "message", "is missing"),
    "content of a strange type": (
        lambda log: log.hears([result("a", 5)]),
        "message.content[0].content",
        "int is neither text nor a list",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_bad_event_is_named(tmp_path, case):
    change, field, message = FAULTS[case]
    log = Log().hears("hi").says("m1", use("a"))
    change(log)
    with pytest.raises(TraceError) as caught:
        log.imported(tmp_path)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert message in caught.value.problem


def test_a_session_without_a_model_call_holds_no_task(tmp_path):
    with pytest.raises(TraceError, match="no model was called in it"):
        Log().hears("hi").imported(tmp_path)
