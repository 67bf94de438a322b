# SPDX-License-Identifier: Apache-2.0
"""What a request may ask of its session, as it comes from the network, and where dropped tokens leave the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqreal.plugin.checks import BadRequestError
from sqreal.plugin.history import History, Span, merged, whole_pages
from sqreal.plugin.request_options import NOTHING, Fork, RequestOptions, read


def test_what_may_be_asked():
    assert read(None, session=None, tokens=5) is NOTHING
    assert read({"sqreal_force": [1]}, session="s", tokens=5) is NOTHING
    asked = {"sqreal_drop": [[30, 40], [10, 20]], "sqreal_publish": 5, "sqreal_forked": 900}
    assert read(asked, session="s", tokens=5) == RequestOptions((Span(10, 20), Span(30, 40)), 5, 900, None)
    fork = {"sqreal_fork": {"session": "s", "tokens": 4}}
    assert read(fork, session=None, tokens=5) == RequestOptions(fork=Fork("s", 4))
    assert read({"sqreal_hold_s": 2.5}, session="s", tokens=5) == RequestOptions(hold_s=2.5)
    assert read({"sqreal_drop": [[0, 5], [5, 6]]}, session="s", tokens=1).drop == ((0, 5), (5, 6))


@pytest.mark.parametrize(
    ("asked", "session", "says"),
    [
        ({"sqreal_drop": [[1, 2]]}, None, "sqreal_drop: is for a session's turn"),
        ({"sqreal_publish": 2}, None, "sqreal_publish: is for a session's turn"),
        ({"sqreal_fork": {"session": "t", "tokens": 2}}, "s", "a turn of session 's' forks nothing"),
        ({"sqreal_chat": {}}, None, "sqreal_chat: is for a session's turn"),
        ({"sqreal_chat": {}, "sqreal_drop": [[1, 2]]}, "s", "a chat turn drops messages, not spans"),
        ({"sqreal_chat": {}}, "s", "sqreal_chat: is written by the server"),
        ({"sqreal_drop": "all"}, "s", "is not a list"),
        ({"sqreal_drop": [[1, 2]] * 5000}, "s", "at most 4096"),
        ({"sqreal_drop": [[1, 2], 7]}, "s", r"sqreal_drop\[1\]: 7 is not \[start, stop\]"),
        ({"sqreal_drop": [[1, 2, 3]]}, "s", r"\[1, 2, 3\] is not \[start, stop\] in whole numbers"),
        ({"sqreal_drop": [[1, 2.5]]}, "s", "whole numbers"),
        ({"sqreal_drop": [[True, 2]]}, "s", "whole numbers"),
        ({"sqreal_drop": [[1, 10**40]]}, "s", "whole numbers"),
        ({"sqreal_drop": [[-1, 4]]}, "s", r"\[-1, 4\] holds no token"),
        ({"sqreal_drop": [[4, 4]]}, "s", r"\[4, 4\] holds no token"),
        ({"sqreal_drop": [[6, 9], [1, 7]]}, "s", r"\[1, 7\] and \[6, 9\] overlap"),
        ({"sqreal_publish": 6}, "s", "6 is not a whole number from 1 to 5"),
        ({"sqreal_publish": "5"}, "s", "'5' is not a whole number"),
        ({"sqreal_forked": 0}, "s", "sqreal_forked: 0 is not a whole number"),
        ({"sqreal_hold_s": 1}, None, "sqreal_hold_s: is for a session's turn"),
        ({"sqreal_hold_s": -1}, "s", "sqreal_hold_s: -1 is not a number of seconds from 0 to 86400"),
        ({"sqreal_hold_s": True}, "s", "True is not a number of seconds"),
        ({"sqreal_hold_s": float("nan")}, "s", "nan is not a number of seconds"),
        ({"sqreal_hold_s": 86_401}, "s", "86401 is not a number"),
        ({"sqreal_fork": "s"}, None, "sqreal_fork: 's' is not {"),
        ({"sqreal_fork": {"session": "s"}}, None, "is not {"),
        ({"sqreal_fork": {"session": 7, "tokens": 1}}, None, "session: 7 is not a session's id"),
        ({"sqreal_fork": {"session": "s", "tokens": 5}}, None, "tokens: 5 is not a whole number from 1 to 4"),
        ({"sqreal_fork": {"session": "s", "tokens": None}}, None, "tokens: None is not a whole number"),
    ],
)
def test_what_may_not_be_asked_is_named(asked, session, says):
    with pytest.raises(BadRequestError, match=says):
        read(asked, session=session, tokens=5)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8)


@given(SPANS)
def test_positions_go_to_and_fro(drawn):
    """Against a list of all tokens with those that are gone crossed out."""
    history, there = History(), [True] * 100
    for start, length in drawn:
        span = Span(start, start + length)
        if history.touches(span):
            assert not all(there[span.start : span.stop])
            continue
        resident = history.resident(span)
        assert resident.tokens == length
        assert resident.start == sum(there[:start])
        assert history.parts(resident) == [span]
        history.drop(resident)
        there[span.start : span.stop] = [False] * length
    assert history.gone_tokens == there.count(False)
    assert all(not there[place] for gone in history.gone for place in range(*gone))
    left = [place for place, kept in enumerate(there) if kept]
    for resident, place in enumerate(left):
        assert history.told(Span(resident, resident + 1)) == (place, place + 1)


def test_what_closes_around_a_gap_is_dropped_as_one():
    history = History()
    history.drop(Span(10, 20))
    assert history.parts(Span(5, 15)) == [(5, 10), (20, 25)]
    history.drop(Span(5, 15))
    assert history.gone == [(5, 25)]
    assert history.gone_tokens == 20
    assert history.resident(Span(25, 30)) == (5, 10)


def test_whole_pages_are_those_inside():
    assert whole_pages(Span(1, 300), 16) == (16, 288)
    assert whole_pages(Span(16, 32), 16) == (16, 32)
    assert whole_pages(Span(17, 47), 16) is None
    assert whole_pages(Span(5, 9), 1) == (5, 9)


def test_spans_that_touch_are_one():
    assert merged([Span(8, 9), Span(1, 3), Span(3, 5)]) == [(1, 5), (8, 9)]
