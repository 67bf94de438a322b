# SPDX-License-Identifier: Apache-2.0
"""Chat messages of a session: what may be asked, and where each message stands in what the session was told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqreal.plugin.chat_turn import ChatTurn, read, read_drops, read_fork, write
from sqreal.plugin.checks import BadRequestError
from sqreal.plugin.transcript import State, Transcript

BEGIN, END, NEWLINE = 1, 2, 9


def test_what_may_be_dropped():
    assert read_drops({}, 5, in_session=False) == ()
    assert read_drops({"drop_message": None, "reposition": []}, 5, in_session=False) == ()
    body = {"drop_message": {"3": [2, 1], "1": [0], "4": []}}
    assert read_drops(body, 5, in_session=True) == ((1, 0), (3, 1), (3, 2))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"reposition": [3]}, r"reposition: \[3\]: in place the remaining tokens keep their positions"),
        ({"reposition": 0}, "reposition: 0: in place the remaining"),
        ({"drop_message": [1]}, r"drop_message: \[1\] is not"),
        ({"drop_message": {"x": [1]}}, "drop_message: 'x' is not a message"),
        ({"drop_message": {"-1": [1]}}, "'-1' is not a message"),
        ({"drop_message": {"²": [1]}}, "'²' is not a message"),
        ({"drop_message": {"7": [1]}}, "drop_message: 7 is out of range; the request has messages 0 to 4"),
        ({"drop_message": {"3": 1}}, r"drop_message\['3'\]: 1 is not a list"),
        ({"drop_message": {"3": [True]}}, "True is not a message"),
        ({"drop_message": {"3": ["1"]}}, "'1' is not a message"),
        ({"drop_message": {"3": [1.0]}}, r"1\.0 is not a message"),
        ({"drop_message": {"3": [10**40]}}, "10+ is not a message"),
        ({"drop_message": {"3": [-1]}}, "message -1 is out of range"),
        ({"drop_message": {"3": [5]}}, "message 5 is out of range; the request has messages 0 to 4"),
        ({"drop_message": {"3": [3]}}, "message 3 does not come before message 3"),
        ({"drop_message": {"3": [1], "4": [1]}}, "message 1 is dropped twice"),
    ],
)
def test_what_may_not_be_asked_is_named(body, says):
    with pytest.raises(BadRequestError, match=says):
        read_drops(body, 5, in_session=True)


def test_dropping_needs_a_session():
    with pytest.raises(BadRequestError, match="send session_params with its id"):
        read_drops({"drop_message": {"3": [1]}}, 5, in_session=False)


@pytest.mark.parametrize("odd", ["s", None, {}, {"session": 7}, {"session": "s", "tokens": 4}])
def test_a_fork_by_messages_names_a_session_alone(odd):
    assert read_fork({"session": "s"}) == "s"
    with pytest.raises(BadRequestError, match=r'sqreal_fork: .* is not \{"session": id\}'):
        read_fork(odd)


SOUND = ChatTurn(1, 6, 2, (17, 19), ("text",), ((1, 0),))


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": -1},
        {"answer": True},
        {"answer": "1"},
        {"tail": 21},
        {"tail": None},
        {"closing": 7},
        {"closing": -1},
        {"ends": ()},
        {"ends": (16, 19)},  # where the answer ends
        {"ends": (18, 18)},
        {"ends": (17, 21)},
        {"ends": (17, "19")},
        {"ends": 3},
        {"said": (7,)},
        {"said": "text"},
        {"drop": ((1,),)},
        {"drop": (3,)},
        {"drop": ((1, 1),)},
        {"drop": ((4, 0),)},
        {"drop": ((1, -1),)},
        {"more": 1},
    ],
)
def test_between_processes_anything_may_come(changes):
    assert read(write(SOUND), 20) == SOUND
    assert SOUND.messages == 4
    with pytest.raises(BadRequestError, match="sqreal_chat: is written by the server"):
        read({**write(SOUND), **changes}, 20)
    for odd in (None, [], "x"):
        with pytest.raises(BadRequestError, match="sqreal_chat"):
            read(odd, 20)


@dataclass
class Session:
    """A stand-in for server and client: what was told and said, and the messages of it."""

    transcript: Transcript = field(default_factory=Transcript)
    told: list[int] = field(default_factory=list)
    messages: list[tuple[str, list[int]]] = field(default_factory=list)  # of the client: role, content
    first: int = 0
    ended: bool = False
    said: int = 0

    def rendered(self, messages) -> list[int]:
        return [token for role, content in messages for token in (BEGIN, len(role), *content, END, NEWLINE)]

    def turn(self, messages, drop=(), said=None) -> tuple[ChatTurn, list[int]]:
        """As chat_request.py writes it, by this rendering."""
        ids = [*self.rendered(messages), BEGIN, len("assistant")]
        answers = [place for place, (role, _) in enumerate(messages) if role == "assistant"]
        first = answers[-1] + 1 if answers else 0
        ends = tuple(len(self.rendered(messages[: k + 1])) for k in range(first, len(messages)))
        tail = len(ids) - len(self.rendered(messages[:first])) + 2 if answers else len(ids)
        return ChatTurn(
            answers[-1] if answers else None, tail, 2 if answers else 0, ends, said or (), drop
        ), ids

    def state(self) -> State:
        def answer(tokens):  # with special tokens and without
            said = self.told[len(self.told) - tokens :]
            return ["<".join(map(str, said)), " ".join(map(str, said))]

        return State("s", len(self.told), self.first, self.ended, answer)

    def plan(self, messages, drop=(), said=None):
        turn, ids = self.turn(messages, drop, said)
        return self.transcript.plan(read(write(turn), len(ids)), ids, self.state())

    def send(self, new, output, *, ended, aborted=False, drop=()):
        """A turn to its end, or to its abort; the client keeps its list only in the first case."""
        messages = [*self.messages, *new]
        plan = self.plan(messages, drop)
        self.transcript.begin(plan)
        if aborted:
            return plan
        self.first = self.first or len(plan.ids)
        self.told += [*plan.ids, *output, *([END] if ended else [])]
        self.ended = ended
        self.messages = [*messages, ("assistant", output)]
        return plan


CONTENT = st.lists(st.integers(10, 50), max_size=6)
TURNS = st.lists(
    st.tuples(st.lists(CONTENT, min_size=1, max_size=3), CONTENT, st.booleans(), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(TURNS)
def test_told_is_what_the_template_says_and_every_message_is_where_it_stands(turns):
    """Aborted turns leave nothing; an answer is closed once, whether or not a stop token ended it."""
    session = Session()
    session.send([("system", [5]), ("user", [6])], [7, 8], ended=True)
    for contents, output, ended, aborted in turns:
        new = [("tool", content) for content in contents]
        session.send(new, output, ended=ended, aborted=aborted)
    closing = [NEWLINE] if session.ended else [END, NEWLINE]
    assert [*session.told, *closing] == session.rendered(session.messages)
    for place, (role, _) in enumerate(session.messages[:-1]):
        if role == "tool":
            last = len(session.messages) - 1
            [span] = session.plan([*session.messages, ("user", [1])], drop=((last, place),)).spans
            before = session.rendered(session.messages[:place])
            assert span == (len(before), len(before) + len(session.rendered([session.messages[place]])))


def two_tools() -> Session:
    session = Session()
    session.send([("system", [5]), ("user", [6])], [17, 18], ended=True)
    session.send([("tool", [20, 21])], [27], ended=False)
    session.send([("tool", [30, 31, 32])], [37], ended=True)
    return session


USER = ("user", [40])


@pytest.mark.parametrize(
    ("drop", "says"),
    [
        ((6, 1), "message 1 belongs to the first prompt (10 tokens)"),
        ((4, 3), "message 3 was not dropped then, and messages 5 to 6 have seen it; drop it after message 6"),
        ((7, 3), "message 3 cannot be dropped after message 7, which the session has not been told yet"),
        ((7, 6), "message 6 cannot be dropped after message 7"),  # the last answer, the end of which has no KV
    ],
)
def test_what_cannot_go_is_named(drop, says):
    session = two_tools()
    session.first = 10
    with pytest.raises(BadRequestError, match=re.escape(says)):
        session.plan([*session.messages, USER], drop=(drop,))


def test_a_drop_may_be_repeated_and_is_done_once():
    session = two_tools()
    plan = session.send([USER], [41], ended=True, aborted=True, drop=((6, 3),))
    assert len(plan.spans) == 1
    again = session.send([USER], [41], ended=True, drop=((6, 3),))
    assert (again.spans, again.ids) == ((), plan.ids)
    assert len(session.plan([*session.messages, USER], drop=((6, 3), (8, 5))).spans) == 1
    with pytest.raises(BadRequestError, match="message 3 was already dropped after message 6"):
        session.plan([*session.messages, USER], drop=((8, 3),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m: [*m[:3], ("tool", [20, 22]), *m[4:]],
            "message 3 differs from what session 's' was told, from token",
        ),
        (lambda m: [("system", [4]), *m[1:]], "message 0 differs from"),
        (lambda m: [*m[:2], *m[3:]], "message 2 differs from"),
        (lambda m: [USER], "message 0 differs from"),
        (lambda m: m[:2], "was told messages 0 to 5 and has answered"),
        (lambda m: m[:6], "was told messages 0 to 5 and has answered"),
        (lambda m: [*m, USER, ("assistant", [3]), USER], "was told messages 0 to 5 and has answered"),
    ],
)
def test_messages_that_do_not_go_on_are_named(change, says):
    session = two_tools()
    with pytest.raises(BadRequestError, match=says):
        session.plan(change([*session.messages, USER]))


def test_an_answer_is_what_the_session_said():
    session = two_tools()
    for text in (" 3 7", "37<2", "37 2"):  # blanks are nothing, and special tokens may be left out
        assert session.plan([*session.messages, USER], said=(text,)).spans == ()
    with pytest.raises(BadRequestError, match="message 6 is not what session 's' answered"):
        session.plan([*session.messages, USER], said=("38",))


def test_a_turn_without_messages_ends_them():
    session = two_tools()
    session.transcript.leave(len(session.told))
    assert session.plan([*session.messages, USER])  # it was aborted: nothing was told
    session.transcript.leave(len(session.told))
    session.told += [3, 3]
    with pytest.raises(BadRequestError, match="was told tokens through /generate"):
        session.plan([*session.messages, USER])


def test_a_first_turn_that_was_aborted_is_a_first_turn_again():
    session = Session()
    session.send([("system", [5])], [7], ended=True, aborted=True)
    assert session.plan([("system", [6])]).start == 0
    with pytest.raises(BadRequestError, match="has not been told a message yet"):
        session.plan([("system", [5]), ("assistant", [3]), USER], drop=((1, 0),))
