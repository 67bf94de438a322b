# SPDX-License-Identifier: Apache-2.0
"""Attention of a request's last queries over paged keys: two kernels that snapkv.py, rkv.py and h2o.py share.

Query rows are laid out window-major, row = w * GROUP + g, the group padded to a power of two, so that a tile of rows holds
whole groups. `ROW_TILE` rows meet `KEY_TILE` keys in one tl.dot.

Two forms. Softmax: each head over all keys, causal within the window, a sink in the denominator. Group maximum (R-KV):
the largest logit of the group, over the keys before the window only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sqkernels.launch import WIDEN, kernel, launch
from sqkernels.window import Window

SPLIT = 1024  # keys of which one program sums the exponentials


@dataclass(frozen=True)
class Tiles:
    """Shapes of one launch; output rows are query rows, or windows where the kernel takes the group's maximum."""

    padded: int  # query heads of a group, padded to a power of two
    row_tile: int
    key_tile: int
    count: int  # row tiles
    out_tile: int  # output rows of a tile
    warps: int

    @classmethod
    def of(cls, window: Window, *, group_max: bool) -> Tiles:
        padded = triton.next_power_of_2(window.group)
        rows = padded * window.window
        if window.keys.dtype == torch.float32:
            row_tile, key_tile, warps = (
                16,
                32,
                8,
            )  # exact products are no work of tensor cores; larger tiles spill
        else:
            row_tile, key_tile = next(tile for tile in (16, 64, 128) if rows <= tile or tile == 128), 64
            warps = 8 if row_tile > 64 else 4
        row_tile = max(row_tile, padded)
        out_tile = row_tile // padded if group_max else row_tile
        return cls(padded, row_tile, key_tile, triton.cdiv(rows, row_tile), out_tile, warps)

    @property
    def rows(self) -> int:
        return self.count * self.out_tile


def denominators(window: Window, tiles: Tiles, *, group_max: bool) -> Tensor:
    """Return [b, kv_heads, tiles.rows] float32: natural log of each row's sum of exponentials, sink included.

    One pass over the keys, in splits whose partial sums torch joins; none where `window.lse` has it already.
    """
    rows, group = window.rows, window.group
    b, heads = len(rows), window.heads
    if window.lse is not None and not group_max:
        by_head = window.lse.view(b, window.window, heads, group).transpose(1, 2)
        by_head = torch.nn.functional.pad(by_head, (0, tiles.padded - group)).flatten(2)
        return torch.nn.functional.pad(by_head, (0, tiles.rows - by_head.shape[2])).contiguous()
    splits = triton.cdiv(rows.longest, SPLIT)
    partial = torch.empty(b, heads, splits, tiles.rows, dtype=torch.float32, device=rows.table.device)
    launch(
        _sum_exponentials, (b * heads, splits, tiles.count),
        window.queries, window.keys, rows.table, rows.table.stride(0), rows.index, rows.length, partial,
        float(window.scale), tiles.rows, HEADS=heads, GROUP=group, WINDOW=window.window, DIM=window.keys.shape[2],
        PADDED=tiles.padded, ROW_TILE=tiles.row_tile, KEY_TILE=tiles.key_tile, OUT_TILE=tiles.out_tile, SPLIT=SPLIT,
        GROUP_MAX=group_max, WIDEN=WIDEN, warps=tiles.warps,
    )  # fmt: skip
    lse = partial.logsumexp(2)
    if window.sinks is None:
        return lse
    sinks = window.sinks.view(heads, group)
    if group_max:
        return torch.logaddexp(lse, sinks.amax(1)[None, :, None])
    sinks = torch.nn.functional.pad(sinks, (0, tiles.padded - group)).repeat(1, tiles.rows // tiles.padded)
    return torch.logaddexp(lse, sinks[None])


def add_scores(
    window: Window,
    out: Tensor,
    weight: float,
    *,
    group_max: bool = False,
    before: bool = False,
    by_slot: bool = False,
) -> None:
    """Sum the attention that each key receives from all rows, times `weight`, in a second pass over the keys.

    out      [b, kv_heads, width] float32, written; or, by_slot, [slots, kv_heads] float32, added to
    before   write 0 for the keys of the window itself
    """
    rows = window.rows
    b, heads = len(rows), window.heads
    if not b or not rows.longest:
        return
    tiles = Tiles.of(window, group_max=group_max)
    lse = denominators(window, tiles, group_max=group_max)
    launch(
        _score, (b * heads, triton.cdiv(rows.longest, tiles.key_tile)),
        window.queries, window.keys, rows.table, rows.table.stride(0), rows.index, rows.length, lse, out,
        out.stride(0), out.stride(1), float(window.scale), weight, tiles.count,
        HEADS=heads, GROUP=window.group, WINDOW=window.window, DIM=window.keys.shape[2],
        PADDED=tiles.padded, ROW_TILE=tiles.row_tile, KEY_TILE=tiles.key_tile, OUT_TILE=tiles.out_tile,
        GROUP_MAX=group_max, BEFORE=before, BY_SLOT=by_slot, WIDEN=WIDEN, warps=tiles.warps,
    )  # fmt: skip


@kernel
def _load_queries(
    queries: tl.tensor, request: tl.tensor, head: tl.tensor, tile: tl.tensor, HEADS: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, ROW_TILE: tl.constexpr, WIDEN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load a tile of query rows, [ROW_TILE, DIM]; zeros after the end of the group or the window."""
    row = tile * ROW_TILE + tl.arange(0, ROW_TILE)
    w, g = row // PADDED, row % PADDED
    at = (request.to(tl.int64) * WINDOW + w) * (HEADS * GROUP) + head * GROUP + g
    live = (w < WINDOW) & (g < GROUP)
    q = tl.load(queries + at[:, None] * DIM + tl.arange(0, DIM)[None, :], mask=live[:, None], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    return q


@kernel
def load_keys(
    keys: tl.tensor,
    slot: tl.tensor,
    inside: tl.tensor,
    head: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Load one head's keys of the given slots, [slots, DIM]."""
    at = slot.to(tl.int64) * (HEADS * DIM) + head * DIM
    k = tl.load(keys + at[:, None] + tl.arange(0, DIM)[None, :], mask=inside[:, None], other=0.0)
    if WIDEN:
        k = k.to(tl.float32)
    return k


@kernel
def _logits(
    q: tl.tensor, k: tl.tensor, place: tl.tensor, count: tl.tensor, tile: tl.tensor, scale: tl.tensor, GROUP: tl.constexpr, WINDOW: tl.constexpr,
    PADDED: tl.constexpr, ROW_TILE: tl.constexpr, OUT_TILE: tl.constexpr, GROUP_MAX: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Compute [OUT_TILE, keys] logits, -inf where a row does not see a key."""
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    row = tile * ROW_TILE + tl.arange(0, ROW_TILE)
    if GROUP_MAX:
        live = (row % PADDED) < GROUP
        logits = tl.where(live[:, None], logits, -float("inf"))
        logits = tl.max(tl.reshape(logits, (OUT_TILE, PADDED, k.shape[0])), 1)
        w = tile * OUT_TILE + tl.arange(0, OUT_TILE)
        seen = (w < WINDOW)[:, None] & (place < count - WINDOW)[None, :]
    else:
        w, g = row // PADDED, row % PADDED
        last = count - WINDOW + w
        seen = (
            ((w < WINDOW) & (g < GROUP))[:, None] & (place[None, :] <= last[:, None]) & (place < count)[None, :]
        )
    return tl.where(seen, logits, -float("inf"))


@kernel
def _sum_exponentials(
    queries: tl.tensor, keys: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, partial: tl.tensor, scale: tl.tensor,
    out_rows: tl.tensor, HEADS: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, DIM: tl.constexpr,
    PADDED: tl.constexpr, ROW_TILE: tl.constexpr, KEY_TILE: tl.constexpr, OUT_TILE: tl.constexpr, SPLIT: tl.constexpr,
    GROUP_MAX: tl.constexpr, WIDEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests x KV heads, splits, row tiles): partial[request, head, split, row] = log sum exp over the split."""
    request, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    split, tile = tl.program_id(1), tl.program_id(2)
    count = tl.load(length + request)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    q = _load_queries(queries, request, head, tile, HEADS, GROUP, WINDOW, DIM, PADDED, ROW_TILE, WIDEN)
    largest = tl.full((OUT_TILE,), -float("inf"), tl.float32)
    total = tl.zeros((OUT_TILE,), tl.float32)
    for block in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, count), KEY_TILE):
        place = block + tl.arange(0, KEY_TILE)
        inside = place < count
        k = load_keys(keys, tl.load(row + place, mask=inside, other=0), inside, head, HEADS, DIM, WIDEN)
        logits = _logits(q, k, place, count, tile, scale, GROUP, WINDOW, PADDED, ROW_TILE, OUT_TILE, GROUP_MAX)
        larger = tl.maximum(largest, tl.max(logits, 1))
        base = tl.where(
            larger == -float("inf"), 0.0, larger
        )  # a row that has seen no key yet: exp(-inf - 0) = 0
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(logits - base[:, None]), 1)
        largest = larger
    at = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + split) * out_rows + tile * OUT_TILE
    lse = tl.where(total > 0, largest + tl.log(tl.where(total > 0, total, 1.0)), -float("inf"))
    tl.store(partial + at + tl.arange(0, OUT_TILE), lse)


@kernel
def _score(
    queries: tl.tensor, keys: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, lse: tl.tensor, out: tl.tensor,
    out_stride: tl.tensor, out_stride_head: tl.tensor, scale: tl.tensor, weight: tl.tensor, tiles: tl.tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    ROW_TILE: tl.constexpr, KEY_TILE: tl.constexpr, OUT_TILE: tl.constexpr, GROUP_MAX: tl.constexpr,
    BEFORE: tl.constexpr, BY_SLOT: tl.constexpr, WIDEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests x KV heads, key tiles): load a tile of keys once and score it against all query rows."""
    request, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    count = tl.load(length + request)
    place = tl.program_id(1) * KEY_TILE + tl.arange(0, KEY_TILE)
    inside = place < count
    if tl.program_id(1) * KEY_TILE < count:
        row = table + tl.load(index + request).to(tl.int64) * table_stride
        slot = tl.load(row + place, mask=inside, other=0).to(tl.int64)
        k = load_keys(keys, slot, inside, head, HEADS, DIM, WIDEN)
        score = tl.zeros((KEY_TILE,), tl.float32)
        for tile in range(tiles):
            q = _load_queries(queries, request, head, tile, HEADS, GROUP, WINDOW, DIM, PADDED, ROW_TILE, WIDEN)
            logits = _logits(
                q, k, place, count, tile, scale, GROUP, WINDOW, PADDED, ROW_TILE, OUT_TILE, GROUP_MAX
            )
            own = tl.load(
                lse + (tl.program_id(0).to(tl.int64) * tiles + tile) * OUT_TILE + tl.arange(0, OUT_TILE)
            )
            own = tl.where(
                own == -float("inf"), 0.0, own
            )  # a row that sees no key gives nothing: exp(-inf - 0) = 0
            score += tl.sum(tl.exp(logits - own[:, None]), 0)
        score *= weight
        if BEFORE:
            score = tl.where(place < count - WINDOW, score, 0.0)
        if BY_SLOT:
            # two requests may share a slot, so the sum is atomic; without sharing each slot has one addend
            tl.atomic_add(out + slot * out_stride + head, score, mask=inside, sem="relaxed")
        else:
            at = request.to(tl.int64) * out_stride + head * out_stride_head
            tl.store(out + at + place, score, mask=inside)
