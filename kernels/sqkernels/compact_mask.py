# SPDX-License-Identifier: Apache-2.0
"""Compaction of page-table rows by a keep mask on the device, as a top-k kernel writes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.launch import kernel, launch
from sqkernels.rows import Rows

BLOCK = 4096  # positions a step; a program walks a whole row
WARPS = 8


@dataclass(frozen=True, eq=False)
class Masked:
    """Result of a mask compaction, on the device only: the host has not read the mask.

    freed   [b, width] of the table's dtype: the slots of dropped positions, in order, at the beginning of each row
    length  [b] int32: new lengths in tokens; request i freed rows.length[i] - length[i] slots
    """

    freed: Tensor
    length: Tensor


def compact_mask(rows: Rows, keep: Tensor) -> Masked:
    """Keep the positions that a mask selects, in place; entries after a row's new length keep stale values.

    rows   b rows of an int32 or int64 table
    keep   [b, width >= longest row] bool, int8 or uint8: nonzero keeps; columns behind a row's length are not read
    Raises KernelInputError for a mask of another shape or dtype.
    Floor: each entry is read and written once, the mask read: 9 bytes a position in int32. One program a row, which
    reads a block, waits at a barrier and writes: survivors only ever move down, so no write meets an unread entry.
    Source: our own; the layout is SGLang's `req_to_token`.
    """
    _check(rows, keep)
    table = rows.table
    freed = torch.empty(len(rows), keep.shape[1], dtype=table.dtype, device=table.device)
    length = torch.empty(len(rows), dtype=torch.int32, device=table.device)
    mask = keep.view(torch.int8)
    launch(
        _compact, (len(rows),),
        table, table.stride(0), rows.index, rows.length, mask, mask.stride(0), freed, freed.stride(0), length,
        BLOCK=BLOCK, warps=WARPS,
    )  # fmt: skip
    return Masked(freed, length)


def compact_mask_reference(rows: Rows, keep: Tensor) -> Masked:
    """Do the same as `compact_mask` in plain torch; both leave `freed` undefined after a row's freed slots."""
    _check(rows, keep)
    table = rows.table
    freed = torch.empty(len(rows), keep.shape[1], dtype=table.dtype, device=table.device)
    length = torch.empty(len(rows), dtype=torch.int32, device=table.device)
    for request in range(len(rows)):
        slots = rows.slots(request).clone()
        kept = keep[request, : len(slots)] != 0
        rows.slots(request)[: int(kept.sum())] = slots[kept]
        freed[request, : int((~kept).sum())] = slots[~kept]
        length[request] = kept.sum()
    return Masked(freed, length)


def _check(rows: Rows, keep: Tensor) -> None:
    checks.tensor("keep", keep, (len(rows), None), checks.MASKS, rows.table.device)
    checks.wide_enough("keep", keep, rows.longest)


@kernel
def _compact(
    table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, keep: tl.tensor, keep_stride: tl.tensor, freed: tl.tensor, freed_stride: tl.tensor,
    new_length: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests): each program processes its row upwards, block by block."""
    request = tl.program_id(0)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    flags = keep + request.to(tl.int64) * keep_stride
    gone = freed + request.to(tl.int64) * freed_stride
    count = tl.load(length + request)
    kept = tl.zeros((), tl.int32)
    for block in range(0, count, BLOCK):
        place = block + tl.arange(0, BLOCK)
        inside = place < count
        slot = tl.load(row + place, mask=inside, other=0)
        flag = tl.load(flags + place, mask=inside, other=0) != 0
        ahead = kept + tl.cumsum(flag.to(tl.int32), 0)  # kept up to this position and with it
        tl.debug_barrier()  # every thread has read its entries of this block before one of them is overwritten
        tl.store(row + ahead - 1, slot, mask=inside & flag)
        tl.store(gone + place - ahead, slot, mask=inside & (flag == 0))
        kept += tl.sum(flag.to(tl.int32), 0)
    tl.store(new_length + request, kept)
