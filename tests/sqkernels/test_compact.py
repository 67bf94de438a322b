# SPDX-License-Identifier: Apache-2.0
"""Compaction by spans and by mask equals plain torch, entry by entry, and touches nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sqkernels import checks
from sqkernels.compact import compact_spans, compact_spans_reference
from sqkernels.compact_mask import compact_mask, compact_mask_reference
from sqkernels.errors import KernelDeviceError, KernelInputError, SqkernelsError
from sqkernels.rows import Rows
from sqkernels.spans import Spans, runs

from sqreal.plugin.compaction import close_up, close_up_by_kernel
from tests.sqkernels import paged


def same_rows(left, right, lengths):
    """Kept entries are the same, and so is every row that was not named."""
    for request, length in enumerate(lengths):
        assert torch.equal(left.slots(request)[:length], right.slots(request)[:length])
        assert torch.equal(
            left.table[left.indices[request], left.lengths[request] :],
            right.table[right.indices[request], right.lengths[request] :],
        )
    others = [row for row in range(len(left.table)) if row not in left.indices]
    assert torch.equal(left.table[others], right.table[others])


@settings(max_examples=60)
@given(st.data(), paged.lengths(), paged.TABLES, paged.SEEDS)
def test_spans(data, lengths, dtype, seed):
    rows = paged.rows(lengths, dtype, seed)
    spans = data.draw(paged.spans_of(lengths))
    other = paged.copy(rows)
    got, expected = compact_spans(rows, spans), compact_spans_reference(other, spans)
    assert got.freed.dtype == dtype
    assert torch.equal(got.freed, expected.freed)
    assert (got.start, got.lengths) == (expected.start, expected.lengths)
    same_rows(rows, other, got.lengths)


@settings(max_examples=40)
@given(st.data(), st.integers(0, 90).map(lambda tokens: [tokens]), paged.TABLES, paged.SEEDS)
def test_a_servers_row_closes_up_by_kernel_as_by_torch(data, lengths, dtype, seed):
    """What `sqreal serve` does to a session's row on a GPU is what it does on a CPU."""
    rows = paged.rows(lengths, dtype, seed)
    (spans,) = data.draw(paged.spans_of(lengths))
    other = paged.copy(rows)
    left = close_up_by_kernel(rows.table, rows.indices[0], rows.lengths[0], spans)
    assert left == close_up(other.table, other.indices[0], other.lengths[0], spans)
    assert left == lengths[0] - sum(end - begin for begin, end in spans)
    same_rows(rows, other, [left])


@settings(max_examples=40)
@given(
    paged.lengths(), paged.TABLES, st.sampled_from(checks.MASKS), st.sampled_from([0.0, 0.3, 1.0]), paged.SEEDS
)
def test_mask(lengths, dtype, mask, share, seed):
    rows = paged.rows(lengths, dtype, seed)
    width = rows.longest + seed % 3
    keep = (torch.rand(len(lengths), width, generator=paged.generator(seed)) < share).to(mask)
    other = paged.copy(rows)
    got, expected = compact_mask(rows, keep), compact_mask_reference(other, keep)
    assert torch.equal(got.length, expected.length)
    for request, (length, left) in enumerate(zip(lengths, got.length.tolist(), strict=True)):
        assert torch.equal(got.freed[request, : length - left], expected.freed[request, : length - left])
    same_rows(rows, other, got.length.tolist())


def test_blocks_of_a_long_row():
    """Rows longer than a block: spans and masks over block borders, 4,096 and 1,024 positions."""
    lengths = [9000, 4096, 1024]
    flags = torch.rand(3, 9000, generator=paged.generator()) < 0.4
    by_mask, by_span = paged.rows(lengths), paged.rows(lengths)
    masked = compact_mask(by_mask, flags)
    spans = [runs((~flags[request, :length]).tolist()) for request, length in enumerate(lengths)]
    compacted = compact_spans(by_span, spans)
    assert tuple(masked.length.tolist()) == compacted.lengths
    same_rows(by_mask, by_span, compacted.lengths)
    for request, length in enumerate(lengths):
        own = compacted.freed[compacted.start[request] : compacted.start[request + 1]]
        assert torch.equal(masked.freed[request, : length - compacted.lengths[request]], own)


@given(st.lists(st.booleans(), max_size=30))
def test_runs_are_the_true_stretches(flags):
    spans = runs(flags)
    assert [any(begin <= place < end for begin, end in spans) for place in range(len(flags))] == flags
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[(3, 3)], []], r"spans\[0\]\[0\]: \[3, 3\) is empty"),
        ([[(3, 2)], []], r"spans\[0\]\[0\]: \[3, 2\) is empty or reversed"),
        ([[], [(-1, 2)]], r"spans\[1\]\[0\]: \[-1, 2\) is out of range; the request has positions 0 to 4"),
        ([[(8, 11)], []], r"spans\[0\]\[0\]: \[8, 11\) is out of range"),
        ([[(1, 4), (3, 5)], []], r"spans\[0\]\[1\]: \[3, 5\) overlaps \[1, 4\)"),
        ([[(5, 6), (1, 2)], []], r"spans\[0\]\[1\]: \[1, 2\) is not sorted: it comes after \[5, 6\)"),
        ([[]], "spans: lists for 1 requests, rows for 2"),
    ],
)
def test_spans_are_refused_by_name(spans, message):
    rows = paged.rows([10, 5])
    with pytest.raises(KernelInputError, match=message):
        Spans.of(rows, spans)
    before = rows.table.clone()
    with pytest.raises(KernelInputError, match=message):
        compact_spans(rows, spans)
    assert torch.equal(rows.table, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rows.of(torch.zeros(4, 8), [0], [1]), "table: dtype torch.float32; give torch.int32 or torch.int64"),
        (lambda: Rows.of(torch.zeros(4, dtype=torch.int32), [0], [1]), r"table: shape \[4\]; give \[any, any\]"),
        (lambda: Rows.of(torch.zeros(8, 4, dtype=torch.int32).T, [0], [1]), "table: strides .* without gaps"),
        (lambda: Rows.of(torch.zeros(4, 8, dtype=torch.int32), [4], [1]), r"indices\[0\]: row 4 of a table of 4 rows"),
        (lambda: Rows.of(torch.zeros(4, 8, dtype=torch.int32), [1], [9]), r"lengths\[0\]: 9 tokens in a row of 8"),
        (lambda: Rows.of(torch.zeros(4, 8, dtype=torch.int32), [1, 1], [2, 2]), "row 1 stands there twice"),
        (lambda: Rows.of(torch.zeros(4, 8, dtype=torch.int32), [1], []), "lengths: 0 of them for 1 rows"),
        (lambda: compact_mask(paged.rows([5]), torch.ones(2, 5, dtype=torch.bool)), r"keep: shape \[2, 5\]; give \[1, any\]"),
        (lambda: compact_mask(paged.rows([5]), torch.ones(1, 4, dtype=torch.bool)), "keep: 4 columns, the longest row has 5"),
        (lambda: compact_mask(paged.rows([5]), torch.ones(1, 5)), "keep: dtype torch.float32"),
    ],
)  # fmt: skip
def test_tables_and_masks_are_refused_by_name(make, message):
    with pytest.raises(KernelInputError, match=message):
        make()


def test_devices_must_agree():
    with pytest.raises(KernelDeviceError, match="keep: on meta, the other tensors on cpu; move it there"):
        compact_mask(paged.rows([5]), torch.ones(1, 5, dtype=torch.bool, device="meta"))
    assert issubclass(KernelDeviceError, SqkernelsError)
