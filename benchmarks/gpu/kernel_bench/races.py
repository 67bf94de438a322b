# SPDX-License-Identifier: Apache-2.0
"""Run in-place kernels on many random cases: a thread that overwrites a value before another reads it spoils a row.

The interpreter runs one program after the other and cannot show a race; this can. Rows nobody names and all outputs hold
poison before each launch: NaN in KV, a number that is no slot in tables.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from sqkernels.buffers import Buffers
from sqkernels.compact import compact_spans, compact_spans_reference
from sqkernels.compact_mask import compact_mask, compact_mask_reference
from sqkernels.launch import recording
from sqkernels.moves import Moves
from sqkernels.pages import fill_pages, fill_pages_reference
from sqkernels.rotation import Rotation, move_rotated, move_rotated_reference, plain_frequencies
from sqkernels.rows import Rows
from sqkernels.shift import shift, shift_reference
from torch import Tensor

from benchmarks.gpu.kernel_bench import sizes
from benchmarks.gpu.kernel_bench.sizes import Size

OUTPUTS = ("freed", "scratch", "new_length")  # of the kernels, by the name of their argument
POISON = -7
REACH = 50  # positions


def races(size: Size, device: torch.device, until: float) -> Iterator[dict[str, Any]]:
    """Yield one row per kernel: the number of random cases run, and the numbers of the wrong ones."""
    for stressed in (_spans, _mask, _shift, _pages, _turned):
        wrong, done = [], 0
        for number in range(size.random_cases):
            if time.perf_counter() > until:
                break
            done += 1
            if not stressed(size, device, random.Random(f"{stressed.__name__}-{number}"), number):
                wrong.append(number)
        yield {
            "kind": "race",
            "kernel": stressed.__doc__,
            "cases": done,
            "planned": size.random_cases,
            "wrong": wrong,
        }


def poisoned(call: Callable[[], Any]) -> Any:
    """Return the result of a call whose outputs held poison before its kernels ran."""
    with recording() as launches:
        given = call()
    for launch in launches:
        for name in OUTPUTS:
            if name in launch.arguments:
                launch.arguments[name].fill_(POISON)
    for launch in launches:
        launch.run()
    return given


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Compare bit by bit: a NaN equals itself."""
    pairs = zip(left, right, strict=True)
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs
    )


def _rows(size: Size, device: torch.device, draw: random.Random, number: int, page: int = 1) -> Rows:
    lengths = [draw.randint(0, size.random_row) for _ in range(draw.randint(1, 6))]
    return sizes.table(device, lengths, number, page, draw.choice([torch.int32, torch.int64]))


def _copy(rows: Rows) -> Rows:
    return Rows.of(rows.table.clone(), rows.indices, rows.lengths)


def _cut(rows: Rows, draw: random.Random) -> list[list[tuple[int, int]]]:
    """Make spans, among them spans at both ends, touching ones and none at all."""
    out = []
    for length in rows.lengths:
        places = sorted(draw.sample(range(length + 1), min(length + 1, draw.choice([0, 2, 2, 8, 60]))))
        pairs = list(pairwise(places))
        out.append([pair for pair in pairs if draw.random() < draw.choice([0.3, 1.0])])
    return out


def _buffers(rows: Rows, size: Size, device: torch.device, number: int, page: int = 1) -> Buffers:
    """Make two buffers whose rows are NaN except in the slots that the table names."""
    out = []
    for count in range(2):
        tensor = sizes.kv(device, sizes.slots(list(rows.lengths), page), size, number + count)
        named = torch.zeros(len(tensor), dtype=torch.bool, device=device)
        for request in range(len(rows)):
            named[rows.slots(request).long()] = True
        tensor[~named] = torch.nan
        out.append(tensor)
    return Buffers.of(out)


def _copies(buffers: Buffers) -> Buffers:
    return Buffers.of([tensor.clone() for tensor in buffers.tensors])


def _kept(rows: Rows, lengths: Sequence[int]) -> list[Tensor]:
    return [rows.slots(request)[:length] for request, length in enumerate(lengths)]


def _spans(size: Size, device: torch.device, draw: random.Random, number: int) -> bool:
    """compact_spans"""
    rows = _rows(size, device, draw, number)
    cut, other = _cut(rows, draw), _copy(rows)
    got, expected = poisoned(lambda: compact_spans(rows, cut)), compact_spans_reference(other, cut)
    return same([got.freed, *_kept(rows, got.lengths)], [expected.freed, *_kept(other, expected.lengths)])


def _mask(size: Size, device: torch.device, draw: random.Random, number: int) -> bool:
    """compact_mask"""
    rows = _rows(size, device, draw, number)
    other, random_ = _copy(rows), sizes.generator(device, number)
    keep = torch.rand(len(rows), rows.longest, generator=random_, device=device) < draw.choice(
        [0.02, 0.5, 0.98]
    )
    got, expected = poisoned(lambda: compact_mask(rows, keep)), compact_mask_reference(other, keep)
    left = expected.length.tolist()
    gone = [length - kept for length, kept in zip(rows.lengths, left, strict=True)]
    results = []
    for done, table in ((got, rows), (expected, other)):
        freed = [done.freed[request, :count] for request, count in enumerate(gone)]
        results.append([done.length, *freed, *_kept(table, left)])
    return same(*results)


def _shift(size: Size, device: torch.device, draw: random.Random, number: int) -> bool:
    """shift"""
    rows = _rows(size, device, draw, number)
    cut, buffers = _cut(rows, draw), _buffers(rows, size, device, number)
    other = _copies(buffers)
    got, expected = poisoned(lambda: shift(buffers, rows, cut)), shift_reference(other, rows, cut)
    return same([got.freed, *buffers.tensors], [expected.freed, *other.tensors])


def _pages(size: Size, device: torch.device, draw: random.Random, number: int) -> bool:
    """fill_pages"""
    rows = _rows(size, device, draw, number, size.page)
    keep = [torch.ones(length, dtype=torch.bool) for length in rows.lengths]
    for flags, own in zip(keep, _cut(rows, draw), strict=True):
        for begin, end in own:
            flags[begin:end] = False
    buffers, other_rows = _buffers(rows, size, device, number, size.page), _copy(rows)
    other = _copies(buffers)
    got = fill_pages(buffers, rows, keep, size.page)
    fill_pages_reference(other, other_rows, keep, size.page)
    return same(
        [*buffers.tensors, *_kept(rows, got.lengths)], [*other.tensors, *_kept(other_rows, got.lengths)]
    )


def _turned(size: Size, device: torch.device, draw: random.Random, number: int) -> bool:
    """move_rotated"""
    count = draw.randint(1, size.random_row)
    keys = sizes.buffers(device, count + 1, size, number, 1)
    own = torch.randperm(count, generator=sizes.generator(device, number), device=device)
    turns = [draw.randint(-REACH, REACH) for _ in range(count)]
    rotation = Rotation.of(plain_frequencies(size.dim, 10_000), REACH, device)
    other, moves = _copies(keys), Moves.of(own, own, count + 1, device)
    move_rotated(keys, moves, turns, rotation)
    move_rotated_reference(other, moves, turns, rotation)
    # to rounding: a sum of products may be fused in one and not in the other; a race would be off by whole numbers
    return all(
        torch.allclose(left.float(), right.float(), atol=2**-6, rtol=2**-6)
        for left, right in zip(keys.tensors, other.tensors, strict=True)
    )
