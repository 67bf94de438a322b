# SPDX-License-Identifier: Apache-2.0
"""Transcript of a session's chat messages: their rendering, and the place of each in the session's history.

An agent sends its whole message list every time. The session holds a prefix of it, which is compared with the
earlier rendering; only new messages are told. The model's own output stays as it was generated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqreal.plugin.chat_turn import DROP_MESSAGE, ChatTurn, Drop
from sqreal.plugin.checks import BadRequestError, short
from sqreal.plugin.history import Span, common_prefix

_FRESH = "open a new session with these messages"


class State(NamedTuple):
    """State of a session when a turn arrives, in tokens of its history: told and said in all, and shared with others."""

    name: str
    told: int
    first: int
    ended: bool  # did a stop token end the last answer? It then begins the closing
    answer: Callable[[int], Sequence[str]]  # decodes its last `n` tokens, in each possible way


class Known(NamedTuple):
    """Messages told so far: their rendering, and the end of each in it and in the session's history."""

    rendered: array[int] = array("q")
    ends: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


class Plan(NamedTuple):
    """Planned turn: its tokens, the spans to drop before it, and the messages known once it completes."""

    ids: array[int]
    spans: tuple[Span, ...]
    drop: Drop
    known: Known
    start: int
    stop: int


class Transcript:
    """Transcript of one session. `gone` maps each dropped message to the message after which it was dropped."""

    def __init__(self) -> None:
        self._known = Known()
        self._stop = 0  # end of the last complete turn's prompt in the history; its answer follows
        self._pending: Plan | None = None
        self._left: int | None = None  # tokens that it was told before turns without messages
        self.gone: dict[int, int] = {}

    def plan(self, turn: ChatTurn, ids: Any, state: State) -> Plan:
        """Plan how a turn continues the session; a BadRequestError where it does not. Changes nothing."""
        known, stop = self._complete(state.told)
        rendered = array("q", ids[: turn.ends[-1]])
        if not state.told:
            return self._first(turn, ids, rendered)
        if not known.ends or (self._left is not None and state.told > self._left):
            raise BadRequestError(
                f"session {state.name!r} was told tokens through /generate, which are not messages; {_FRESH}"
            )
        self._check(turn, ids, state, known, stop)
        # A stop token is the closing's first token: after it the answer is not closed again.
        begun = 1 if state.ended and turn.closing else 0
        new = array("q", ids[len(ids) - turn.tail + begun :])
        behind = len(ids) - turn.tail + turn.closing  # where the answer's message ends in the rendering
        place = state.told + turn.closing - begun
        return Plan(
            new,
            tuple(
                Span(known.places[m - 1] if m else 0, known.places[m])
                for _, m in turn.drop
                if m not in self.gone
            ),
            turn.drop,
            Known(
                rendered,
                (*known.ends, behind, *turn.ends),
                (*known.places, place, *(place + end - behind for end in turn.ends)),
            ),
            state.told,
            state.told + len(new),
        )

    def begin(self, plan: Plan) -> None:
        """Begin an admitted turn, whose drops are done."""
        self._pending = plan
        self.gone |= {message: after for after, message in plan.drop}
        self._left = None

    def leave(self, told: int) -> None:
        """Note a turn without messages: once it completes, the history is not one of messages."""
        self._complete(told)
        self._left = told if self._left is None else min(told, self._left)

    def _complete(self, told: int) -> tuple[Known, int]:
        """Return the known messages for the session's present length: a turn may have been aborted."""
        if not told:  # no turn has completed
            self._known, self._stop, self._pending, self._left, self.gone = Known(), 0, None, None, {}
        elif self._pending is not None:
            if told > self._pending.start:
                self._known, self._stop = self._pending.known, self._pending.stop
            self._pending = None
        return self._known, self._stop

    def _first(self, turn: ChatTurn, ids: Any, rendered: array[int]) -> Plan:
        if turn.drop:
            after, message = turn.drop[0]
            raise BadRequestError(
                f'{DROP_MESSAGE}: {{"{after}": [{message}]}}: the session has not been told a message yet; '
                "leave the message out of the list"
            )
        before = (len(ids) - turn.tail + turn.closing,) * turn.first
        ends = (*before, *turn.ends)
        return Plan(array("q", ids), (), (), Known(rendered, ends, ends), 0, len(ids))

    def _check(self, turn: ChatTurn, ids: Any, state: State, known: Known, stop: int) -> None:
        """Check that the request repeats the session's messages and its answer, and drops only what can be dropped now."""
        told = len(known.ends)
        same = common_prefix(known.rendered, array("q", ids[: len(known.rendered)]))
        if same < min(len(known.rendered), turn.ends[-1]):
            raise BadRequestError(
                f"messages: {_named(known.ends, same)} differs from what session {state.name!r} was told, from token "
                f"{same} of the rendered list on; send messages, tools and template arguments unchanged, or {_FRESH}"
            )
        if turn.answer != told:
            raise BadRequestError(
                f"messages: session {state.name!r} was told messages 0 to {told - 1} and has answered; the list continues "
                f"with that answer as message {told}, the last of the assistant, and then what is new; or {_FRESH}"
            )
        said = state.answer(state.told - stop)
        for text in turn.said:
            if not any(_plain(text) in _plain(each) for each in said):
                raise BadRequestError(
                    f"messages: message {told} is not what session {state.name!r} answered ({short(said[0])}); "
                    f"send the answer as it came, or {_FRESH}"
                )
        for after, message in turn.drop:
            self._check_drop(after, message, told, state, known)

    def _check_drop(self, after: int, message: int, answer: int, state: State, known: Known) -> None:
        asked = f'{DROP_MESSAGE}: {{"{after}": [{message}]}}: message {message}'
        gone = self.gone.get(message)
        if gone is not None:
            if gone != after:
                raise BadRequestError(
                    f"{asked} was already dropped after message {gone}; leave it out, or repeat {gone}"
                )
            return
        if after > answer:
            raise BadRequestError(
                f"{asked} cannot be dropped after message {after}, which the session has not been told yet; drop it "
                f"after message {answer}, the last answer"
            )
        if after < answer:
            raise BadRequestError(
                f"{asked} was not dropped then, and messages {after + 1} to {answer} have seen it; drop it after "
                f"message {answer}, the last answer"
            )
        if (known.places[message - 1] if message else 0) < state.first:
            raise BadRequestError(
                f"{asked} belongs to the first prompt ({state.first} tokens), which the session shares with others; "
                "drop what came in later turns"
            )


def _named(ends: tuple[int, ...], token: int) -> str:
    """Name the message of a token of the rendering; where a first turn told several at once, all candidates."""
    low = min(bisect_right(ends, token), len(ends) - 1)
    low, high = bisect_left(ends, ends[low]), bisect_right(ends, ends[low]) - 1
    return f"message {low}" if low == high else f"one of the messages {low} to {high}"


def _plain(text: str) -> str:
    """Strip the parts of a text that depend on the decoding: blanks, and bytes that are not text."""
    return "".join(text.split()).replace("\ufffd", "")
