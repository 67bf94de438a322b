"""A session's turn that comes as chat messages: which of them go, and where the others lie in the rendered prompt.

The process that renders messages writes a ChatTurn into the request's `custom_params`; the scheduler, which knows what
the session was told, reads it. Both sides read what comes from the network: a WishError names field, value and fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sqreal.plugin.checks import WishError, short, whole

DROP_MESSAGE = "drop_message"
"""Of a chat request: {"3": [1, 2]}, after message 3 the KV of messages 1 and 2 is gone."""
REPOSITION = "reposition"
"""Of a chat request: messages behind which gaps are closed. In place none is: positions stay."""
CHAT = "sqreal_chat"
"""In `custom_params`, between the processes of a server: a ChatTurn."""

_MOST = 100_000  # messages of one conversation

Drop = tuple[tuple[int, int], ...]
"""(after, message): once message `after` was said, the KV of `message` is gone."""


class ChatTurn(NamedTuple):
    """A turn whose request holds the whole conversation, rendered; lengths and ends in tokens of that rendering.

    `answer`: the index of its last assistant message, which the session itself said; None: there is none. `tail`: how
    many tokens at the rendering's end follow the text of that answer, of which `closing` close it. `ends`: where each
    message behind the answer ends. `said`: texts that the answer has to hold.
    """

    answer: int | None
    tail: int
    closing: int
    ends: tuple[int, ...]
    said: tuple[str, ...]
    drop: Drop

    @property
    def first(self) -> int:
        """The index of the first message behind the answer."""
        return 0 if self.answer is None else self.answer + 1

    @property
    def messages(self) -> int:
        return self.first + len(self.ends)


def read_drops(body: Mapping[str, Any], messages: int, *, in_session: bool) -> Drop:
    """What a chat request of so many messages says of dropping; empty where it says nothing."""
    reposition = body.get(REPOSITION)
    if reposition not in (None, []):
        raise WishError(
            f"{REPOSITION}: {short(reposition)}: what is left stays at its positions in place, so no gap is closed; "
            "leave it out, or open a new session with the messages that are left"
        )
    asked = body.get(DROP_MESSAGE)
    if asked is None:
        return ()
    if not in_session:
        raise WishError(
            f"{DROP_MESSAGE}: is for a conversation held in a session; open one, and send session_params with its id, "
            '{"id": ...}'
        )
    if not isinstance(asked, Mapping):
        raise WishError(
            f'{DROP_MESSAGE}: {short(asked)} is not {{"3": [1, 2]}}, messages to go after message 3'
        )
    found: dict[int, int] = {}
    for key, several in asked.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            raise WishError(f"{DROP_MESSAGE}: {short(key)} is no message; use its index, from 0, as a string")
        after = int(key)
        if after >= messages:
            raise WishError(
                f"{DROP_MESSAGE}: {after} is out of range; the request has messages 0 to {messages - 1}"
            )
        place = f"{DROP_MESSAGE}[{key!r}]"
        if not isinstance(several, list):
            raise WishError(f"{place}: {short(several)} is not a list of messages, like [1, 2]")
        for message in several:
            if not whole(message):
                raise WishError(
                    f"{place}: {short(message)} is no message; use its index, a whole number from 0"
                )
            if not 0 <= message < messages:
                raise WishError(
                    f"{place}: message {message} is out of range; the request has messages 0 to {messages - 1}"
                )
            if message >= after:
                raise WishError(
                    f"{place}: message {message} does not come before message {after}; it goes after a later one"
                )
            if message in found:
                raise WishError(f"{place}: message {message} goes twice; name every message once")
            found[message] = after
    return tuple(sorted((after, message) for message, after in found.items()))


def read_fork(value: Any) -> str:
    """The session that a chat request forks: whose messages its list goes on from, beside it."""
    if not isinstance(value, Mapping) or set(value) != {"session"} or not isinstance(value["session"], str):
        raise WishError(
            f'sqreal_fork: {short(value)} is not {{"session": id}}; a fork by messages reads all that its list repeats'
        )
    return str(value["session"])


def write(turn: ChatTurn) -> dict[str, Any]:
    """The form that passes between processes, for `read`."""
    return turn._asdict()


def read(value: Any, tokens: int) -> ChatTurn:
    """Read what `write` wrote; anybody may have sent it. `tokens`: how many the request sends."""
    if not isinstance(value, Mapping) or set(value) != set(ChatTurn._fields):
        raise WishError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
    answer, tail, closing = value["answer"], value["tail"], value["closing"]
    ends, said, drop = (value[name] for name in ("ends", "said", "drop"))
    sound = (
        (answer is None or (whole(answer) and 0 <= answer < _MOST))
        and (whole(tail) and whole(closing) and 0 <= closing <= tail <= tokens)
        and all(isinstance(each, list | tuple) and len(each) < _MOST for each in (ends, said, drop))
        and bool(ends)
        and all(whole(end) for end in ends)
        and all(isinstance(text, str) for text in said)
        and all(isinstance(pair, list | tuple) and len(pair) == 2 and all(map(whole, pair)) for pair in drop)
    )
    if sound:
        start = 0 if answer is None else tokens - tail + closing
        bounds = [start, *ends, tokens + 1]
        sound = all(before < after for before, after in pairwise(bounds))
    if not sound:
        raise WishError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
    pairs = tuple((after, message) for after, message in drop)
    turn = ChatTurn(answer, tail, closing, tuple(ends), tuple(said), pairs)
    if any(not 0 <= message < after < turn.messages for after, message in pairs):
        raise WishError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
    return turn
