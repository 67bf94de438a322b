# SPDX-License-Identifier: Apache-2.0
"""R-KV's redundancy: similarity of a key to the other keys of its request, without a tokens x tokens matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sqkernels import buffers, checks
from sqkernels.attention import load_keys
from sqkernels.launch import WIDEN, kernel, launch
from sqkernels.rows import Rows

TILE = 64  # keys a program of the linear parts, and keys a step of the scan in 16 bits
SMALL = 1e-8  # R-KV adds it to a key's length
FIXED = (
    2.0**40
)  # a cosine as an integer, so that the order of an atomic sum cannot show: at most 2^17 x 2^40 < 2^63


def rkv_redundancy(rows: Rows, keys: Tensor, threshold: float = 0.5) -> Tensor:
    """Return [b, kv_heads, longest row] float32: softmax over a row's keys of their mean cosine with the other keys.

    rows   b rows; keys: [slots, kv_heads, head_dim] bf16, fp16 or fp32, as cached
    Of each key's cosines with all others, the last one in the row above the threshold counts as 0 (the first one of all,
    where none is above): so the newest of a set of likes is not called redundant. 0 behind a row's length.
    Raises KernelInputError for keys of another shape or dtype; slots beyond the keys are the caller's to rule out.
    Floor: all cosines with one key sum to a product with the sum of all unit keys: 2 passes over K. Finding each key's
    last like is tokens^2 in the worst case, 7.6 ms of GEMM for 24,576 tokens, 8 heads and 12 layers; it scans from the
    end and stops when a tile has found all of its own.
    Exact sums of likes: the same kept set every time. Source: R-KV (arXiv 2505.24133), section 3.3; its code: cal_similarity.
    """
    _check(rows, keys, threshold)
    b, heads, dim = len(rows), keys.shape[1], keys.shape[2]
    device, width = rows.table.device, rows.longest
    out = torch.zeros(b, heads, width, dtype=torch.float32, device=device)
    if not out.numel():
        return out
    tiles = triton.cdiv(width, TILE)
    inverse = torch.empty_like(out)
    part = torch.empty(b, heads, tiles, dim, dtype=torch.float32, device=device)
    exempt = torch.zeros(out.shape, dtype=torch.int64, device=device)
    where = (rows.table, rows.table.stride(0), rows.index, rows.length)
    launch(
        _unit_sums, (b * heads, tiles),
        keys, *where, inverse, part, width, HEADS=heads, DIM=dim, TILE=TILE, SMALL=SMALL,
    )  # fmt: skip
    row_tile, tile, warps = 64, TILE, 4
    if keys.dtype == torch.float32:  # exact products are no work of tensor cores; larger tiles than these spill
        row_tile, tile, warps = 16, 32 if dim <= 64 else 16, 8
    launch(
        _exempt_last_like, (b * heads, triton.cdiv(width, row_tile)),
        keys, *where, inverse, exempt, width, float(threshold),
        HEADS=heads, DIM=dim, ROW_TILE=row_tile, TILE=tile, FIXED=FIXED, WIDEN=WIDEN, warps=warps,
    )  # fmt: skip
    launch(
        _mean_cosines, (b * heads, tiles),
        keys, *where, inverse, part.sum(2), exempt, out, width, HEADS=heads, DIM=dim, TILE=TILE, FIXED=FIXED,
    )  # fmt: skip
    return _softmax(rows, out)


def rkv_redundancy_reference(rows: Rows, keys: Tensor, threshold: float = 0.5) -> Tensor:
    """Do the same as `rkv_redundancy` in plain torch, by the whole matrix."""
    _check(rows, keys, threshold)
    out = torch.zeros(len(rows), keys.shape[1], rows.longest, dtype=torch.float32, device=keys.device)
    for request, length in enumerate(rows.lengths):
        if length:
            own = keys[rows.slots(request).long()].float().transpose(0, 1)
            unit = own / (own.norm(dim=-1, keepdim=True) + SMALL)
            cosines = unit @ unit.mT
            cosines.diagonal(dim1=1, dim2=2).zero_()
            place = torch.arange(length, device=keys.device)
            last = torch.where(cosines > threshold, place, 0).amax(-1, keepdim=True)
            out[request, :, :length] = cosines.scatter(-1, last, 0.0).mean(1)
    return _softmax(rows, out)


def _check(rows: Rows, keys: Tensor, threshold: float) -> None:
    checks.real("threshold", threshold, -1, 1)
    buffers.check("keys", keys, (None, None, None), checks.FLOATS, rows.table.device)


def _softmax(rows: Rows, means: Tensor) -> Tensor:
    outside = torch.arange(means.shape[2], device=means.device) >= rows.length[:, None, None]
    return means.masked_fill(outside, -torch.inf).softmax(-1).masked_fill(outside, 0.0)


@kernel
def _unit_sums(
    keys: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, inverse: tl.tensor, part: tl.tensor, width: tl.tensor,
    HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, SMALL: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests x KV heads, tiles): the inverse of each key's length, and the tile's sum of unit keys."""
    request, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < tl.load(length + request)
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    slot = tl.load(row + place, mask=inside, other=0)
    k = load_keys(keys, slot, inside, head, HEADS, DIM, True)
    over = tl.where(inside, 1.0 / (tl.sqrt(tl.sum(k * k, 1)) + SMALL), 0.0)
    tl.store(inverse + tl.program_id(0).to(tl.int64) * width + place, over, mask=place < width)
    at = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * DIM
    tl.store(part + at + tl.arange(0, DIM), tl.sum(k * over[:, None], 0))


@kernel
def _exempt_last_like(
    keys: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, inverse: tl.tensor, exempt: tl.tensor, width: tl.tensor,
    threshold: tl.tensor, HEADS: tl.constexpr, DIM: tl.constexpr, ROW_TILE: tl.constexpr, TILE: tl.constexpr,
    FIXED: tl.constexpr, WIDEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests x KV heads, row tiles): exempt[last like of i] += cosine of i with it, for each row i of the tile."""
    request, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    count = tl.load(length + request)
    i = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)
    live = i < count
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    over = inverse + tl.program_id(0).to(tl.int64) * width
    own = load_keys(keys, tl.load(row + i, mask=live, other=0), live, head, HEADS, DIM, WIDEN)
    own_over = tl.load(over + i, mask=live, other=0.0)
    last = tl.full((ROW_TILE,), -1, tl.int32)
    value = tl.zeros((ROW_TILE,), tl.float32)
    with_first = tl.zeros((ROW_TILE,), tl.float32)  # the cosine with key 0, for rows without a like
    block = (count + TILE - 1) // TILE - 1
    open_ = tl.sum(live.to(tl.int32), 0)
    while (block >= 0) & (open_ > 0):
        j = block * TILE + tl.arange(0, TILE)
        inside = j < count
        other = load_keys(keys, tl.load(row + j, mask=inside, other=0), inside, head, HEADS, DIM, WIDEN)
        other_over = tl.load(over + j, mask=inside, other=0.0)
        cosine = tl.dot(own, tl.trans(other), input_precision="ieee") * own_over[:, None] * other_over[None, :]
        like = (cosine > threshold) & (i[:, None] != j[None, :]) & inside[None, :]
        best = tl.max(tl.where(like, j[None, :], -1), 1)
        with_best = tl.sum(tl.where(j[None, :] == best[:, None], cosine, 0.0), 1)
        new = (last < 0) & (best >= 0)
        last = tl.where(new, best, last)
        value = tl.where(new, with_best, value)
        with_first = tl.where(block == 0, tl.sum(tl.where(j[None, :] == 0, cosine, 0.0), 1), with_first)
        open_ = tl.sum(((last < 0) & live).to(tl.int32), 0)
        block -= 1
    value = tl.where(last < 0, with_first, value)
    last = tl.maximum(last, 0)
    to = exempt + tl.program_id(0).to(tl.int64) * width + last
    # nearest integer, half upwards; the diagonal is left out of all sums, so there is nothing to exempt there
    tl.atomic_add(to, tl.floor(value * FIXED + 0.5).to(tl.int64), mask=live & (last != i), sem="relaxed")


@kernel
def _mean_cosines(
    keys: tl.tensor, table: tl.tensor, table_stride: tl.tensor, index: tl.tensor, length: tl.tensor, inverse: tl.tensor, total: tl.tensor, exempt: tl.tensor, out: tl.tensor,
    width: tl.tensor, HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, FIXED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (requests x KV heads, tiles): mean over rows of unit key . sum of unit keys - itself - its exempt sum."""
    request, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    count = tl.load(length + request)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < count
    row = table + tl.load(index + request).to(tl.int64) * table_stride
    slot = tl.load(row + place, mask=inside, other=0)
    at = tl.program_id(0).to(tl.int64) * width + place
    k = (
        load_keys(keys, slot, inside, head, HEADS, DIM, True)
        * tl.load(inverse + at, mask=inside, other=0.0)[:, None]
    )
    sum_ = tl.load(total + tl.program_id(0).to(tl.int64) * DIM + tl.arange(0, DIM))
    gone = tl.load(exempt + at, mask=inside, other=0).to(tl.float64) / FIXED
    mean = (tl.sum(k * sum_[None, :], 1) - tl.sum(k * k, 1) - gone.to(tl.float32)) / tl.maximum(count, 1)
    tl.store(out + at, mean, mask=inside)
