# SPDX-License-Identifier: Apache-2.0
"""Turn scores into a keep mask: exactly k places per row, ties to the lowest, the same result every time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.errors import KernelInputError
from sqkernels.launch import kernel, launch

BLOCK = 4096  # scores a step; a program has a whole row
WARPS = 16


def topk_keep(scores: Tensor, lengths: Sequence[int], count: Sequence[int], recent: int = 0) -> Tensor:
    """Return [r, width] bool: each row's last `recent` places and `count` best others; False after its length.

    scores   [r, width] float32; columns behind a row's length are not read. NaN counts as best, as in torch.topk.
    lengths  [r] scores in each row, on the host
    count    [r] places to keep beside the recent ones, 0 up to length - recent
    Equal scores are taken from the lowest place on.
    Raises KernelInputError for a count or a length that does not fit.
    Floor: the scores are read once and the mask written: 5 bytes a place; latency bounds it. Five passes over a row,
    all but the first from cache: four of a radix select over the scores' bits, eight bits each, then the mask.
    Source: our own; radix select: Alabi et al., "Fast k-selection algorithms for graphics processing units", 2012.
    """
    lengths, count, recent = _check(scores, lengths, count, recent)
    device = scores.device
    keep = torch.empty(scores.shape, dtype=torch.bool, device=device)
    length, wanted = checks.to_device(device, lengths, count)
    launch(
        _select, (len(lengths),),
        scores, scores.stride(0), length, wanted, recent, keep.view(torch.int8), keep.stride(0), scores.shape[1],
        BLOCK=BLOCK, warps=WARPS,
    )  # fmt: skip
    return keep


def topk_keep_reference(
    scores: Tensor, lengths: Sequence[int], count: Sequence[int], recent: int = 0
) -> Tensor:
    """Do the same as `topk_keep` in plain torch: a stable descending sort."""
    lengths, count, recent = _check(scores, lengths, count, recent)
    keep = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for row, (length, wanted) in enumerate(zip(lengths, count, strict=True)):
        order = scores[row, : length - recent].sort(descending=True, stable=True).indices
        keep[row, order[:wanted]] = True
        keep[row, length - recent : length] = True
    return keep


def _check(
    scores: Tensor, lengths: Sequence[int], count: Sequence[int], recent: int
) -> tuple[list[int], list[int], int]:
    """Return the numbers as Python ints; refuse any out of range."""
    lengths = checks.wholes("lengths", lengths)
    count = checks.wholes("count", count, len(lengths))
    recent = checks.whole("recent", recent)
    checks.tensor("scores", scores, (len(lengths), None), (torch.float32,))
    checks.wide_enough("scores", scores, max(lengths, default=0))
    if recent < 0:
        raise KernelInputError(f"recent: {recent}; give 0 or more")
    for row, (length, wanted) in enumerate(zip(lengths, count, strict=True)):
        if length < recent:
            raise KernelInputError(
                f"lengths[{row}]: {length} scores, of which the last {recent} are to be kept; "
                "give a smaller `recent`, or leave the row out"
            )
        if not 0 <= wanted <= length - recent:
            raise KernelInputError(
                f"count[{row}]: {wanted} of {length - recent} places; give 0 to {length - recent}"
            )
    return lengths, count, recent


@kernel
def _key(score: tl.tensor) -> tl.tensor:
    """Return an int32 that sorts as the score does: both zeros are equal, NaN is above all."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(score != score, 0x7FFFFFFF, ordered)  # noqa: PLR0124 - only NaN differs from itself


@kernel
def _select(
    scores: tl.tensor, stride: tl.tensor, length: tl.tensor, count: tl.tensor, recent: tl.tensor, keep: tl.tensor, keep_stride: tl.tensor, width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (rows). Find, digit by digit from the highest, the key of the last place to take; then take."""
    row = tl.program_id(0).to(tl.int64)
    own = scores + row * stride
    all_ = tl.load(length + row)
    others = all_ - recent
    left = tl.load(count + row)  # how many are still to be taken among those that share `prefix`
    digits = tl.arange(0, 256)
    prefix = tl.zeros((), tl.int32)
    for step in tl.static_range(4):
        shift = 24 - 8 * step
        histogram = tl.zeros((256,), tl.int32)
        for block in range(0, others, BLOCK):
            place = block + tl.arange(0, BLOCK)
            key = _key(tl.load(own + place, mask=place < others, other=0.0))
            like = place < others
            if step > 0:
                like = like & ((key >> (shift + 8)) == prefix)
            # the sign counts as a digit's highest bit, turned round: negative keys come first
            digit = ((key >> shift) & 255) ^ (128 if step == 0 else 0)
            histogram += tl.histogram(digit, 256, mask=like)
        above = tl.cumsum(histogram, 0, reverse=True)  # places with this digit or a higher one
        best = tl.max(tl.where(above >= left, digits, 0), 0)
        left -= tl.sum(tl.where(digits > best, histogram, 0), 0)
        # the highest byte as an arithmetic shift gives it, the sign kept
        prefix = best - 128 if step == 0 else (prefix << 8) | best
    taken = tl.zeros((), tl.int32)  # of those at the last key itself
    for block in range(0, width, BLOCK):
        place = block + tl.arange(0, BLOCK)
        key = _key(tl.load(own + place, mask=place < others, other=0.0))
        at = (key == prefix) & (place < others)
        number = taken + tl.cumsum(at.to(tl.int32), 0)
        take = ((key > prefix) & (place < others)) | (at & (number <= left))
        take = take | ((place >= others) & (place < all_))
        tl.store(keep + row * keep_stride + place, take.to(tl.int8), mask=place < width)
        taken += tl.sum(at.to(tl.int32), 0)
