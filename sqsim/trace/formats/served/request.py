# SPDX-License-Identifier: Apache-2.0
"""Served request, and its tokens as a part of an earlier request's and those that are new."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

Ids = array  # of "i": four bytes a token
MOST = 2**31 - 1
"""Largest token id."""


class Sequent:
    """Token ids: the first `keep` of another sequence, then `new`. Histories share what they have in common."""

    __slots__ = ("before", "keep", "length", "new")

    def __init__(self, new: Ids[int], before: Sequent | None = None, keep: int = 0) -> None:
        self.before, self.keep, self.new = before, keep, new
        self.length = keep + len(new)

    def ids(self) -> Ids[int]:
        """Return all ids."""
        parts, node, limit = [], self, self.length
        while True:
            parts.append(node.new[: max(0, limit - node.keep)])
            if node.before is None:
                break
            limit = min(limit, node.keep)
            node = node.before
        found: Ids[int] = array("i")
        for part in reversed(parts):
            found += part
        return found


class Tool(NamedTuple):
    """Tool whose response is new in a prompt; `tokens` or `chars` of the response, where the client sent them."""

    name: str
    tokens: int | None = None
    chars: int | None = None


@dataclass(slots=True)
class Served:
    """Request as the server saw it. Times are seconds since 1970. `tools` None: the client did not say."""

    rid: str
    prompt: Sequent
    output: Ids[int]
    begins_s: float | None
    ends_s: float | None
    cached: int | None
    session: str = ""
    model: str | None = None
    tools: tuple[Tool, ...] | None = None
    fork: bool = False
    aborted: bool = False

    @property
    def whole(self) -> Sequent:
        """Prompt and output."""
        return Sequent(self.output, self.prompt, self.prompt.length)


def common(one: Ids[int], other: Ids[int]) -> int:
    """Count the leading tokens that two sequences share, by bisection: equal parts are compared as memory."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def split(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """Cut ids into parts of these sizes, which sum to their number."""
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    return [ids[start:stop] for start, stop in pairwise(bounds)]
