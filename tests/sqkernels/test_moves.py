# SPDX-License-Identifier: Apache-2.0
"""Moving KV rows: disjoint moves, the in-place shift and page filling equal plain torch, bit by bit."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sqkernels.buffers import Buffers
from sqkernels.errors import KernelDeviceError, KernelInputError
from sqkernels.moves import Moves, move, move_reference
from sqkernels.pages import fill_pages, fill_pages_reference
from sqkernels.rotation import Rotation, move_rotated, move_rotated_reference, plain_frequencies
from sqkernels.shift import shift, shift_reference

from tests.sqkernels import paged

CPU = torch.device("cpu")
HEADS = st.sampled_from([(1, 64), (2, 64), (3, 64), (2, 128), (1, 16)])


def same(left, right):
    for a, b in zip(left.tensors, right.tensors, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@settings(max_examples=30)
@given(paged.KV, HEADS, st.integers(0, 40), paged.SEEDS)
def test_move(dtype, shape, count, seed):
    heads, head_dim = shape
    buffers = paged.buffers(100, dtype, heads=heads, head_dim=head_dim, seed=seed)
    slots = torch.randperm(100, generator=paged.generator(seed))
    moves = Moves.of(slots[:count], slots[50 : 50 + count], 100, CPU)
    other = paged.copies(buffers)
    move(buffers, moves)
    move_reference(other, moves)
    same(buffers, other)


@settings(max_examples=25)
@given(paged.KV, HEADS, st.integers(0, 40), st.booleans(), paged.SEEDS)
def test_move_rotated(dtype, shape, count, in_place, seed):
    heads, head_dim = shape
    buffers = paged.buffers(100, dtype, heads=heads, head_dim=head_dim, seed=seed)
    random = paged.generator(seed)
    slots = torch.randperm(100, generator=random)
    moves = Moves.of(slots[:count], slots[:count] if in_place else slots[50 : 50 + count], 100, CPU)
    difference = torch.randint(-300, 301, (count,), generator=random)
    rotation = Rotation.of(plain_frequencies(head_dim, 10_000), 300, CPU)
    other = paged.copies(buffers)
    move_rotated(buffers, moves, difference, rotation)
    move_rotated_reference(other, moves, difference, rotation)
    for left, right in zip(buffers.tensors, other.tensors, strict=True):
        # a product rounded in another order may fall on the other side of a rounding to the keys' dtype
        torch.testing.assert_close(left, right, atol=1e-6, rtol=float(torch.finfo(dtype).eps))


@settings(max_examples=25)
@given(st.data(), paged.lengths(most=3, longest=200), paged.TABLES, paged.KV, HEADS, paged.SEEDS)
def test_shift(data, lengths, table, dtype, shape, seed):
    heads, head_dim = shape
    rows = paged.rows(lengths, table, seed)
    spans = data.draw(paged.spans_of(lengths))
    buffers = paged.buffers(paged.slots(lengths), dtype, heads=heads, head_dim=head_dim, seed=seed)
    other, before = paged.copies(buffers), rows.table.clone()
    got, expected = shift(buffers, rows, spans), shift_reference(other, rows, spans)
    same(buffers, other)
    assert torch.equal(got.freed, expected.freed)
    assert (got.start, got.lengths) == (expected.start, expected.lengths)
    assert torch.equal(rows.table, before)


@settings(max_examples=60)
@given(st.data(), paged.lengths(most=3, longest=60), paged.TABLES, st.sampled_from([1, 2, 4, 16]), paged.SEEDS)
def test_pages(data, lengths, table, size, seed):
    rows = paged.rows(lengths, table, seed, size)
    slots = paged.slots(lengths, size)
    shared = [data.draw(st.integers(0, length // size)) * size for length in lengths]
    share = data.draw(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]))
    keep = [torch.rand(length, generator=paged.generator(seed)) < share for length in lengths]
    for own, flags in zip(shared, keep, strict=True):
        flags[:own] = True
    buffers = paged.buffers(slots, seed=seed)
    before, old = paged.copies(buffers), paged.copy(rows)
    other, other_rows = paged.copies(buffers), paged.copy(rows)
    got = fill_pages(buffers, rows, keep, size, shared)
    fill_pages_reference(other, other_rows, keep, size, shared)
    same(buffers, other)
    assert torch.equal(rows.table, other_rows.table)
    in_use = set()
    for request, (length, own) in enumerate(zip(got.lengths, shared, strict=True)):
        now, then, where = (
            rows.slots(request)[:length].long(),
            old.slots(request).long(),
            got.positions[request],
        )
        assert length == int(keep[request].sum())
        assert sorted(where.tolist()) == torch.nonzero(keep[request])[:, 0].tolist()  # kept tokens, each once
        assert torch.equal(now[:own], then[:own])
        assert torch.equal(now % size, torch.arange(length) % size)
        assert torch.equal(now // size, now[torch.arange(length) // size * size] // size)  # whole pages
        in_use |= set((now // size).tolist())
        for changed, original in zip(buffers.tensors, before.tensors, strict=True):
            assert torch.equal(changed[now], original[then[where]])  # each token's KV came along
            assert torch.equal(changed[then[:own]], original[then[:own]])
    had = {slot // size for request in range(len(lengths)) for slot in old.slots(request).tolist()}
    assert len(set(got.pages)) == len(got.pages)
    assert set(got.pages) == had - in_use


@settings(max_examples=40)
@given(st.integers(1, 20), paged.SEEDS)
def test_no_plan_moves_fewer_rows(length, seed):
    """Against every choice of pages and of the last among them (METHOD of the kernel: minimal rows)."""
    size = 4
    keep = torch.rand(length, generator=paged.generator(seed)) < 0.5
    kept = [
        sum(1 << (p % size) for p in range(begin, min(begin + size, length)) if keep[p])
        for begin in range(0, length, size)
    ]
    left = int(keep.sum())
    wanted = -(-left // size)
    rest = left - (wanted - 1) * size
    most = 0
    for chosen in combinations(kept, wanted):
        for last in range(wanted):
            others = sum((mask).bit_count() for place, mask in enumerate(chosen) if place != last)
            most = max(most, others + (chosen[last] & ((1 << rest) - 1)).bit_count())
    rows = paged.rows([length], seed=seed, page_size=size)
    got = fill_pages(paged.buffers(paged.slots([length], size)), rows, [keep], size)
    assert got.moved == left - most


def moves(source, target):
    return lambda: Moves.of(source, target, 10, CPU)


def turning(slots, difference, head_dim=16):
    rotation = Rotation.of(plain_frequencies(16, 10_000), 3, CPU)
    keys = paged.buffers(10, head_dim=head_dim)
    return lambda: move_rotated(keys, Moves.of(slots, slots, 10, CPU), difference, rotation)


def filling(*, length=8, size=4, keep=None, shared=0, page_of_rows=4, slots=12):
    keep = torch.ones(length, dtype=torch.bool) if keep is None else keep
    return lambda: fill_pages(
        paged.buffers(slots), paged.rows([length], page_size=page_of_rows), [keep], size, [shared]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (moves([1], [10]), "target: slot 10 of 10; give slots 0 to 9"),
        (moves([-1], [1]), "source: slot -1 of 10"),
        (moves([1, 2], [3, 3]), "target: slot 3 stands there twice"),
        (moves([1, 2], [2, 3]), "target: slot 2 is the source of another move; use sqkernels.shift"),
        (moves([1, 2], [2]), r"target: shape \[1\]; give \[2\]"),
        (turning([1], [0, 1]), r"difference: shape \[2\]; give \[1\]"),
        (turning([1], [-4]), "difference: -4 positions, the rotation's table reaches 3"),
        (turning([1], [1], head_dim=64), r"rotation: shape \[4, 8\]; give \[any, 32\]"),
        (filling(size=0), "page_size: 0"),
        (filling(slots=13), "buffers: 13 slots are no whole pages of 4"),
        (filling(page_of_rows=2), r"rows\[0\]: position \d is slot \d+, not on a page of 4"),
        (filling(shared=3), r"shared\[0\]: 3 of 8 tokens; give whole pages of 4"),
        (filling(shared=12), r"shared\[0\]: 12 of 8 tokens"),
        (filling(keep=torch.zeros(8, dtype=torch.bool), shared=4), r"keep\[0\]: position 0 is shared and not kept; keep all 4"),
        (filling(keep=torch.ones(7, dtype=torch.bool)), r"keep\[0\]: shape \[7\]; give \[8\]"),
        (lambda: fill_pages(paged.buffers(4), paged.rows([]), [], 4, [1]), "shared: 1 of them for 0 rows"),
        (lambda: Buffers.of([]), "buffers: none given"),
        (lambda: Buffers.of([torch.zeros(3, 2, 24)]), r"buffers\[0\]: head_dim 24; give a power of two"),
        (lambda: Buffers.of([torch.zeros(3, 2, 16).int()]), r"buffers\[0\]: dtype torch.int32"),
        (lambda: Buffers.of([torch.zeros(3, 2, 16), torch.zeros(4, 2, 16)]), r"buffers\[1\]: shape \[4, 2, 16\]; give \[3, 2, 16\]"),
        (lambda: Buffers.of([torch.zeros(3, 2, 16), torch.zeros(3, 2, 16).half()]), r"buffers\[1\]: dtype torch.float16; give torch.float32"),
        (lambda: Buffers.of([torch.zeros(2, 3, 16).transpose(0, 1)]), r"buffers\[0\]: strides .*; give it contiguous"),
        (lambda: Buffers.of([torch.zeros(97)[1:].view(3, 2, 16)]), r"buffers\[0\]: begins at no multiple of 16 bytes"),
        (lambda: shift(paged.buffers(9), paged.rows([5]), [[(4, 6)]]), r"spans\[0\]\[0\]: \[4, 6\) is out of range"),
    ],
)  # fmt: skip
def test_refusals_name_the_thing(make, message):
    with pytest.raises(KernelInputError, match=message):
        make()


def test_buffers_lie_on_one_device():
    with pytest.raises(KernelDeviceError, match=r"buffers\[1\]: on meta"):
        Buffers.of([torch.zeros(3, 2, 16), torch.zeros(3, 2, 16, device="meta")])
