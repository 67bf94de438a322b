# SPDX-License-Identifier: Apache-2.0
"""Compaction of page-table rows: remove the slots of dropped positions and close up the survivors in place.

At page size 1 this is all that in-place eviction does: not a byte of KV moves (the kept keys stay where and as they are).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.launch import kernel, launch
from sqkernels.rows import Rows
from sqkernels.spans import Spans, last_not_above

BLOCK = 1024  # positions a program


@dataclass(frozen=True, eq=False)
class Compacted:
    """Result of a span compaction: freed slots in order of request, then position, and the new lengths.

    freed    [sum of dropped] of the table's dtype, on its device
    start    [b + 1] where each request's freed slots begin, on the host
    lengths  [b] new lengths in tokens, on the host
    """

    freed: Tensor
    start: tuple[int, ...]
    lengths: tuple[int, ...]


def compact_spans(rows: Rows, spans: Sequence[Sequence[tuple[int, int]]]) -> Compacted:
    """Drop spans of positions from rows, in place; entries after a row's new length keep stale values.

    rows   b rows of an int32 or int64 table; spans: for each, sorted disjoint [begin, end) in positions
    Raises KernelInputError as `Spans.of` says, before anything is launched.
    Floor: entries behind the first dropped position are read and written once: 2 x itemsize x positions (8 bytes a
    position in int32); at 4.8 TB/s under 1 us a row, so latency bounds it. The scratch doubles the bytes. Two launches,
    no scan: each element finds its span by binary search.
    Source: our own; the layout is SGLang's `req_to_token`.
    """
    plan = Spans.of(rows, spans)
    table, device = rows.table, rows.table.device
    tails = [length - first for length, first in zip(rows.lengths, plan.first, strict=True)]
    kept = [tail - dropped for tail, dropped in zip(tails, plan.dropped, strict=True)]
    freed_start, kept_start = checks.sums(plan.dropped), checks.sums(kept)
    freed = torch.empty(freed_start[-1], dtype=table.dtype, device=device)
    lengths = tuple(length - dropped for length, dropped in zip(rows.lengths, plan.dropped, strict=True))
    if freed_start[-1]:
        scratch = torch.empty(kept_start[-1], dtype=table.dtype, device=device)
        start, begin, end, before, first, freed_at, kept_at = checks.to_device(
            device, plan.start, plan.begin, plan.end, plan.before, plan.first, freed_start, kept_start
        )
        launch(
            _split, (triton.cdiv(max(tails), BLOCK), len(rows)),
            table, table.stride(0), rows.index, rows.length, start, begin, end, before, first,
            scratch, kept_at, freed, freed_at, plan.steps, BLOCK=BLOCK,
        )  # fmt: skip
        launch(
            _return, (triton.cdiv(max(kept), BLOCK), len(rows)),
            table, table.stride(0), rows.index, first, scratch, kept_at, BLOCK=BLOCK,
        )  # fmt: skip
    return Compacted(freed, freed_start, lengths)


def compact_spans_reference(rows: Rows, spans: Sequence[Sequence[tuple[int, int]]]) -> Compacted:
    """Do the same as `compact_spans` in plain torch."""
    plan = Spans.of(rows, spans)
    freed, lengths = [rows.table.new_empty(0)], []
    for request in range(len(rows)):
        slots = rows.slots(request).clone()
        keep = torch.ones(len(slots), dtype=torch.bool, device=slots.device)
        for begin, end in plan.of_request(request):
            keep[begin:end] = False
        left = slots[keep]
        rows.slots(request)[: len(left)] = left
        freed.append(slots[~keep])
        lengths.append(len(left))
    return Compacted(torch.cat(freed), checks.sums(len(part) for part in freed[1:]), tuple(lengths))


@kernel
def _split(
    table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, start: tl.tensor, begin: tl.tensor, end: tl.tensor, before: tl.tensor, first: tl.tensor,
    scratch: tl.tensor, kept_at: tl.tensor, freed: tl.tensor, freed_at: tl.tensor, steps: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks after the first dropped position, requests): survivors to the scratch, dropped slots to `freed`."""
    request = tl.program_id(1)
    from_ = tl.load(first + request)
    place = from_ + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(length + request)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    slot = tl.load(row + place, mask=inside, other=0)
    low = tl.load(start + request)
    span = last_not_above(begin, low, tl.load(start + request + 1), place, steps)
    inside = inside & (
        span >= low
    )  # always so from the first dropped position on; without spans nothing is inside
    opens = tl.load(begin + span, mask=inside, other=0)
    closes = tl.load(end + span, mask=inside, other=0)
    gone = (
        tl.load(before + span, mask=inside, other=0) + tl.minimum(place, closes) - opens
    )  # dropped before `place`
    drop = place < closes
    tl.store(scratch + tl.load(kept_at + request) + place - from_ - gone, slot, mask=inside & (drop == 0))
    tl.store(freed + tl.load(freed_at + request) + gone, slot, mask=inside & drop)


@kernel
def _return(
    table: tl.tensor,
    table_stride: tl.tensor,
    index: tl.tensor,
    first: tl.tensor,
    scratch: tl.tensor,
    kept_at: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Grid (blocks of survivors, requests): copy the scratch back into the rows."""
    request = tl.program_id(1)
    at = tl.load(kept_at + request)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(kept_at + request + 1) - at
    slot = tl.load(scratch + at + place, mask=inside, other=0)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    tl.store(row + tl.load(first + request) + place, slot, mask=inside)
