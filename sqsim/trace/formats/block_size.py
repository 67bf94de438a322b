# SPDX-License-Identifier: Apache-2.0
"""Find how many tokens a hash id stands for: stated by the user or the file, the format's own, or derived.

n ids name the blocks of a prompt of L tokens, the last of which may be partial or left out. So a block has more than
L / (n + 1) and, for n > 1, fewer than L / (n - 1) tokens. The bounds of all lines together leave one usual size (a power
of two) as soon as one prompt has three blocks; where they leave none, no size fits, and the lines that say so are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.notes import Notes

_STATED = ("block_size", "trace_block_size", "block_tokens")
_USUAL = tuple(2**power for power in range(15))


class BlockSize(NamedTuple):
    """Tokens of a block, and where the number is from."""

    tokens: int
    how: Literal["given", "stated", "own", "derived", "assumed"]


class _Bounds:
    """Sizes that fit all lines so far: at least `low`, at most `high`, and the lines that set these bounds."""

    def __init__(self) -> None:
        self.low, self.high = 1, 10**9
        self.low_at: Node | None = None
        self.high_at: Node | None = None

    def add(self, node: Node, tokens: int, ids: int) -> None:
        low = tokens // (ids + 1) + 1
        high = -(-tokens // (ids - 1)) - 1 if ids > 1 else 10**9
        if low > self.low:
            self.low, self.low_at = low, node
        if high < self.high:
            self.high, self.high_at = high, node

    def fits(self, size: int) -> bool:
        return self.low <= size <= self.high

    def fault(self, size: int | None, problem: str) -> TraceError:
        """Build the error for the line that rules a size out, or for the one that rules out all."""
        culprit = self.high_at if size is None or size > self.high else self.low_at
        place = culprit or self.low_at or self.high_at
        assert place is not None, "no bound was set, so every size fits"
        other = self.low_at if culprit is self.high_at else self.high_at
        seen = _range(self.low, self.high)
        if self.low > self.high and other is not None:
            seen = f"no size, as line {other.line} needs {'more' if culprit is self.high_at else 'fewer'}"
        tokens, ids = place.get("input_length"), len(place.get("hash_ids") or ())
        return place.wrong(
            f"{problem}: {ids} blocks make {tokens} tokens; the file's lengths allow {seen}",
            "hash_ids",
            "check input_length and hash_ids, or state the tokens of a block with --block-tokens",
        )


def block_size(file: SourceFile, own: int, notes: Notes) -> BlockSize:
    """Find the block size of a file whose lines have `input_length` and `hash_ids`. Raises `TraceError`."""
    bounds = _Bounds()
    stated: int | None = None
    for node in file.nodes():
        mentioned = stated_size(node)
        if stated is not None and mentioned not in {None, stated}:
            raise node.wrong(
                f"states blocks of {mentioned} tokens; an earlier line stated {stated}",
                fix="give files of one block size",
            )
        stated = mentioned or stated
        if node.get("hash_ids") and node.get("input_length") is not None:
            bounds.add(node, max(1, node.count("input_length")), len(node.whole_numbers("hash_ids")))
    return _chosen(file, bounds, stated, own, notes)


def stated_size(node: Node) -> int | None:
    """Read the block size that a line states, if it does."""
    for key in _STATED:
        if node.get(key) is not None:
            size = node.count(key)
            if not size:
                raise node.wrong("0 is not a block size", key)
            return size
    return None


def _chosen(file: SourceFile, bounds: _Bounds, stated: int | None, own: int, notes: Notes) -> BlockSize:
    for size, how in ((file.block_tokens, "given"), (stated, "stated")):
        if size is not None:
            if not bounds.fits(size):
                raise bounds.fault(size, f"blocks of {size} tokens, as {how}, do not fit")
            return BlockSize(size, "given" if how == "given" else "stated")
    if (bounds.low_at is None and bounds.high_at is None) or bounds.fits(own):
        return BlockSize(own, "own")
    fitting = [size for size in _usual(bounds) if bounds.fits(size)]
    if not fitting:
        raise bounds.fault(None, "no usual block size fits")
    if len(fitting) > 1:
        notes[
            f"a block has {fitting[0]} tokens (assumed; {_range(bounds.low, bounds.high)} would fit too)"
        ] += 1
        return BlockSize(fitting[0], "assumed")
    notes[f"a block has {fitting[0]} tokens (derived from input_length and the number of hash_ids)"] += 1
    return BlockSize(fitting[0], "derived")


def _usual(bounds: _Bounds) -> Iterator[int]:
    if bounds.low == bounds.high:
        yield bounds.low
    else:
        yield from _USUAL


def _range(low: int, high: int) -> str:
    return f"{low} tokens or more" if high >= 10**9 else f"{low} to {high} tokens"
