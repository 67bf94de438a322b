# SPDX-License-Identifier: Apache-2.0
"""Recordings of servers: conversations, shared beginnings, token ids, and faults of the log."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.formats.served.prefixes import shared_prefixes
from sqsim.trace.importing import import_files

HEAD = {
    "ev": "start",
    "schema": "sqreal_log/1",
    "log": "a",
    "file": 0,
    "removed": 0,
    "t": 10.0,
    "wall": 1000.0,
    "model": "tiny",
}


def called(rid, prompt, output, begins=11.0, ends=12.0, cached=0, **more):
    """The two lines of a request."""
    why = more.pop("why", "stop")
    return [
        {"ev": "arrive", "t": begins, "rid": rid, "n": len(prompt), "ids": list(prompt), **more},
        {"ev": "end", "t": ends, "rid": rid, "cached": cached, "why": why, "ids": list(output)},
    ]


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def imported(path, *lines, **options):
    return import_files([write(path / "r.jsonl", HEAD, *lines)], references="none", **options)


def whole(task):
    """The prompts of a task's steps, by its token ids."""
    prompt = [*(task.prefix.token_ids or ()), *task.question.token_ids]
    found = [list(prompt)]
    for turn in task.turns:
        if turn.reset is not None:
            prompt = [*(task.prefix.token_ids or ()), *turn.reset.keep_token_ids]
            found[-1] = list(prompt)
        prompt += turn.text_token_ids
        for call in turn.calls:
            prompt += call.call_token_ids
        prompt += turn.template_token_ids or ()
        for call in turn.calls:
            prompt += call.response_token_ids
        found.append(list(prompt))
    return found


def test_requests_without_a_session_are_threaded_by_their_longest_beginning(tmp_path):
    system = list(range(100, 140))
    a1, b1 = [*system, 1], [*system, 2]
    a2, b2 = [*a1, 7, 8, 50, 51], [*b1, 9, 60]
    report = imported(
        tmp_path,
        *called("a1", a1, [7, 8], 11, 12),
        *called("b1", b1, [9], 11.5, 12.5),
        *called("b2", b2, [3], 14, 15),
        *called("a2", a2, [4], 16, 17),
    )
    assert [task.task_id for task in report.tasks] == ["a1", "b1"]
    assert [whole(task) for task in report.tasks] == [[a1, a2], [b1, b2]]
    assert {(task.prefix.id, task.prefix.tokens) for task in report.tasks} == {(report.tasks[0].prefix.id, 40)}
    assert [task.turns[0].calls[0].latency_s for task in report.tasks] == [4.0, 1.5]
    assert [task.arrival_s for task in report.tasks] == [0.0, 0.5]


def test_sessions_are_never_mixed(tmp_path):
    prompt = list(range(50))
    lines = [
        *called("1", prompt, [1], 11, 12, session="x"),
        *called("2", [*prompt, 1, 2], [3], 13, 14, session="y"),
        *called("3", [*prompt, 1, 5], [3], 15, 16, session="x"),
    ]
    assert [task.steps for task in imported(tmp_path, *lines).tasks] == [2, 1]


def test_one_that_came_before_the_end_does_not_continue(tmp_path):
    """It cannot have known the answer."""
    prompt = list(range(50))
    lines = [*called("1", prompt, [1], 11, 15), *called("2", [*prompt, 1, 2], [3], 12, 16)]
    assert [task.steps for task in imported(tmp_path, *lines).tasks] == [1, 1]


def test_tools_are_named_and_sized_by_the_client(tmp_path):
    prompt = list(range(50))
    tools = [{"name": "search", "tokens": 2}, {"name": "open", "tokens": 3}]
    later = [*prompt, 1, 1, 1, 1, 70, 71, 72, 73, 74, 75]
    report = imported(tmp_path, *called("1", prompt, [1] * 4), *called("2", later, [3], 13, 14, tools=tools))
    [turn] = report.tasks[0].turns
    assert [(call.tool, call.response_token_ids) for call in turn.calls] == [
        ("search", (71, 72)),
        ("open", (73, 74, 75)),
    ]
    assert turn.template_token_ids == (70,)
    assert all(call.parallel for call in turn.calls)


def test_no_tools_mean_a_user(tmp_path):
    prompt = list(range(50))
    report = imported(tmp_path, *called("1", prompt, [1]), *called("2", [*prompt, 1, 9], [3], 13, 14, tools=[]))
    [turn] = report.tasks[0].turns
    assert (turn.calls, turn.template_token_ids, turn.user_wait_s) == ((), (9,), 1.0)
    assert "a recording without any tool call: nothing in it can be evicted" in report.warnings


def test_a_compaction_is_a_reset(tmp_path):
    prompt, after = list(range(300)), [*range(20), *range(900, 950)]
    report = imported(
        tmp_path,
        *called("1", prompt, [1], session="s"),
        *called("2", after, [3], 13, 14, session="s"),
        *called("3", [*after, 3, 4], [3], 15, 16, session="s"),
    )
    assert whole(report.tasks[0]) == [prompt, after, [*after, 3, 4]]
    assert report.warnings["prompt tokens recorded"] == 300 + 70 + 72


def test_an_answer_that_comes_back_in_other_tokens_keeps_the_counts(tmp_path):
    prompt = list(range(300))
    report = imported(
        tmp_path, *called("1", prompt, [1, 2, 3]), *called("2", [*prompt, 1, 9, 9, 5, 6], [3], 13, 14)
    )
    [turn] = report.tasks[0].turns
    assert turn.output_tokens == 3
    assert turn.calls[0].response_tokens == 2
    assert turn.calls[0].response_token_ids is None
    assert any("in other tokens" in note for note in report.warnings)


def test_what_is_left_out_is_counted(tmp_path):
    prompt = list(range(20))
    report = imported(
        tmp_path,
        *called("1", prompt, [1]),
        *called("0123abcd/warm1.0/", prompt, [1]),
        *called("HEALTH_CHECK_1", prompt, [1]),
        *called("2", prompt, [], why="abort"),
        called("3", prompt, [1])[0],
        called("4", prompt, [1])[1],
        {"ev": "lost", "events": 3, "why": "the queue was full"},
        {"ev": "flush", "t": 20.0},
        {"ev": "new"},
        *called("5", prompt, [1], 21, 22, fault="sqreal_log: ..", fork="s"),
    )
    expected = {
        "a request of a warm-up or health check was left out": 2,
        "a request that was aborted or refused before its first token was left out": 1,
        "a request that had not ended when the recording did was left out": 1,
        "the end of a request whose arrival was not recorded was left out": 1,
        "an event was lost by the recorder: the queue was full": 3,
        "the server's cache was emptied while it was recorded; no trace can say so": 1,
        "a line of an unknown kind was left out": 1,
        "what a client told the recorder was wrong and is left out": 1,
        "a fork (aux thread) of a session is a task of its own": 1,
    }
    assert {note: times for note, times in report.warnings.items() if note in expected} == expected


def test_files_of_one_server_are_read_together(tmp_path):
    """A request arrives in one and ends in the next; a file given twice counts once."""
    first, last = called("1", range(20), [1])
    write(tmp_path / "0.jsonl", HEAD, first)
    write(tmp_path / "1.jsonl", {**HEAD, "file": 1}, last)
    write(tmp_path / "copy.jsonl", HEAD, first)
    write(tmp_path / "other.jsonl", {**HEAD, "log": "b"}, *called("x", range(30), [1]))
    report = import_files([tmp_path], references="none")
    assert [task.steps for task in report.tasks] == [1, 1]
    assert report.warnings["a file of a recording that was given twice was left out"] == 1


def test_a_torn_last_line_ends_the_file(tmp_path):
    path = write(tmp_path / "r.jsonl", HEAD, *called("1", range(20), [1]))
    with path.open("a") as file:
        file.write('{"ev":"arrive","t":13.0,"rid":"2","ids":[1,2')
    report = import_files([path], references="none")
    assert len(report.tasks) == 1
    assert any("the last line is cut off" in note for note in report.warnings)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.lists(st.one_of(st.none(), st.integers(-5, 2**33), st.text(max_size=1)), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_odd_values_are_refused_by_place_or_counted(tmp_path_factory, data):
    """Never another exception, and never a task with tokens that were not there."""
    lines = [
        HEAD,
        *called("1", range(20), [1], tools=[{"name": "a", "tokens": 1}], session="s", fork=None),
        {"ev": "arrive", "t": 13.0, "rid": "2", "n": 21, "after": "1", "keep": 20, "ids": [4]},
        {"ev": "end", "t": 14.0, "rid": "2", "cached": 3, "ids": [5], "n_in": 21, "retracted": 0},
        {"ev": "lost", "events": 1, "why": "x"},
    ]
    place = data.draw(st.integers(0, len(lines) - 1))
    key = data.draw(st.sampled_from(sorted(lines[place])))
    odd = dict(lines[place])
    if data.draw(st.booleans()):
        odd[key] = data.draw(ODD)
    else:
        del odd[key]
    lines[place] = odd
    path = tmp_path_factory.mktemp("odd") / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        report = import_files([path], format="sqreal_log", references="none")
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017 - a refusal is one of two right ends
        return
    assert all(task.steps for task in report.tasks)


# Prefixes.


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=60), min_size=1, max_size=8))
def test_a_prefix_is_shared_and_leaves_a_question(prompts):
    ids = [array("i", [7] * 20 + prompt) for prompt in prompts]
    found = shared_prefixes(ids, [len(each) for each in ids])
    groups = {}
    for prompt, tokens in zip(ids, found, strict=True):
        assert 0 <= tokens < len(prompt)
        groups.setdefault(tuple(prompt[:tokens]), []).append(prompt)
    for prefix, members in groups.items():
        assert not prefix or len(members) > 1


def test_two_kinds_of_agents_have_two_prefixes():
    one, other = [1] * 16 + [2] * 100, [1] * 16 + [3] * 50
    ids = [array("i", [*start, *rest]) for start in (one, other) for rest in ([7, 7], [8, 8], [9, 9])]
    assert shared_prefixes(ids, [10**6] * 6) == [116] * 3 + [66] * 3


@pytest.mark.parametrize("limit", [0, 15, 40])
def test_a_prefix_keeps_to_its_limit(limit):
    ids = [array("i", [1] * 50 + [number]) for number in (1, 2)]
    assert shared_prefixes(ids, [limit, 10**6]) == [limit if limit >= 16 else 0] * 2
