# SPDX-License-Identifier: Apache-2.0
"""Find the beginnings that conversations share: system prompts and tool definitions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from sqsim.trace.formats.served.request import Ids, common

SHORTEST = 16
"""Fewest tokens that count as a shared beginning."""


def shared_prefixes(prompts: Sequence[Ids[int]], limits: Sequence[int]) -> list[int]:
    """Return for each first prompt the number of leading tokens that are its shared prefix.

    sqtrace/1 has one prefix a task, so a group of prompts is divided where that shares more tokens in all. A prefix
    has at most `limits[i]` tokens and leaves at least one for the question.
    """
    cut = [ids[: max(0, min(limit, len(ids) - 1))] for ids, limit in zip(prompts, limits, strict=True)]
    order = sorted(range(len(cut)), key=lambda index: cut[index].tolist())
    next_to = [common(cut[a], cut[b]) for a, b in pairwise(order)]
    found = [0] * len(cut)
    pending = [(0, len(order))] if order else []
    while pending:
        start, stop = pending.pop()
        if stop - start < 2:
            continue
        least = min(next_to[start : stop - 1])
        bounds = [start, *(i + 1 for i in range(start, stop - 1) if next_to[i] == least), stop]
        parts = list(pairwise(bounds))
        inner = sum((b - a - 1) * min(next_to[a : b - 1]) for a, b in parts if b - a > 1)
        if least >= SHORTEST and inner <= (stop - start - 1) * least:
            for place in range(start, stop):
                found[order[place]] = least
        else:
            pending += parts
    return found


def prefix_id(ids: Ids[int]) -> str:
    """Name a prefix by its tokens, so that equal ones of other recordings are the same."""
    return f"tokens-{hashlib.sha256(ids.tobytes()).hexdigest()[:16]}" if ids else "none"
