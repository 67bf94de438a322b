# SPDX-License-Identifier: Apache-2.0
"""Order-preserving shift: move the KV itself so that a request fills its first slots without a hole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.buffers import WORD, Buffers
from sqkernels.compact import Compacted
from sqkernels.launch import kernel, launch
from sqkernels.rows import Rows
from sqkernels.spans import Spans, last_not_above

ROWS = 128  # rows a step
COLUMN = 16  # words of a row, 128 bytes, that one program moves: a narrow column makes many programs
WARPS = 8


def shift(buffers: Buffers, rows: Rows, spans: Sequence[Sequence[tuple[int, int]]]) -> Compacted:
    """Drop spans of positions by moving all later KV down, in place and in order; the table does not change.

    buffers  K and V of the layers; rows: b rows of their table; spans: for each row, sorted disjoint [begin, end)
    Returned as freed are the last slots of each row, so with pages whole pages come free.
    The rows' slots must be distinct, within a row and among rows: no slot that another request or the radix tree shares
    may lie behind a first dropped position, and none may lie beyond the buffers. That is the caller's to know; it is not
    checked, since the table would have to be waited for.
    Raises KernelInputError as `Spans.of` says, before anything is launched.
    Floor: 2 x row bytes x survivors behind the first dropped position x buffers. A program has one column of one buffer,
    walks the survivors upwards and waits at a barrier between reading a block and writing it; a survivor never moves up,
    so what a write meets has been read.
    Source: our own; closest prior art: TensorRT-LLM's KV compaction (pull requests 16836 and 16957).
    """
    plan = Spans.of(rows, spans)
    table, device = rows.table, rows.table.device
    words = buffers.row_bytes // WORD
    column = min(words & -words, COLUMN)
    start, begin, before, end, first, shifted = checks.to_device(
        device, plan.start, plan.begin, plan.before, plan.end, plan.first,
        [begin - before for begin, before in zip(plan.begin, plan.before, strict=True)],
    )  # fmt: skip
    if any(plan.dropped):
        launch(
            _shift, (len(buffers), words // column, len(rows)),
            buffers.pointers, table, table.stride(0), rows.index, rows.length, start, begin, end, before, shifted, first,
            plan.steps, WORDS=words, COLUMN=column, ROWS=ROWS, warps=WARPS,
        )  # fmt: skip
    return _freed(rows, plan)


def shift_reference(buffers: Buffers, rows: Rows, spans: Sequence[Sequence[tuple[int, int]]]) -> Compacted:
    """Do the same as `shift` in plain torch."""
    plan = Spans.of(rows, spans)
    for request in range(len(rows)):
        slots = rows.slots(request).long()
        keep = torch.ones(len(slots), dtype=torch.bool, device=slots.device)
        for begin, end in plan.of_request(request):
            keep[begin:end] = False
        for tensor in buffers.tensors:
            tensor[slots[: int(keep.sum())]] = tensor[slots[keep]].clone()
    return _freed(rows, plan)


def _freed(rows: Rows, plan: Spans) -> Compacted:
    """Return the last slots of each row, as many as the row dropped."""
    lengths = tuple(length - gone for length, gone in zip(rows.lengths, plan.dropped, strict=True))
    tails: list[Tensor] = [rows.slots(request)[lengths[request] :] for request in range(len(rows))]
    freed = torch.cat(tails) if tails else rows.table.new_empty(0)
    return Compacted(freed, checks.sums(plan.dropped), lengths)


@kernel
def _shift(
    pointers: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, start: tl.tensor, begin: tl.tensor, end: tl.tensor, before: tl.tensor,
    shifted: tl.tensor, first: tl.tensor, steps: tl.tensor, WORDS: tl.constexpr, COLUMN: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (buffers, columns of a row, requests). `shifted`: begin - before of each span, a span's place among survivors."""
    base = tl.multiple_of(tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.int64)), 16)
    word = tl.program_id(1) * COLUMN + tl.arange(0, COLUMN)
    request = tl.program_id(2)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    low, high = tl.load(start + request), tl.load(start + request + 1)
    if low < high:
        gone = tl.load(before + high - 1) + tl.load(end + high - 1) - tl.load(begin + high - 1)
        count = tl.load(length + request) - gone
        for block in range(tl.load(first + request), count, ROWS):
            new = block + tl.arange(0, ROWS)
            inside = new < count
            span = last_not_above(shifted, low, high, new, steps)
            here = inside & (span >= low)
            # the survivor that comes to `new` stands behind all spans up to this one
            old = new + tl.load(before + span, mask=here, other=0)
            old += tl.load(end + span, mask=here, other=0) - tl.load(begin + span, mask=here, other=0)
            from_ = tl.load(row + old, mask=inside, other=0).to(tl.int64)
            to = tl.load(row + new, mask=inside, other=0).to(tl.int64)
            moved = tl.load(base + from_[:, None] * WORDS + word[None, :], mask=inside[:, None])
            tl.debug_barrier()  # every thread has read its part of this block before a target is overwritten
            tl.store(base + to[:, None] * WORDS + word[None, :], moved, mask=inside[:, None])
