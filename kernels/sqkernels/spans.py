# SPDX-License-Identifier: Apache-2.0
"""Spans of positions to drop, checked on the host, where a policy chooses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton.language as tl

from sqkernels import checks
from sqkernels.errors import KernelInputError
from sqkernels.launch import kernel
from sqkernels.rows import Rows


@dataclass(frozen=True)
class Spans:
    """Sorted and disjoint half-open spans [begin, end) of positions of each request, in compressed rows.

    start    [b + 1] where each request's spans begin in the lists below
    begin, end, before   [spans]; before: tokens that the request's earlier spans drop
    first    [b] the request's first dropped position, its length where it loses nothing
    dropped  [b] tokens that it loses
    """

    start: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    before: tuple[int, ...]
    first: tuple[int, ...]
    dropped: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows, spans: Sequence[Sequence[tuple[int, int]]]) -> Spans:
        """Build from the spans of each row, in the order of the rows; spans may touch, and a row may have none.

        Refused by name: spans that are empty, reach outside of their row, overlap, or do not ascend.
        """
        lists = checks.each("spans", spans, "lists of (begin, end), one a row")
        if len(lists) != len(rows):
            raise KernelInputError(
                f"spans: lists for {len(lists)} requests, rows for {len(rows)}; give one a row"
            )
        pairs = [_pairs(f"spans[{request}]", own) for request, own in enumerate(lists)]
        begin: list[int] = []
        end: list[int] = []
        before: list[int] = []
        dropped = []
        for request, (own, length) in enumerate(zip(pairs, rows.lengths, strict=True)):
            last = gone = 0
            for number, (first, past) in enumerate(own):
                place = f"spans[{request}][{number}]: [{first}, {past})"
                if first >= past:
                    raise KernelInputError(f"{place} is empty or reversed; leave it out, or give begin < end")
                if first < 0 or past > length:
                    raise KernelInputError(
                        f"{place} is out of range; the request has "
                        + (
                            f"positions 0 to {length - 1}; give 0 <= begin < end <= {length}"
                            if length
                            else "none; give it an empty list"
                        )
                    )
                if first < last:
                    earlier = f"[{own[number - 1][0]}, {own[number - 1][1]})"
                    fault = "overlaps" if past > own[number - 1][0] else "is not sorted: it comes after"
                    raise KernelInputError(f"{place} {fault} {earlier}; merge and sort the spans")
                begin.append(first)
                end.append(past)
                before.append(gone)
                gone += past - first
                last = past
            dropped.append(gone)
        firsts = tuple(own[0][0] if own else length for own, length in zip(pairs, rows.lengths, strict=True))
        starts = checks.sums(len(own) for own in pairs)
        return cls(starts, tuple(begin), tuple(end), tuple(before), firsts, tuple(dropped))

    def of_request(self, request: int) -> list[tuple[int, int]]:
        own = slice(self.start[request], self.start[request + 1])
        return list(zip(self.begin[own], self.end[own], strict=True))

    @property
    def steps(self) -> int:
        """Number of halvings that find a place among the spans of any one request."""
        most = max((past - first for first, past in zip(self.start, self.start[1:], strict=False)), default=0)
        return most.bit_length()


def _pairs(name: str, spans: object) -> list[tuple[int, int]]:
    """Return one request's spans, given as pairs or as an array [n, 2], in Python numbers."""
    pairs = []
    for number, span in enumerate(checks.each(name, checks.plain(spans), "(begin, end)")):
        place = f"{name}[{number}]"
        ends = checks.wholes(place, span)
        if len(ends) != 2:
            raise KernelInputError(f"{place}: {len(ends)} numbers; give (begin, end)")
        pairs.append((ends[0], ends[1]))
    return pairs


def runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the half-open spans over which a list of flags is true: spans from a mask of dropped positions."""
    spans = []
    begin = None
    for place, flag in enumerate([*flags, False]):
        if flag and begin is None:
            begin = place
        elif not flag and begin is not None:
            spans.append((begin, place))
            begin = None
    return spans


@kernel
def last_not_above(
    values: tl.tensor, low: tl.tensor, high: tl.tensor, wanted: tl.tensor, steps: tl.tensor
) -> tl.tensor:
    """Find, for each of `wanted`, the last place in ascending values[low:high] that is not above it, or low - 1."""
    left = tl.zeros_like(wanted) + low
    right = tl.zeros_like(wanted) + high
    for _ in range(steps):
        middle = (left + right) // 2
        is_open = left < right
        value = tl.load(values + middle, mask=is_open, other=0)
        left = tl.where(is_open & (value <= wanted), middle + 1, left)
        right = tl.where(is_open & (value > wanted), middle, right)
    return left - 1
