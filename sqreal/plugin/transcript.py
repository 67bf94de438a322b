"""The chat messages that a session was told: how they were rendered, and where each stands in the session's history.

An agent sends its whole message list every time. What the session holds is a prefix of it, and is held against what
was rendered before; what is new is told. What the model itself said stays as it said it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqreal.plugin.chat_turn import DROP_MESSAGE, ChatTurn, Drop
from sqreal.plugin.checks import WishError, short
from sqreal.plugin.history import Span, common_prefix

_FRESH = "open a new session with these messages"


class State(NamedTuple):
    """What a session is when a turn comes, in tokens of its history: told and said in all, and shared with others."""

    name: str
    told: int
    first: int
    ended: bool  # did a stop token end the last answer? Its closing is then begun
    answer: Callable[[int], Sequence[str]]  # the text of its last so many tokens, in each way to decode them


class Known(NamedTuple):
    """The messages told so far: their rendering, where each ends in it, and where in the session's history."""

    rendered: array[int] = array("q")
    ends: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


class Plan(NamedTuple):
    """A turn that may come: its tokens, the spans that go before it, and what is known once it is complete."""

    ids: array[int]
    spans: tuple[Span, ...]
    drop: Drop
    known: Known
    start: int
    stop: int


class Transcript:
    """Of one session. `gone`: dropped messages, and after which message each went."""

    def __init__(self) -> None:
        self._known = Known()
        self._stop = 0  # where the prompt of the last complete turn ends in the history; what follows was said
        self._pending: Plan | None = None
        self._left: int | None = None  # what it was told before turns without messages came
        self.gone: dict[int, int] = {}

    def plan(self, turn: ChatTurn, ids: Any, state: State) -> Plan:
        """How a turn continues the session; a WishError where it does not. Nothing is done yet."""
        known, stop = self._complete(state.told)
        rendered = array("q", ids[: turn.ends[-1]])
        if not state.told:
            return self._first(turn, ids, rendered)
        if not known.ends or (self._left is not None and state.told > self._left):
            raise WishError(
                f"session {state.name!r} was told tokens through /generate, which are no messages; {_FRESH}"
            )
        self._check(turn, ids, state, known, stop)
        # A stop token stands for the closing's first one: after it the answer is not closed again.
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
        """The turn is let in, and its drops are done."""
        self._pending = plan
        self.gone |= {message: after for after, message in plan.drop}
        self._left = None

    def leave(self, told: int) -> None:
        """A turn without messages comes: once it is complete, the history is not that of messages."""
        self._complete(told)
        self._left = told if self._left is None else min(told, self._left)

    def _complete(self, told: int) -> tuple[Known, int]:
        """What is known, given how much the session has been told and has said: a turn may have been aborted."""
        if not told:  # not even a first turn was completed
            self._known, self._stop, self._pending, self._left, self.gone = Known(), 0, None, None, {}
        elif self._pending is not None:
            if told > self._pending.start:
                self._known, self._stop = self._pending.known, self._pending.stop
            self._pending = None
        return self._known, self._stop

    def _first(self, turn: ChatTurn, ids: Any, rendered: array[int]) -> Plan:
        if turn.drop:
            after, message = turn.drop[0]
            raise WishError(
                f'{DROP_MESSAGE}: {{"{after}": [{message}]}}: the session has not been told a message yet; '
                "leave the message out of what is sent"
            )
        before = (len(ids) - turn.tail + turn.closing,) * turn.first
        ends = (*before, *turn.ends)
        return Plan(array("q", ids), (), (), Known(rendered, ends, ends), 0, len(ids))

    def _check(self, turn: ChatTurn, ids: Any, state: State, known: Known, stop: int) -> None:
        """The request repeats what the session was told, then what it said, and drops what can be dropped now."""
        told = len(known.ends)
        same = common_prefix(known.rendered, array("q", ids[: len(known.rendered)]))
        if same < min(len(known.rendered), turn.ends[-1]):
            raise WishError(
                f"messages: {_named(known.ends, same)} is not as session {state.name!r} was told it, from token "
                f"{same} of the rendered list on; send messages, tools and template arguments unchanged, or {_FRESH}"
            )
        if turn.answer != told:
            raise WishError(
                f"messages: session {state.name!r} was told messages 0 to {told - 1} and has answered; the list goes on "
                f"with that answer as message {told}, the last of the assistant, and then what is new; or {_FRESH}"
            )
        said = state.answer(state.told - stop)
        for text in turn.said:
            if not any(_plain(text) in _plain(each) for each in said):
                raise WishError(
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
                raise WishError(
                    f"{asked} is gone already, after message {gone}; leave it out, or repeat {gone}"
                )
            return
        if after > answer:
            raise WishError(
                f"{asked} cannot go after message {after}, which the session has not been told yet; a turn drops "
                f"what goes after message {answer}, the last answer"
            )
        if after < answer:
            raise WishError(
                f"{asked} is there still, and messages {after + 1} to {answer} have seen it; it can go after "
                f"message {answer}, the last answer"
            )
        if (known.places[message - 1] if message else 0) < state.first:
            raise WishError(
                f"{asked} belongs to the first prompt ({state.first} tokens), which the session shares with others; "
                "drop what came in later turns"
            )


def _named(ends: tuple[int, ...], token: int) -> str:
    """The message that holds a token of the rendering; where a first turn told several at once, all that may."""
    low = min(bisect_right(ends, token), len(ends) - 1)
    low, high = bisect_left(ends, ends[low]), bisect_right(ends, ends[low]) - 1
    return f"message {low}" if low == high else f"one of the messages {low} to {high}"


def _plain(text: str) -> str:
    """A text without what may differ between ways to decode it: blanks, and bytes that are no text."""
    return "".join(text.split()).replace("\ufffd", "")
