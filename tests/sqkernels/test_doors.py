# SPDX-License-Identifier: Apache-2.0
"""What no kernel can be given is refused at its door, by name and with the fix, and nothing of the caller's has changed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from sqkernels.buffers import Buffers
from sqkernels.compact import compact_spans, compact_spans_reference
from sqkernels.compact_mask import compact_mask
from sqkernels.errors import KernelDeviceError, KernelInputError
from sqkernels.h2o import h2o_accumulate
from sqkernels.moves import Moves, move, move_reference
from sqkernels.pages import fill_pages, fill_pages_reference
from sqkernels.redundancy import rkv_redundancy
from sqkernels.rkv import rkv_scores
from sqkernels.rotation import Rotation, move_rotated, plain_frequencies, yarn_frequencies
from sqkernels.rows import Rows
from sqkernels.shift import shift, shift_reference
from sqkernels.snapkv import snapkv_scores
from sqkernels.topk import topk_keep
from sqkernels.window import Window

CPU = torch.device("cpu")
NO_NUMBERS = [2.0, 2.5, None, "2", True, np.float64(2), np.bool_(1), torch.tensor(2.0), torch.tensor(True), 2**31, [2], torch.tensor([2])]  # fmt: skip
NO_LISTS = [None, 3, "33", {3}, torch.tensor(3), np.array(3)]


def table(requests=3, context=8):
    return torch.arange(requests * context, dtype=torch.int32).reshape(requests, context)


def rows(lengths=(8,)):
    return Rows.of(table(), list(range(len(lengths))), list(lengths))


def kv(slots=24):
    return [torch.randn(slots, 2, 16) for _ in ("K", "V")]


def turned(difference):
    frequencies = plain_frequencies(16, 10_000)
    return move_rotated(
        Buffers.of(kv()), Moves.of([1], [1], 24, CPU), difference, Rotation.of(frequencies, 3, CPU)
    )


def filled(page_size=4, keep=None, shared=None, own=None):
    own = rows() if own is None else own
    keep = [torch.ones(length, dtype=torch.bool) for length in own.lengths] if keep is None else keep
    return fill_pages(Buffers.of(kv()), own, keep, page_size, shared)


ONE_NUMBER = {
    "indices": lambda bad: Rows.of(table(), [bad], [3]),
    "lengths": lambda bad: Rows.of(table(), [0], [bad]),
    "spans": lambda bad: compact_spans(rows(), [[(0, bad)]]),
    "source": lambda bad: Moves.of([bad], [3], 24, CPU),
    "target": lambda bad: Moves.of([3], [bad], 24, CPU),
    "slots": lambda bad: Moves.of([1], [3], bad, CPU),
    "difference": lambda bad: turned([bad]),
    "farthest": lambda bad: Rotation.of(plain_frequencies(16, 10_000), bad, CPU),
    "head_dim": lambda bad: plain_frequencies(bad, 10_000),
    "page_size": lambda bad: filled(page_size=bad),
    "shared": lambda bad: filled(shared=[bad]),
    "count": lambda bad: topk_keep(torch.zeros(1, 8), [8], [bad]),
    "recent": lambda bad: topk_keep(torch.zeros(1, 8), [8], [1], bad),
}
A_LIST = {
    "indices": lambda bad: Rows.of(table(), bad, [3]),
    "lengths": lambda bad: Rows.of(table(), [0], bad),
    "spans": lambda bad: compact_spans(rows(), bad),
    r"spans\[0\]": lambda bad: compact_spans(rows(), [bad]),
    r"spans\[0\]\[0\]": lambda bad: compact_spans(rows(), [[bad]]),
    "source": lambda bad: Moves.of(bad, [3], 24, CPU),
    "difference": turned,
    "buffers": Buffers.of,
    "keep": lambda bad: filled(keep=bad if bad is not None else 1),
    "shared": lambda bad: filled(shared=bad if bad is not None else 1),
    "count": lambda bad: topk_keep(torch.zeros(1, 8), [8], bad),
}
A_TENSOR = {
    "table": lambda bad: Rows.of(bad, [0], [3]),
    "buffers": lambda bad: Buffers.of([bad]),
    "keep": lambda bad: compact_mask(rows(), bad),
    r"keep\[0\]": lambda bad: filled(keep=[bad]),
    "scores": lambda bad: topk_keep(bad, [3], [1]),
    "keys": lambda bad: rkv_redundancy(rows(), bad),
    "queries": lambda bad: snapkv_scores(Window(rows(), kv()[0], bad, 1.0)),
    "sums": lambda bad: h2o_accumulate(bad, window()),
    "frequencies": lambda bad: Rotation.of(bad, 3, CPU),
}


def window(scale=0.25, lengths=(8,), size=2):
    return Window(rows(lengths), kv()[0], torch.randn(len(lengths), size, 4, 16), scale)


def refused(name, call, *arguments):
    with pytest.raises(KernelInputError, match=rf"^{name}.*; (give|it has none|make)"):
        call(*arguments)


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ONE_NUMBER)
def test_no_whole_number(name, bad):
    refused(name, ONE_NUMBER[name], bad)


@pytest.mark.parametrize("bad", NO_LISTS, ids=repr)
@pytest.mark.parametrize("name", A_LIST)
def test_no_list(name, bad):
    with pytest.raises(KernelInputError, match=f"^{name}"):
        A_LIST[name](bad)


@pytest.mark.parametrize("bad", [None, [[1.0]], np.zeros((3, 8), np.int32)], ids=["None", "list", "numpy"])
@pytest.mark.parametrize("name", A_TENSOR)
def test_no_tensor(name, bad):
    refused(name, A_TENSOR[name], bad)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, torch.tensor])
def test_whole_numbers_of_any_kind(kind):
    """np.uint8: 200 and 100 would add up to 44."""
    own = Rows.of(torch.arange(300)[None], [kind(0)], [kind(250)])
    got = compact_spans(own, [[(kind(100), kind(200))]])
    assert got.freed.tolist() == list(range(100, 200))
    assert got.lengths == (150,)
    assert [type(number) for number in (*own.indices, *own.lengths, *got.lengths, *got.start)] == [int] * 5
    assert Moves.of([kind(1)], [kind(2)], kind(3), CPU).target.tolist() == [2]
    assert int(topk_keep(torch.zeros(1, 8), [kind(8)], [kind(2)], kind(1)).sum()) == 3
    assert filled(kind(4), shared=[kind(4)]).lengths == (8,)


@pytest.mark.parametrize("call", [compact_spans, compact_spans_reference])
@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize("outer", [True, False])
def test_spans_as_arrays(call, make, outer):
    pairs = [[1, 3], [5, 6]]
    assert call(rows(), make([pairs]) if outer else [make(pairs)]).freed.tolist() == [1, 2, 5]


@pytest.mark.parametrize("spans", [
    [[(2.0, 5.0)]], [[(1, 2, 3)]], [[1, 2]], [[3]], ["ab"], ["12"], [[None]], None, 3, [(1, 2)], np.array([1, 2]),
    np.array([[[1.0, 2.0]]]), torch.zeros(1, 2), torch.zeros(1, 1, 3, dtype=torch.int64), [[(1, torch.tensor(2.5))]],
    torch.zeros(1, 1, 2, dtype=torch.int64, device="meta"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("call", [shift, shift_reference, compact_spans, compact_spans_reference])
def test_refused_spans_leave_everything_as_it_was(call, spans):
    tensors, own = kv(), rows()
    before = [tensor.clone() for tensor in (*tensors, own.table)]
    with pytest.raises(KernelInputError, match=r"^spans"):
        call(*([Buffers.of(tensors)] if call in {shift, shift_reference} else []), own, spans)
    assert all(torch.equal(now, then) for now, then in zip((*tensors, own.table), before, strict=True))


WRAPPING = [[2**32 + 1], torch.tensor([2**32 + 1]), torch.tensor([-(2**32) + 1]), np.array([2**32 + 1])]
NO_SLOTS = [
    *WRAPPING,
    torch.tensor([1.0]),
    torch.tensor([torch.nan]),
    torch.tensor([True]),
    torch.tensor([[1], [2]]),
]


@pytest.mark.parametrize("bad", NO_SLOTS, ids=str)
@pytest.mark.parametrize("name", ["source", "target", "difference"])
def test_device_numbers_are_compared_before_they_are_narrowed(name, bad):
    calls = {
        "source": lambda: Moves.of(bad, [3], 24, CPU),
        "target": lambda: Moves.of([3], bad, 24, CPU),
        "difference": lambda: turned(bad),
    }
    refused(name, calls[name])


@pytest.mark.parametrize(
    "bad", [[-(2**31)], torch.tensor([-(2**31)]), torch.tensor([-(2**31)], dtype=torch.int32)]
)
def test_the_least_difference_is_far(bad):
    refused("difference", turned, bad)


@pytest.mark.parametrize("call", [move, move_reference])
@pytest.mark.parametrize("slots", [8, 10_000])
def test_moves_are_for_buffers_of_their_slots(call, slots):
    refused("moves", call, Buffers.of(kv(24)), Moves.of([1], [2], slots, CPU))
    rotation = Rotation.of(plain_frequencies(16, 10_000), 3, CPU)
    refused("moves", move_rotated, Buffers.of(kv(24)), Moves.of([1], [2], slots, CPU), [1], rotation)


def paged(pages, dtype=torch.int64):
    """Rows of two pages of 4 slots each."""
    slots = (torch.tensor(pages, dtype=dtype)[:, :, None] * 4 + torch.arange(4)).reshape(len(pages), -1)
    return Rows.of(slots.to(dtype), range(len(pages)), [8] * len(pages))


@pytest.mark.parametrize(("pages", "shared", "message"), [
    ([[0, 2**31]], None, r"rows\[0\]: slot 8589934592 of 24; give slots 0 to 23"),
    ([[0, 6]], None, r"rows\[0\]: slot 24 of 24"),
    ([[-1, 2]], None, r"rows\[0\]: slot -4 of 24"),
    ([[1, 1]], None, r"rows\[0\]: page 1 lies there twice"),
    ([[1, 1]], [8], r"rows\[0\]: page 1 lies there twice"),
    ([[0, 1], [0, 2]], None, r"rows\[1\]: page 0 lies in rows\[0\] too; count it in `shared` of both"),
    ([[0, 1], [0, 2]], [4, 0], r"rows\[1\]: page 0 lies in rows\[0\] too"),
])  # fmt: skip
@pytest.mark.parametrize("call", [fill_pages, fill_pages_reference])
def test_pages_lie_apart_within_the_buffers(call, pages, shared, message):
    own, tensors = paged(pages), kv()
    before = [tensor.clone() for tensor in (*tensors, own.table)]
    keep = [torch.arange(8) != 4 if shared != [8] else torch.ones(8, dtype=torch.bool)] * len(pages)
    with pytest.raises(KernelInputError, match=message):
        call(Buffers.of(tensors), own, keep, 4, shared)
    assert all(torch.equal(now, then) for now, then in zip((*tensors, own.table), before, strict=True))


def test_shared_pages_may_lie_in_several_rows():
    assert filled(own=paged([[0, 1], [0, 2], [3, 4]]), shared=[4, 4, 0]).lengths == (8, 8, 8)


def test_tables_have_rows_of_their_own():
    refused("table", Rows.of, torch.arange(8, dtype=torch.int32).expand(3, 8), [0, 1], [3, 3])
    refused("table", Rows.of, torch.arange(12, dtype=torch.int32).as_strided((3, 8), (2, 1)), [0, 1], [3, 3])
    assert len(Rows.of(table()[:, :5], [0], [5])) == len(Rows.of(table()[:1].expand(1, 8), [0], [5])) == 1


def test_one_bare_tensor_is_no_list_of_buffers():
    refused("buffers", Buffers.of, torch.randn(4, 2, 2, 16))


@pytest.mark.parametrize("call", [
    lambda: Rows.of(table().to("meta"), [0], [3]),
    lambda: Buffers.of([torch.zeros(3, 2, 16, device="meta")]),
    lambda: topk_keep(torch.zeros(1, 8, device="meta"), [8], [1]),
    lambda: Moves.of(torch.zeros(1, dtype=torch.int64, device="meta"), [1], 24, CPU),
])  # fmt: skip
def test_meta_is_no_device(call):
    with pytest.raises(KernelDeviceError, match=r"on meta, where nothing is stored; give"):
        call()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, None, "1", True, torch.tensor(1.0)], ids=repr)
@pytest.mark.parametrize(("name", "call"), [
    ("scale", lambda bad: snapkv_scores(window(bad))),
    ("importance", lambda bad: rkv_scores(window(), bad)),
    ("threshold", lambda bad: rkv_scores(window(), threshold=bad)),
    ("theta", lambda bad: plain_frequencies(16, bad)),
    ("factor", lambda bad: yarn_frequencies(16, 1e4, bad, 4096)),
    ("original_context", lambda bad: yarn_frequencies(16, 1e4, 32, bad)),
    ("beta_slow", lambda bad: yarn_frequencies(16, 1e4, 32, 4096, beta_slow=bad)),
])  # fmt: skip
def test_no_finite_number(name, call, bad):
    refused(name, call, bad)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: rkv_scores(window(), 1.5), "importance: 1.5; give 0 to 1"),
    (lambda: rkv_redundancy(rows(), kv()[0], 2), "threshold: 2; give -1 to 1"),
    (lambda: plain_frequencies(15, 1e4), "head_dim: 15; give an even number"),
    (lambda: plain_frequencies(16, 1), "theta: 1; give more than 1"),
    (lambda: yarn_frequencies(16, 1e4, 0.5, 4096), "factor: 0.5; give 1 or more"),
    (lambda: yarn_frequencies(16, 1e4, 32, 0), "original_context: 0; give 1 or more"),
    (lambda: Rotation.of(plain_frequencies(16, 1e4), -1, CPU), "farthest: -1; give 0 or more"),
    (lambda: Rotation.of(torch.tensor([torch.nan]), 1, CPU), "frequencies: not all are finite; give"),
    (lambda: snapkv_scores(window(lengths=[1])), "lengths[0]: 1 tokens, its window has 2 queries; give fewer queries"),
    (lambda: topk_keep(torch.zeros(1, 8), [5], [0], 6), "lengths[0]: 5 scores, of which the last 6 are to be kept; give"),
    (lambda: compact_spans(rows([0]), [[(0, 1)]]), "the request has none; give it an empty list"),
    (lambda: compact_spans(rows([2]), [[(0, 3)]]), "positions 0 to 1; give 0 <= begin < end <= 2"),
    (lambda: Moves.of([0], [0], 0, CPU), "source: slot 0 of 0; it has none"),
    (lambda: Rows.of(table(0), [0], [0]), "row 0 of a table of 0 rows; it has none"),
    (lambda: Rows.of(table()[0], [0], [3]), "table: shape [8]; give [any, any], 2 dimensions"),
])  # fmt: skip
def test_a_refusal_names_the_fix(call, message):
    with pytest.raises(KernelInputError, match=re.escape(message)):
        call()
