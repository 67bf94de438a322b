# SPDX-License-Identifier: Apache-2.0
"""A live aux thread: what a model may write, what of it is taken for a decision, and what that changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.agent.aux_thread import NO_CURSOR, read_decision
from sqsim.agent.turn_loop import Finish
from sqsim.policies.base import Decision
from sqsim.policies.sidequest import SideQuest
from tests.sqsim.agent.test_turn_loop import Drive, loop
from tests.sqsim.tasks import chain

cursors = st.lists(st.integers(0, 10**18 - 1), max_size=6)
reasoning = st.text().filter(lambda text: "del_cursors" not in text)
space = st.text(" \t\r\n", max_size=3)


@st.composite
def lists(draw: st.DrawFn, named: st.SearchStrategy[list[int]] = cursors) -> tuple[str, list[int]]:
    """An object as a model may space it, with the key in quotes or without, and what it names."""
    names, quote = draw(named), draw(st.sampled_from(['"', ""]))
    parts = ["{", f"{quote}del_cursors{quote}", ":", "["]
    for place, name in enumerate(names):
        parts += [","] * bool(place) + [str(name)]
    return "".join(part + draw(space) for part in (*parts, "]")) + "}", names


@given(reasoning, lists(), reasoning)
def test_a_list_is_read_wherever_it_stands_in_the_text(before, written, after):
    """Braces, quotes and other JSON around it are the reasoning's own."""
    text, names = written
    assert read_decision(before + text + after) == Decision(tuple(dict.fromkeys(names)))


@given(reasoning, cursors)
def test_what_json_writes_is_read(before, names):
    assert read_decision(before + json.dumps({"del_cursors": names})).named == tuple(dict.fromkeys(names))


@given(st.text())
def test_any_text_is_a_decision_or_malformed_and_malformed_names_nothing(text):
    found = read_decision(text)
    assert not (found.malformed and found.named)
    assert found.malformed or "del_cursors" in text


@given(reasoning, st.lists(lists(), min_size=1, max_size=4), reasoning)
def test_of_several_lists_the_last_counts(between, written, after):
    assert read_decision(between.join(text for text, _ in written) + after).named == tuple(
        dict.fromkeys(written[-1][1])
    )


@given(lists(), st.data())
def test_a_list_that_was_cut_off_is_malformed_and_lets_no_earlier_one_stand(written, data):
    text, _ = written
    kept = data.draw(st.integers(text.index("del_cursors") + len("del_cursors"), len(text) - 1))
    assert read_decision('{"del_cursors": [1]} no, wait: ' + text[:kept]) == Decision(malformed=True)


@pytest.mark.parametrize(
    "items",
    [
        *(
            "true",
            "false",
            "null",
            "[1]",
            "{}",
            '"1"',
            "1.0",
            "1e2",
            "-1",
            "+1",
            "01",
            "0x1",
            "1 2",
            "1,",
            ",1",
        ),
        *("٣", "³", "１", "1_000", "1;2", "...", "NaN"),  # what Python or a reader takes for a number
    ],
)
def test_items_that_are_no_whole_numbers_are_malformed(items):
    for key in ('"del_cursors"', "del_cursors"):
        assert read_decision(f"{{{key}: [0, {items}]}}") == Decision(malformed=True)
        assert read_decision(f"{{{key}: [{items}]}}") == Decision(malformed=True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "del_cursors", "del_cursors: [1]", '"del_cursors": [1]', "{del_cursors [1]}", "{del_cursors: 1}"),
        *('{"del_cursors: [1]}', '{del_cursors": [1]}', "{'del_cursors': [1]}", '{"xdel_cursors": [1]}'),
        *('{"del_cursors2": [1]}', '{"del_cursors": [1], "why": "old"}', '{"why": "old", "del_cursors": [1]}'),
        *('{"del_cursors": [1]', '{"del_cursors": [1', '{"del_cursors": [1]]}', "{del_cursors: {1}}", "[1]"),
        '{"del_cursors": [1]} is how I would write del_cursors',
    ],
)
def test_what_is_not_the_object_of_the_paper_is_malformed(text):
    assert read_decision(text) == Decision(malformed=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Cursors 0 and 3 are stale. {del_cursors: [0, 3]}", (0, 3)),  # as the paper prints it
        ('{"del_cursors": []}', ()),  # nothing is stale: a decision too
        ('{"a": {"del_cursors": [2]}}', (2,)),
        ('{{"del_cursors": [2]}}', (2,)),
        ('```json\n{"del_cursors": [2]}\n```', (2,)),
        ('{"del_cursors": [3, 1, 3]}', (3, 1)),
        ('{"del_cursors": [true]} {"del_cursors": [4]}', (4,)),
    ],
)
def test_known_texts(text, named):
    assert read_decision(text) == Decision(named)


@given(st.integers(19, 5000))
def test_a_huge_number_is_a_cursor_that_no_task_has(digits):
    assert read_decision(f'{{"del_cursors": [2, {"9" * digits}, 3]}}') == Decision((2, NO_CURSOR, 3))


def test_a_text_that_says_it_a_hundred_thousand_times_is_read_at_once():
    """No backtracking: a model that repeats itself must not hold up a run."""
    assert read_decision("{del_cursors: [" * 100_000).malformed
    assert read_decision("{" + " " * 100_000 + "del_cursors:" + " " * 100_000 + "[" + "1, " * 100_000).malformed


# In the loop.


def live(turns: int, *texts: str, policy: SideQuest | None = None) -> Drive:
    """A task whose aux threads write these texts, each before the turn ends in which it started."""
    drive, said = Drive(loop(chain(turns), policy or SideQuest(k=2), trigger_tokens=7)), iter(texts)
    while not isinstance(drive.log[-1], Finish):
        drive.main()
        if drive.living and not drive.living[-1].finished:
            drive.loop.aux_ended(drive.living[-1], next(said, "nothing to say"))
        if not isinstance(drive.log[-1], Finish):
            drive.tools()
    return drive


def test_a_live_thread_has_no_output_before_it_has_ended_and_its_own_trigger():
    drive = Drive(loop(chain(4), SideQuest(k=2), trigger_tokens=7))
    drive.turn()
    drive.turn()
    drive.main()
    (aux,) = drive.living
    assert (aux.output, aux.decision, aux.seen) == (None, None, frozenset({0, 1}))
    assert aux.prompt[-1].stop == 7


def test_what_it_names_is_cleared_at_the_next_boundary():
    drive = live(6, "0 is stale {del_cursors: [0]}", '{"del_cursors": [1, 2]}')
    assert drive.clears() == [(3, (0,)), (5, (1, 2))]
    assert [aux.state for aux in drive.living] == ["applied", "applied", "cancelled"]


def test_a_text_that_cannot_be_read_evicts_nothing():
    drive = live(5, "I would keep everything.", '{"del_cursors": [0, ')
    assert drive.clears() == []
    assert [aux.state for aux in drive.living] == ["malformed", "malformed"]


def test_names_of_what_it_never_saw_or_what_is_gone_are_counted_and_change_nothing():
    """Forked at boundary 2 it saw 0 and 1; 2 is there when it is applied, but came after its fork."""
    drive = live(7, '{"del_cursors": [0, 2, 99, 1000000000000000000000]}', '{"del_cursors": [0, 1]}')
    assert drive.clears() == [(3, (0,)), (5, (1,))]
    assert [aux.ignored for aux in drive.living] == [3, 1, 0]
