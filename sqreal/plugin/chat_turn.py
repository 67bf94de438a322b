# SPDX-License-Identifier: Apache-2.0
"""Session turn as chat messages: the messages to drop, and the places of the others in the rendered prompt.

The process that renders messages writes a ChatTurn into the request's `custom_params`; the scheduler, which knows what
the session was told, reads it. Both sides read data from the network: a BadRequestError names field, value and fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sqreal.plugin.checks import BadRequestError, short, whole

DROP_MESSAGE = "drop_message"
"""Of a chat request: {"3": [1, 2]}, after message 3 the KV of messages 1 and 2 is dropped."""
REPOSITION = "reposition"
"""Of a chat request: messages after which gaps are closed. In place no gap is closed: positions stay."""
CHAT = "sqreal_chat"
"""In `custom_params`, between the processes of a server: a ChatTurn."""

_MOST = 100_000  # messages of one conversation

Drop = tuple[tuple[int, int], ...]
"""(after, message): after message `after`, the KV of `message` is dropped."""


class ChatTurn(NamedTuple):
    """Turn whose request holds the whole rendered conversation; lengths and ends in tokens of that rendering.

    `answer`: the index of its last assistant message, which the session itself wrote; None: there is none. `tail`: the
    number of tokens after the text of that answer, of which `closing` close it. `ends`: the end of each message after
    the answer. `said`: texts that the answer must contain.
    """

    answer: int | None
    tail: int
    closing: int
    ends: tuple[int, ...]
    said: tuple[str, ...]
    drop: Drop

    @property
    def first(self) -> int:
        """Index of the first message after the answer."""
        return 0 if self.answer is None else self.answer + 1

    @property
    def messages(self) -> int:
        return self.first + len(self.ends)


def read_drops(body: Mapping[str, Any], messages: int, *, in_session: bool) -> Drop:
    """Read which of `messages` messages a chat request drops; empty where it drops none."""
    reposition = body.get(REPOSITION)
    if reposition not in (None, []):
        raise BadRequestError(
            f"{REPOSITION}: {short(reposition)}: in place the remaining tokens keep their positions, so no gap is closed; "
            "leave it out, or open a new session with the remaining messages"
        )
    asked = body.get(DROP_MESSAGE)
    if asked is None:
        return ()
    if not in_session:
        raise BadRequestError(
            f"{DROP_MESSAGE}: is for a conversation held in a session; open one, and send session_params with its id, "
            '{"id": ...}'
        )
    if not isinstance(asked, Mapping):
        raise BadRequestError(
            f'{DROP_MESSAGE}: {short(asked)} is not {{"3": [1, 2]}}, messages to drop after message 3'
        )
    found: dict[int, int] = {}
    for key, several in asked.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            raise BadRequestError(
                f"{DROP_MESSAGE}: {short(key)} is not a message; use its index, from 0, as a string"
            )
        after = int(key)
        if after >= messages:
            raise BadRequestError(
                f"{DROP_MESSAGE}: {after} is out of range; the request has messages 0 to {messages - 1}"
            )
        place = f"{DROP_MESSAGE}[{key!r}]"
        if not isinstance(several, list):
            raise BadRequestError(f"{place}: {short(several)} is not a list of messages, like [1, 2]")
        for message in several:
            if not whole(message):
                raise BadRequestError(
                    f"{place}: {short(message)} is not a message; use its index, a whole number from 0"
                )
            if not 0 <= message < messages:
                raise BadRequestError(
                    f"{place}: message {message} is out of range; the request has messages 0 to {messages - 1}"
                )
            if message >= after:
                raise BadRequestError(
                    f"{place}: message {message} does not come before message {after}; drop it after a later one"
                )
            if message in found:
                raise BadRequestError(f"{place}: message {message} is dropped twice; name every message once")
            found[message] = after
    return tuple(sorted((after, message) for message, after in found.items()))


def read_fork(value: Any) -> str:
    """Read the session that a chat request forks: its list continues that session's messages."""
    if not isinstance(value, Mapping) or set(value) != {"session"} or not isinstance(value["session"], str):
        raise BadRequestError(
            f'sqreal_fork: {short(value)} is not {{"session": id}}; a fork by messages reads all messages that its list repeats'
        )
    return str(value["session"])


def write(turn: ChatTurn) -> dict[str, Any]:
    """Write the form that passes between processes, for `read`."""
    return turn._asdict()


def read(value: Any, tokens: int) -> ChatTurn:
    """Read the form of `write`, which any client may have sent. `tokens`: the number that the request sends."""
    if not isinstance(value, Mapping) or set(value) != set(ChatTurn._fields):
        raise BadRequestError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
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
        raise BadRequestError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
    pairs = tuple((after, message) for after, message in drop)
    turn = ChatTurn(answer, tail, closing, tuple(ends), tuple(said), pairs)
    if any(not 0 <= message < after < turn.messages for after, message in pairs):
        raise BadRequestError(f"{CHAT}: is written by the server; send messages to /v1/chat/completions")
    return turn
