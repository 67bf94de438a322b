# SPDX-License-Identifier: Apache-2.0
"""Shorten recorded prompts: of each, only the tokens after the part that an earlier request had already sent or got."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

_HEAD = 16
"""Leading tokens by which earlier requests are found, and the fewest that are worth a reference."""
_TRIED = 16
"""Latest requests with the same head that are compared."""
MOST_TOKENS = 16_000_000
"""Tokens held for comparison (8 bytes each); the requests used least recently are forgotten beyond it."""


class Rest(NamedTuple):
    """A prompt: the first `keep` tokens of request `after` (its prompt, then its output), then `ids`."""

    after: str | None
    keep: int
    ids: list[int]


class Prompts:
    """Sequences of earlier requests: each prompt and, once it ended, its output."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most, self._held = most_tokens, 0
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._heads: defaultdict[bytes, deque[str]] = defaultdict(lambda: deque(maxlen=_TRIED))

    def rest(self, rid: str, prompt: array[int]) -> Rest:
        """Shorten a prompt by the longest beginning that it shares with an earlier request, and remember it."""
        best, keep = None, 0
        if len(prompt) >= _HEAD:
            names = self._heads[prompt[:_HEAD].tobytes()]
            for name in names:
                known = self._known.get(name)
                same = 0 if known is None else _common(known, prompt)
                if same > keep or (same == keep and best is not None):
                    best, keep = name, same
            if best is not None:
                self._known.move_to_end(best)
            if rid not in names:
                names.append(rid)
            self._keep(rid, prompt)
        return Rest(best, keep, prompt[keep:].tolist())

    def ended(self, rid: str, output: array[int]) -> None:
        """Note what followed a prompt."""
        known = self._known.get(rid)
        if known is not None:
            self._keep(rid, known + output)

    def _keep(self, rid: str, sequence: array[int]) -> None:
        self._held += len(sequence) - len(self._known.pop(rid, ()))
        self._known[rid] = sequence
        while self._held > self._most and len(self._known) > 1:
            _, old = self._known.popitem(last=False)
            self._held -= len(old)
        if len(self._heads) > 4 * len(self._known) + 64:
            for head in [head for head, names in self._heads.items() if not self._known.keys() & set(names)]:
                del self._heads[head]


def _common(one: array[int], other: array[int]) -> int:
    """Count the leading tokens that two sequences share, by bisection: equal parts are compared as memory."""
    low, high = 0, min(len(one), len(other))
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    width = one.itemsize
    if left[: high * width] == right[: high * width]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low * width : middle * width] == right[low * width : middle * width]:
            low = middle
        else:
            high = middle
    return low
