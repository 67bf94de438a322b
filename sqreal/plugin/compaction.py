# SPDX-License-Identifier: Apache-2.0
"""Row compaction after a drop: the later slots close up in SGLang's `req_to_token`, and no KV moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def close_up(table: Tensor, row: int, length: int, spans: Sequence[tuple[int, int]]) -> int:
    """Remove spans of positions from the first `length` entries of a row, in place; returns the new length.

    table  [requests, context] int32 or int64: position -> slot (srt/mem_cache/memory_pool.py, ReqToTokenPool)
    spans  sorted disjoint [begin, end) within `length`

    On a GPU sqkernels does it, in stream order, and reads nothing back; on a CPU torch does. Entries after the new
    length are stale.
    """
    if table.device.type == "cuda":
        return close_up_by_kernel(table, row, length, spans)
    keep = torch.ones(length, dtype=torch.bool)
    for begin, end in spans:
        keep[begin:end] = False
    kept = table[row, :length][keep]
    table[row, : len(kept)] = kept
    return len(kept)


def close_up_by_kernel(table: Tensor, row: int, length: int, spans: Sequence[tuple[int, int]]) -> int:
    """Do the same by `sqkernels.compact`, on a GPU or in Triton's interpreter."""
    from sqkernels.compact import compact_spans  # noqa: PLC0415 - a server on a CPU has no use for Triton
    from sqkernels.rows import Rows  # noqa: PLC0415

    (left,) = compact_spans(Rows.of(table, [row], [length]), [spans]).lengths
    return left
