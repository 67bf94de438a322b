# SPDX-License-Identifier: Apache-2.0
"""OpenAI chat and ReAct text against counts read from the files, and what messages can get wrong.

tau-bench was read with `jq '[.[]|[.task_id, ([.traj[]|select(.role=="assistant")]|length), ...]]'`, WebDancer by eye.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files
from sqsim.trace.references import references
from sqsim.trace.schema import Carries
from sqsim.trace.statistics import prompts
from sqsim.trace.store import write_tasks
from tests.sqsim.trace.reports import changes

TRACES = Path(__file__).parents[3] / "traces"

# task id: assistant messages, tool messages, of these beginning with "Error", reward, role of the last message
TAU = {
    0: (15, 8, 1, 0, "user"), 1: (5, 0, 0, 0, "user"), 2: (11, 7, 0, 0, "user"), 4: (12, 6, 0, 0, "tool"),
    5: (12, 6, 0, 0, "user"), 6: (11, 6, 0, 1, "user"), 7: (12, 5, 0, 0, "user"), 8: (8, 0, 0, 0, "user"),
    11: (17, 10, 1, 1, "user"), 12: (7, 2, 0, 1, "user"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tau():
    return import_files([TRACES / "tau_bench/airline_gpt4o.json"])


@pytest.fixture(scope="module")
def webdancer():
    return import_files([TRACES / "webdancer/sample_traj_cut.jsonl"])


def test_every_conversation_is_a_task(tau):
    assert [task.task_id for task in tau.tasks] == [f"airline_gpt4o:{number}.0" for number in TAU]


@pytest.mark.parametrize("number", TAU)
def test_counts_are_those_of_the_file(tau, number):
    assistant, tools, errors, reward, last = TAU[number]
    task = next(t for t in tau.tasks if t.task_id == f"airline_gpt4o:{number}.0")
    calls = [call for turn in task.turns for call in turn.calls]
    assert task.steps == assistant
    assert len(calls) == tools
    assert sum(call.error is not None for call in calls) == errors
    assert [c.cursor for c in calls if c.cursor is not None] == list(range(tools - errors))
    assert task.outcome.correct is bool(reward)
    assert (task.answer is None) == (last == "tool"), (
        "a response that nobody read ends the recording with a turn"
    )


def test_a_last_user_message_is_read_by_nobody(tau):
    """Nine of the ten end with the user's ###STOP###."""
    assert tau.warnings == {"a last user message that no model call reads was left out": 9}
    assert not any("###STOP###" in (turn.template_text or "") for task in tau.tasks for turn in task.turns)


def test_the_system_message_is_a_shared_prefix(tau):
    assert len({task.prefix for task in tau.tasks}) == 1
    assert tau.tasks[0].prefix.text.startswith("# Airline Agent Policy")


def test_references_of_the_first_tau_conversation(tau):
    """By eye, task 0: response 0 is the profile of mia_li_3668, whose certificate_7504069 the booking pays with."""
    task = tau.tasks[0]
    assert task.turns[2].calls[0].tool == "get_user_details"
    booking = next(
        i for i, turn in enumerate(task.turns) if any(c.tool == "book_reservation" for c in turn.calls)
    )
    assert "certificate_7504069" in task.turns[2].calls[0].response_text
    assert "certificate_7504069" in task.turns[booking].calls[0].call_text
    assert booking in references(task)[0]


def test_what_chats_carry(tau, webdancer):
    chat = Carries(text="recorded", timing="synthesised", usage="derived", references="derived")
    assert {task.carries for task in [*tau.tasks, *webdancer.tasks]} == {chat}


def test_webdancer_rows_are_searches_and_visits(webdancer):
    """By eye: each of the three rows is search, visit, answer."""
    assert [task.steps for task in webdancer.tasks] == [3, 3, 3]
    assert [[c.tool for turn in task.turns for c in turn.calls] for task in webdancer.tasks] == [
        ["search", "visit"]
    ] * 3
    assert all(task.outcome.finish == "answer" for task in webdancer.tasks)
    task = webdancer.tasks[2]
    assert task.question.text == (
        "What is the typical jersey number associated with the key position and role of a fly-half in a rugby team?"
    )
    assert task.turns[0].reasoning_text.startswith("Okay, I need to figure out")
    assert task.turns[0].calls[0].response_text.startswith("A Google search for")
    assert task.answer.text.endswith("\\boxed{10}.")
    assert references(task) == {0: [1], 1: [2]}, (
        "the visit names a URL of the search, the answer a number of the page"
    )


def chat(tmp_path, *messages: dict, **row):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": list(messages), **row}) + "\n")
    return import_files([path])


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def says(text: str | None = None, *calls: tuple[str, str, str], **more) -> dict:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {}), **more}


def tool(call_id: str, text: str, **more) -> dict:
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def test_parallel_calls_are_matched_by_id(tmp_path):
    report = chat(
        tmp_path, user("q"), says(None, ("a", "f", "{}"), ("b", "g", "{}")), tool("b", "for g"), tool("a", "for f"), says("x")
    )  # fmt: skip
    (task,) = report.tasks
    calls = task.turns[0].calls
    assert [(call.tool, call.response_text, call.parallel) for call in calls] == [
        ("f", "for f", True),
        ("g", "for g", True),
    ]


def test_other_shapes_of_calls_and_content_are_read(tmp_path):
    """Arguments as an object (tau2), content as parts, a legacy function_call, reasoning beside the content."""
    report = chat(
        tmp_path,
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "a", "name": "f", "arguments": {"x": 1}}]},
        {"role": "tool", "id": "a", "content": "1"},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "not json"}},
        {"role": "function", "name": "g", "content": "2"},
        says("done"),
    )  # fmt: skip
    (task,) = report.tasks
    assert (task.prefix.text, task.question.text) == ("rules", "q")
    assert [(c.call_text, c.response_text) for turn in task.turns for c in turn.calls] == [
        ('f({"x": 1})', "1"),
        ("g(not json)", "2"),
    ]
    assert task.turns[0].reasoning_text == "hm"


def test_gpt_oss_messages_are_merged_and_pages_are_references(tmp_path):
    """FORMATS.md: a recipient is a call, the tool message behind it its response; pages number themselves."""
    opened = {"cursor": 0, "id": 2}
    (task,) = chat(
        tmp_path,
        user("q"),
        {"role": "assistant", "channel": "analysis", "content": "let me search"},
        {
            "role": "assistant",
            "channel": "commentary",
            "recipient": "browser.search",
            "content": '{"query": "q"}',
        },
        {"role": "tool", "name": "browser.search", "content": "[0] Results"},
        {"role": "assistant", "recipient": "browser.open", "content": json.dumps(opened)},
        {"role": "tool", "name": "browser.open", "content": "Error: no link 2"},
        {"role": "assistant", "recipient": "browser.open", "content": '{"id": 1}'},
        {"role": "tool", "name": "browser.open", "content": "[1] Page"},
        {"role": "assistant", "channel": "final", "content": "So it is【1†L3】."},
    ).tasks
    assert task.steps == 4
    assert task.turns[0].reasoning_text == "let me search"
    assert [call.cursor for turn in task.turns for call in turn.calls] == [0, None, 1]
    assert references(task) == {0: [1, 2], 1: [3]}, "open without a cursor works on the latest page, which is 0"
    assert task.carries.references == "recorded"


def test_recorded_usage_is_used_where_every_message_has_it(tmp_path):
    def usage(prompt: int, output: int) -> dict:
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": output}}

    steps = [user("q"), says("a", **usage(100, 20)), user("more"), says("b", **usage(150, 10))]
    (task,) = chat(tmp_path, *steps).tasks
    assert task.carries.usage == "recorded"
    assert prompts(task) == [100, 150]
    assert (task.turns[0].output_tokens, task.turns[0].template_tokens) == (20, 30)
    steps[1].pop("usage")
    report = chat(tmp_path, *steps)
    assert report.tasks[0].carries.usage == "derived"
    assert changes(report) == {"usage is missing in a call; it was filled in from the calls around it": 1}
    assert report.usage == "recorded for 50 % of calls, estimated for 50 %"
    assert prompts(report.tasks[0])[1] == 150


def test_estimated_counts_add_up_to_the_texts(tmp_path):
    """4 tokens of markup a message: question 1 + 8; the turn: output 2, response 3, markup of response and next output."""
    (task,) = chat(
        tmp_path, user("why"), says("let me", ("a", "f", "{}")), tool("a", "one two three"), says("so")
    ).tasks
    assert (task.prefix.tokens, task.question.tokens) == (0, 1 + 8)
    assert (task.turns[0].text_tokens, task.turns[0].calls[0].response_tokens) == (2, 3)
    assert task.turns[0].template_tokens == 8


def test_an_empty_output_counts_as_one_token(tmp_path):
    report = chat(tmp_path, user("q"), says(""), user("hello?"), says("yes"))
    assert report.tasks[0].turns[0].output_tokens == 1
    assert changes(report) == {"an output of 0 tokens counts as 1": 1}


def test_half_a_character_is_replaced(tmp_path):
    """Recorders cut texts in the middle of an emoji; whole ones stay."""
    (task,) = chat(tmp_path, user("half \ud83d, whole \U0001f600"), says("a")).tasks
    assert task.question.text == "half \ufffd, whole \U0001f600"
    write_tasks(tmp_path / "t.jsonl", [task])


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_bare_list_of_messages_is_one_task(tmp_path, wrapped):
    messages = [user("q"), says("a")]
    path = tmp_path / "list.json"
    path.write_text(json.dumps([messages, messages] if wrapped else messages, indent=1))
    assert [task.steps for task in import_files([path]).tasks] == [1] * (1 + wrapped)


FAULTS = {
    "call without a name": (
        [user("q"), {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}],
        "messages[1].tool_calls[0].function.name",
    ),
    "content of a strange type": ([{"role": "user", "content": 5}, says("x")], "messages[0].content"),
    "usage below zero": (
        [user("q"), says("x", usage={"prompt_tokens": -1, "completion_tokens": 1})],
        "messages[1].usage.prompt_tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_bad_message_is_named(tmp_path, case):
    messages, field = FAULTS[case]
    with pytest.raises(TraceError) as caught:
        chat(tmp_path, *messages)
    assert (caught.value.line, caught.value.field) == (1, field)


def test_a_strange_role_makes_it_no_conversation(tmp_path):
    with pytest.raises(TraceError, match="no importer recognises it; it begins with an object with messages"):
        chat(tmp_path, {"role": "wizard", "content": "x"})
    with pytest.raises(TraceError, match="'wizard' is no role"):
        import_files([tmp_path / "chat.jsonl"], "openai_chat")


def test_conversations_without_a_model_call_are_left_out_and_counted(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(json.dumps({"messages": m}) for m in ([user("q")], [user("q"), says("a")])))
    report = import_files([path])
    assert len(report.tasks) == 1
    assert changes(report) == {"a conversation without an assistant message was left out": 1}


def react(tmp_path, *messages: dict):
    path = tmp_path / "react.jsonl"
    path.write_text(json.dumps({"messages": list(messages)}) + "\n")
    return import_files([path])


def test_react_tags_that_are_not_closed_or_not_json_are_read(tmp_path):
    """A cut output has an open tag; a call that is no JSON still is a call, of an unparsable tool."""
    report = react(
        tmp_path,
        user("q"),
        {"role": "assistant", "content": "<think>a</think>before<tool_call>{broken</tool_call>"},
        user("<tool_response>\nnope\n</tool_response>"),
        {"role": "assistant", "content": "<think>and so on"},
    )
    (task,) = report.tasks
    assert task.turns[0].text == "before"
    assert (task.turns[0].calls[0].tool, task.turns[0].calls[0].response_text) == ("unparsable", "nope")
    assert (task.answer.reasoning_text, task.answer.text) == ("and so on", None)
    assert task.outcome.finish == "unparsable"


def test_react_responses_go_to_calls_in_order_and_the_rest_is_the_user_s(tmp_path):
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    report = react(
        tmp_path,
        user("q"),
        {"role": "assistant", "content": call * 2},
        user("<tool_response>1</tool_response>hurry<tool_response>2</tool_response><tool_response>3</tool_response>"),
        {"role": "assistant", "content": "<answer>x</answer>"},
    )  # fmt: skip
    turn = report.tasks[0].turns[0]
    assert [call.response_text for call in turn.calls] == ["1", "2"]
    assert turn.template_text == "3\nhurry"
    assert changes(report) == {"a tool response without a call counts as user text": 1}
