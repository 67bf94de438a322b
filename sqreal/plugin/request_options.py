# SPDX-License-Identifier: Apache-2.0
"""Request options for sessions, in `sampling_params.custom_params`; docs/http.md describes them.

Data from the network is checked here: a BadRequestError names the field, the value, its fault and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sqreal.plugin import chat_turn
from sqreal.plugin.chat_turn import CHAT, ChatTurn
from sqreal.plugin.checks import LARGEST, BadRequestError, short, whole
from sqreal.plugin.history import Span

DROP = "sqreal_drop"
"""Of a session's turn: spans [[start, stop], ...] of history positions to clear before it."""
FORK = "sqreal_fork"
"""Of a request without a session of its own: {"session": id, "tokens": n}, whose first n tokens it reads."""
PUBLISH = "sqreal_publish"
"""Of a session's first turn: the number of leading tokens that other sessions may share; they are never dropped."""
FORKED = "sqreal_forked"
"""Of a session's turn: a fork of its first n tokens will follow, so they stay readable until it arrives."""
HOLD = "sqreal_hold_s"
"""Of a session's turn: seconds after it during which the idle session is never released."""

_MOST_SPANS = 4096
_LONGEST_S = 86_400.0  # a day: a longer hold is a leak


class Fork(NamedTuple):
    """Read the first `tokens` tokens of a session's KV instead of computing them."""

    session: str
    tokens: int


class RequestOptions(NamedTuple):
    """Options of one request."""

    drop: tuple[Span, ...] = ()
    publish: int | None = None
    forked: int | None = None
    fork: Fork | None = None
    chat: ChatTurn | None = None
    hold_s: float = 0.0


NOTHING = RequestOptions()


def read(params: Any, *, session: str | None, tokens: int) -> RequestOptions:
    """Read a request's `custom_params`; `tokens`: the number it sends."""
    if params is None:
        return NOTHING
    if not isinstance(params, Mapping):
        raise BadRequestError(f"custom_params: {short(params)} is not an object of names and values")
    if not words(params):
        return NOTHING
    for key in (DROP, PUBLISH, FORKED, CHAT, HOLD):
        if session is None and params.get(key) is not None and (key != CHAT or params.get(FORK) is None):
            raise BadRequestError(f"{key}: is for a session's turn; send session_params with the session's id")
    if session is not None and params.get(FORK) is not None:
        raise BadRequestError(
            f"{FORK}: a turn of session {session!r} forks nothing; send the fork without session_params"
        )
    if params.get(CHAT) is not None and params.get(DROP) is not None:
        raise BadRequestError(
            f"{DROP}: a chat turn drops messages, not spans; name them in {chat_turn.DROP_MESSAGE}"
        )
    return RequestOptions(
        _spans(params[DROP]) if params.get(DROP) is not None else (),
        _size(PUBLISH, params.get(PUBLISH), tokens),
        _size(FORKED, params.get(FORKED), LARGEST),
        None if params.get(FORK) is None else _fork(params[FORK], tokens),
        None if params.get(CHAT) is None else chat_turn.read(params[CHAT], tokens),
        _seconds(params.get(HOLD)),
    )


def words(params: Any) -> list[str]:
    """List the session options named in a request's `custom_params`."""
    if not isinstance(params, Mapping):
        return []
    return [key for key in (DROP, FORK, PUBLISH, FORKED, CHAT, HOLD) if params.get(key) is not None]


def fork_of(req: Any) -> Fork | None:
    """Return the fork of an admitted request."""
    if req is None or req.session is not None or req.to_finish is not None:
        return None
    params = req.sampling_params.custom_params
    asked = params.get(FORK) if isinstance(params, Mapping) else None
    return None if asked is None else Fork(asked["session"], asked["tokens"])


def _spans(value: Any) -> tuple[Span, ...]:
    if not isinstance(value, list) or len(value) > _MOST_SPANS:
        raise BadRequestError(
            f"{DROP}: {short(value)} is not a list of at most {_MOST_SPANS} spans [start, stop]"
        )
    spans = []
    for place, item in enumerate(value):
        if not isinstance(item, list) or len(item) != 2 or not all(whole(each) for each in item):
            raise BadRequestError(f"{DROP}[{place}]: {short(item)} is not [start, stop] in whole numbers")
        span = Span(*item)
        if not 0 <= span.start < span.stop:
            raise BadRequestError(
                f"{DROP}[{place}]: {list(span)} holds no token; start at 0 or later, and stop after the start"
            )
        spans.append(span)
    spans.sort()
    for before, after in pairwise(spans):
        if after.start < before.stop:
            raise BadRequestError(f"{DROP}: {list(before)} and {list(after)} overlap; name every token once")
    return tuple(spans)


def _fork(value: Any, tokens: int) -> Fork:
    if not isinstance(value, Mapping) or set(value) != {"session", "tokens"}:
        raise BadRequestError(
            f'{FORK}: {short(value)} is not {{"session": id, "tokens": the number of its tokens to read}}'
        )
    name, length = value["session"], value["tokens"]
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"{FORK}: session: {short(name)} is not a session's id")
    if not whole(length) or not 0 < length < tokens:
        raise BadRequestError(
            f"{FORK}: tokens: {short(length)} is not a whole number from 1 to {tokens - 1}; "
            "a fork sends the session's tokens and at least one more"
        )
    return Fork(name, length)


def _size(key: str, value: Any, most: int) -> int | None:
    if value is None:
        return None
    if not whole(value) or not 0 < value <= most:
        raise BadRequestError(f"{key}: {short(value)} is not a whole number from 1 to {most}")
    return int(value)


def _seconds(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise BadRequestError(f"{HOLD}: {short(value)} is not a number of seconds from 0 to {_LONGEST_S:g}")
    return float(value)
