# SPDX-License-Identifier: Apache-2.0
"""Token sequences as runs, so that the cost of comparing two contexts grows with segments, not tokens.

A *segment* is a piece of text that enters contexts as a whole: a question, one turn's reasoning, one tool
response. Tokens of one segment differ by their index, tokens of two segments always differ
(SPEC.md: "a prefix never matches by accident"). A `Run` is `segment[start:stop]`; `Tokens` is a tuple of
runs in normal form: no run is empty, and no run continues its predecessor. Two sequences hold the same
tokens exactly when they are equal.

A recorded token id is a segment of its own with one token in it, so recorded sequences (where two prompts
may share a first token by accident) use the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """`segment[start:stop]`, in tokens."""

    segment: int
    start: int
    stop: int


Tokens = tuple[Run, ...]


def whole(segment: int, tokens: int) -> Tokens:
    """Make a sequence of one whole segment of `tokens` tokens; the empty sequence for 0."""
    return (Run(segment, 0, tokens),) if tokens else ()


def literal(token_ids: Iterable[int]) -> Tokens:
    """Make a sequence of recorded token ids, each a one-token segment of its own."""
    return tuple(Run(token_id, 0, 1) for token_id in token_ids)


def count(tokens: Tokens) -> int:
    """Count the tokens of a sequence."""
    return sum([stop - start for _, start, stop in tokens])


def normal(runs: Iterable[Run]) -> Tokens:
    """Bring non-empty runs into normal form."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].segment == run.segment and joined[-1].stop == run.start:
            joined[-1] = Run(run.segment, joined[-1].start, run.stop)
        else:
            joined.append(run)
    return tuple(joined)


def concat(*parts: Tokens) -> Tokens:
    """Join parts in normal form to one sequence in normal form."""
    joined: list[Run] = []
    for part in parts:
        if joined and part:
            last, first = joined[-1], part[0]
            if last.stop == first.start and last.segment == first.segment:
                joined[-1] = Run(last.segment, last.start, first.stop)
                part = part[1:]
        joined += part
    return tuple(joined)


def split(tokens: Tokens, at: int) -> tuple[Tokens, Tokens]:
    """Split a sequence into its first `at` tokens and the rest; `at` beyond either end gives an empty side."""
    if at <= 0:
        return (), tokens
    left = at
    for index, run in enumerate(tokens):
        size = run.stop - run.start
        if size > left:
            cut = run.start + left
            head = (*tokens[:index], Run(run.segment, run.start, cut)) if left else tokens[:index]
            return head, (Run(run.segment, cut, run.stop), *tokens[index + 1 :])
        left -= size
        if not left:
            return tokens[: index + 1], tokens[index + 1 :]
    return tokens, ()


def place(tokens: Tokens, total: int, at: int) -> tuple[int, int]:
    """Find token `at` of `total` as (index of the run, tokens into it); searched from the end, where contexts grow."""
    index, left = len(tokens), total - at
    while left > 0:
        index -= 1
        run = tokens[index]
        left -= run.stop - run.start
    return index, -left


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Count the leading tokens that two sequences share."""
    shared = 0
    for left, right in zip(a, b, strict=False):
        if left == right:
            shared += left.stop - left.start
            continue
        if left.segment == right.segment and left.start == right.start:
            shared += min(left.stop, right.stop) - left.start
        break
    return shared


class Segments:
    """The segments of one run: a fresh one for private text, one a name for text that tasks share.

    `recorded` holds the token ids of the segments that were recorded with ids. A simulation compares segments and never
    uses the ids; a real server needs them.
    """

    def __init__(self) -> None:
        self.recorded: dict[int, Sequence[int]] = {}
        self._next = 0
        self._shared: dict[str, int] = {}

    def fresh(self, token_ids: Sequence[int] | None = None) -> int:
        """Make a segment that no other text shares, and keep its recorded ids."""
        self._next += 1
        if token_ids is not None:
            self.recorded[self._next] = token_ids
        return self._next

    def shared(self, name: str, token_ids: Sequence[int] | None = None) -> int:
        """Find or make the segment of a name; every call returns the same one."""
        segment = self._shared.get(name)
        if segment is None:
            segment = self._shared[name] = self.fresh(token_ids)
        return segment
