# SPDX-License-Identifier: Apache-2.0
"""History of a conversation: its dropped tokens, and the positions of the others.

Two ways of counting. *History positions* count every token that a session was ever told or has said, dropped or not;
clients name spans by them, since they never change. *Resident positions* count the remaining tokens: a token's place in
the row of KV, and in the prompt that the server computes.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Tokens `[start, stop)`."""

    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


class History:
    """Dropped spans of one conversation, by history position: sorted and disjoint."""

    def __init__(self) -> None:
        self.gone: list[Span] = []

    @property
    def gone_tokens(self) -> int:
        return sum(span.tokens for span in self.gone)

    def touches(self, span: Span) -> Span | None:
        """Find a dropped span that shares tokens with this one."""
        return next((gone for gone in self.gone if gone.start < span.stop and span.start < gone.stop), None)

    def resident(self, span: Span) -> Span:
        """Convert a span without dropped tokens to resident positions."""
        before = sum(gone.tokens for gone in self.gone if gone.stop <= span.start)
        return Span(span.start - before, span.stop - before)

    def told(self, resident: Span) -> Span:
        """Convert a resident span to history positions, including the dropped tokens inside it."""
        return Span(self._place(resident.start), self._place(resident.stop - 1) + 1)

    def parts(self, resident: Span) -> list[Span]:
        """Convert a resident span to history positions, in spans without dropped tokens."""
        told, found = self.told(resident), []
        start = told.start
        for gone in self.gone:
            if told.start < gone.start < told.stop:
                found.append(Span(start, gone.start))
                start = gone.stop
        return [*found, Span(start, told.stop)]

    def _place(self, resident: int) -> int:
        place = resident
        for gone in self.gone:
            if gone.start > place:
                break
            place += gone.tokens
        return place

    def drop(self, resident: Span) -> None:
        """Mark these resident tokens as dropped."""
        told = self.told(resident)
        self.gone = [gone for gone in self.gone if not told.start < gone.start < told.stop]
        insort(self.gone, told)


def whole_pages(span: Span, page: int) -> Span | None:
    """Find the whole pages inside a span of resident positions, the part that can be freed; None when there is none."""
    start, stop = -(-span.start // page) * page, span.stop // page * page
    return Span(start, stop) if start < stop else None


def merged(spans: list[Span]) -> list[Span]:
    """Join touching spans; the input is sorted."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def common_prefix(one: Any, other: Any) -> int:
    """Count the leading tokens that two sequences share; the usual case, all of them, is compared as a whole."""
    if one == other:
        return len(one)
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
