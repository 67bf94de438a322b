# SPDX-License-Identifier: Apache-2.0
"""Scores over a paged cache equal plain torch: SnapKV, R-KV, H2O, with grouped heads and sinks; kept sets are the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sqkernels.errors import KernelInputError
from sqkernels.h2o import h2o_accumulate, h2o_accumulate_reference, h2o_scores
from sqkernels.redundancy import rkv_redundancy, rkv_redundancy_reference
from sqkernels.rkv import rkv_importance, rkv_importance_reference, rkv_scores, rkv_scores_reference
from sqkernels.snapkv import snapkv_scores, snapkv_scores_reference
from sqkernels.topk import topk_keep, topk_keep_reference
from sqkernels.window import Window, softmax

from tests.sqkernels import paged

EXACT = {"atol": 2e-6, "rtol": 1e-5}  # float32, summed in another order
SHAPES = st.sampled_from(
    [(1, 1, 64), (2, 4, 16), (1, 8, 64), (2, 3, 16), (1, 2, 128)]
)  # KV heads, group, head_dim


def window(lengths, *, size=4, shape=(2, 4, 16), dtype=torch.float32, sinks=True, table=torch.int32, seed=0):
    heads, group, dim = shape
    random = paged.generator(seed)
    rows = paged.rows(lengths, table, seed)
    keys = torch.randn(paged.slots(lengths), heads, dim, generator=random).to(dtype)
    queries = torch.randn(len(lengths), size, heads * group, dim, generator=random).to(dtype)
    return Window(
        rows, keys, queries, dim**-0.5, torch.randn(heads * group, generator=random) if sinks else None
    )


@st.composite
def windows(draw):
    size = draw(st.sampled_from([1, 3, 8, 20]))
    lengths = draw(st.lists(st.one_of(st.just(0), st.integers(size, 100)), max_size=3))
    return {  # plain numbers, so that a failing case can be read
        "lengths": lengths, "size": size, "shape": draw(SHAPES), "dtype": draw(paged.KV), "sinks": draw(st.booleans()),
        "table": draw(paged.TABLES), "seed": draw(paged.SEEDS),
    }  # fmt: skip


@settings(max_examples=15)
@given(windows())
def test_snapkv(case):
    drawn = window(**case)
    torch.testing.assert_close(snapkv_scores(drawn), snapkv_scores_reference(drawn), **EXACT)


@settings(max_examples=15)
@given(windows())
def test_rkv_importance(case):
    drawn = window(**case)
    torch.testing.assert_close(rkv_importance(drawn), rkv_importance_reference(drawn), **EXACT)


@settings(max_examples=15)
@given(windows())
def test_h2o(case):
    drawn = window(**case)
    sums = torch.rand(drawn.keys.shape[0], drawn.heads, generator=paged.generator())
    other = sums.clone()
    h2o_accumulate(sums, drawn)
    h2o_accumulate_reference(other, drawn)
    torch.testing.assert_close(sums, other, **EXACT)


@settings(max_examples=15)
@given(windows(), st.sampled_from([0.0, 0.5, 0.95]), st.sampled_from([0, 5]))
def test_redundancy(case, threshold, clusters):
    drawn = window(**case)
    if clusters:  # keys in a few bunches have many likes; random ones have hardly any
        centre = torch.randint(0, clusters, (len(drawn.keys),), generator=paged.generator())
        noise = 0.4 * drawn.keys.float()
        drawn.keys.copy_(
            (drawn.keys[:clusters].float()[centre % len(drawn.keys[:clusters])] + noise).to(drawn.keys.dtype)
        )
    got = rkv_redundancy(drawn.rows, drawn.keys, threshold)
    expected = rkv_redundancy_reference(drawn.rows, drawn.keys, threshold)
    torch.testing.assert_close(got, expected, **EXACT)


def test_denominators_from_the_attention_kernel_save_a_pass():
    """With `lse` given, scores are the same: for SnapKV and H2O over heads of a group that is no power of two."""
    plain = window([40, 90], shape=(2, 3, 16), size=5)
    lse = torch.zeros(2, 5, 6)
    for request in range(2):
        logits = plain.logits(request)
        beside = plain.sinks.view(2, 3, 1, 1).expand(2, 3, 5, 1)
        lse[request] = torch.cat([logits, beside], -1).logsumexp(-1).permute(2, 0, 1).reshape(5, 6)
    given = Window(plain.rows, plain.keys, plain.queries, plain.scale, plain.sinks, lse)
    torch.testing.assert_close(snapkv_scores(given), snapkv_scores_reference(plain), **EXACT)
    with pytest.raises(KernelInputError, match="lse: R-KV's softmax"):
        rkv_importance(given)


def test_a_long_row_is_split():
    """Longer than a split of 1,024 keys, and more query rows than a tile of 128."""
    long = window([2500], size=40, shape=(1, 4, 16), dtype=torch.float16)
    torch.testing.assert_close(snapkv_scores(long), snapkv_scores_reference(long), **EXACT)
    torch.testing.assert_close(rkv_importance(long), rkv_importance_reference(long), **EXACT)


def test_what_a_softmax_gives_sums_to_one_less_the_sink():
    plain = window([30], sinks=False)
    sums = torch.zeros(plain.keys.shape[0], 2)
    h2o_accumulate(sums, plain)
    torch.testing.assert_close(sums.sum(0), torch.full((2,), 4.0))  # four queries
    sunk = window([30])
    sums.zero_()
    h2o_accumulate(sums, sunk)
    assert (sums.sum(0) < 4).all()


def test_requests_that_share_slots_add_to_the_same_sums():
    """A prefix in the radix tree is on both rows."""
    plain = window([20, 30])
    first, second = plain.rows.slots(0), plain.rows.slots(1)
    second[:10] = first[:10]
    sums, other = torch.zeros(plain.keys.shape[0], 2), torch.zeros(plain.keys.shape[0], 2)
    h2o_accumulate(sums, plain)
    h2o_accumulate_reference(other, plain)
    torch.testing.assert_close(sums, other, **EXACT)


def test_heavy_hitters_over_many_steps_are_the_reference_algorithms():
    """H2O, algorithm 1: prefill, then decode steps; column sums of the whole causal attention matrix."""
    full = window([60], size=60, shape=(1, 2, 16), sinks=False)
    expected = softmax(full.logits(0), None).sum(2).mean(1)[0]
    sums = torch.zeros(full.keys.shape[0], 1)
    for begin, end in [(0, 40), *((n, n + 1) for n in range(40, 60))]:
        rows = type(full.rows).of(full.rows.table, full.rows.indices, [end])
        h2o_accumulate(sums, Window(rows, full.keys, full.queries[:, begin:end].contiguous(), full.scale))
    torch.testing.assert_close(h2o_scores(sums, full)[0, 0], expected, **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_kept_sets_equal_the_references(seed):
    """In float32, per KV head and by the mean over heads: the same tokens stay."""
    plain = window([150, 90], size=8, shape=(2, 4, 16), seed=seed)
    for scores, reference in ((snapkv_scores, snapkv_scores_reference), (rkv_scores, rkv_scores_reference)):
        got, expected = scores(plain), reference(plain)
        for left, right, lengths in (
            (got.mean(1), expected.mean(1), [150, 90]),
            (got.flatten(0, 1), expected.flatten(0, 1), [150, 150, 90, 90]),
        ):
            counts = [50 - 8] * len(lengths)
            assert torch.equal(
                topk_keep(left, lengths, counts, 8), topk_keep_reference(right, lengths, counts, 8)
            )


def heavy(window):
    sums = torch.zeros(window.keys.shape[0], window.heads)
    h2o_accumulate(sums, window)
    return h2o_scores(sums, window)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_keep_nearly_the_same_tokens(dtype):
    """Measured over three seeds: of 64 tokens that float32 keeps, bf16 keeps 63 or 64, fp16 all; not promised so closely."""
    full = window([512], size=8, shape=(2, 4, 64))
    half = Window(full.rows, full.keys.to(dtype), full.queries.to(dtype), full.scale, full.sinks)
    for scores in (snapkv_scores, rkv_scores, heavy):
        kept = [topk_keep(scores(each).mean(1), [512], [56], 8) for each in (full, half)]
        assert int((kept[0] & kept[1]).sum()) >= 60


@settings(max_examples=60)
@given(st.data(), paged.lengths(longest=200), st.sampled_from([0, 1, 7]), st.integers(0, 4), paged.SEEDS)
def test_topk(data, lengths, recent, kind, seed):
    lengths = [length for length in lengths if length >= recent]
    random = paged.generator(seed)
    shape = (len(lengths), max(lengths, default=0) + 2)
    scores = torch.randn(shape, generator=random)
    if kind == 1:
        scores = torch.randint(-2, 3, shape, generator=random).float()  # ties
    elif kind == 2:
        scores = scores * 1e-30 * torch.randint(0, 2, shape, generator=random) * -1  # both zeros, tiny ones
    elif kind == 3:
        scores = torch.where(scores > 1, torch.inf, torch.where(scores < -1, -torch.inf, scores))
    elif kind == 4:
        scores = torch.where(scores > 1, torch.nan, scores)
    counts = [data.draw(st.integers(0, length - recent)) for length in lengths]
    keep = topk_keep(scores, lengths, counts, recent)
    assert torch.equal(keep, topk_keep_reference(scores, lengths, counts, recent))
    assert keep.sum(1).tolist() == [count + recent for count in counts]


def test_topk_over_several_blocks():
    scores = torch.randint(0, 50, (2, 10_000), generator=paged.generator()).float()
    lengths, counts = [10_000, 4096], [3000, 4000]
    assert torch.equal(topk_keep(scores, lengths, counts), topk_keep_reference(scores, lengths, counts))


def change(**changes):
    plain = window([20], size=4)
    return lambda: snapkv_scores(
        Window(**({name: getattr(plain, name) for name in plain.__dataclass_fields__} | changes))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (change(queries=torch.zeros(1, 0, 8, 16)), "queries: a window of 0 queries"),
        (change(queries=torch.zeros(1, 4, 7, 16)), "queries: 7 heads for 2 KV heads; give a multiple"),
        (change(queries=torch.zeros(1, 4, 8, 32)), r"queries: shape \[1, 4, 8, 32\]; give \[1, any, any, 16\]"),
        (change(queries=torch.zeros(1, 4, 8, 16).half()), "queries: dtype torch.float16; give torch.float32"),
        (change(queries=torch.zeros(1, 21, 8, 16)), r"lengths\[0\]: 20 tokens, its window has 21 queries"),
        (change(sinks=torch.zeros(2)), r"sinks: shape \[2\]; give \[8\]"),
        (change(lse=torch.zeros(1, 4, 2)), r"lse: shape \[1, 4, 2\]; give \[1, 4, 8\]"),
        (change(keys=torch.zeros(21, 2, 24)), "keys: head_dim 24"),
        (lambda: h2o_accumulate(torch.zeros(20, 2), window([20])), r"sums: shape \[20, 2\]; give \[21, 2\]"),
        (lambda: rkv_redundancy(paged.rows([3]), torch.zeros(4, 2, 16, dtype=torch.int32)), "keys: dtype torch.int32"),
        (lambda: topk_keep(torch.zeros(2, 4), [4, 5], [1, 1]), "scores: 4 columns, the longest row has 5"),
        (lambda: topk_keep(torch.zeros(2, 4).double(), [4, 4], [1, 1]), "scores: dtype torch.float64"),
        (lambda: topk_keep(torch.zeros(1, 4), [4], [3], 2), r"count\[0\]: 3 of 2 places; give 0 to 2"),
        (lambda: topk_keep(torch.zeros(1, 4), [4], [1, 1]), "count: 2 of them for 1 rows"),
        (lambda: topk_keep(torch.zeros(1, 4), [1], [0], 2), r"lengths\[0\]: 1 scores, of which the last 2"),
        (lambda: topk_keep(torch.zeros(1, 4), [1], [0], -1), "recent: -1"),
    ],
)  # fmt: skip
def test_refusals_name_the_thing(make, message):
    with pytest.raises(KernelInputError, match=message):
        make()
