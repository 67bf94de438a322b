# SPDX-License-Identifier: Apache-2.0
"""Paged caches to draw from: rows of random lengths on shuffled slots, and KV whose every row can be told apart."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from sqkernels.buffers import Buffers
from sqkernels.rows import Rows

TABLES = st.sampled_from([torch.int32, torch.int64])
KV = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**16)


@st.composite
def lengths(draw, most=4, longest=90):
    """Lengths of up to `most` requests, empty ones and none at all among them."""
    return draw(st.lists(st.integers(0, longest), max_size=most))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(lengths, dtype=torch.int32, seed=0, page_size=1):
    """Rows for so many tokens, in a table with other rows around them; slots shuffled by whole pages, 0 never used."""
    random = generator(seed)
    pages = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(pages), generator=random) + 1
    context = max([*lengths, 1]) + 3
    table = torch.randint(10**6, 10**7, (len(lengths) + 2, context), generator=random).to(dtype)
    places = torch.randperm(len(lengths) + 2, generator=random)[: len(lengths)].tolist()
    at = 0
    for place, length, count in zip(places, lengths, pages, strict=True):
        own = order[at : at + count]
        at += count
        table[place, :length] = (
            (own[:, None] * page_size + torch.arange(page_size)).reshape(-1)[:length].to(dtype)
        )
    return Rows.of(table, places, lengths)


def slots(lengths, page_size=1):
    """Slots that `rows` of these lengths may name."""
    return (sum(-(-length // page_size) for length in lengths) + 1) * page_size


def copy(rows):
    return Rows.of(rows.table.clone(), rows.indices, rows.lengths)


def buffers(slots, dtype=torch.bfloat16, *, count=2, heads=2, head_dim=16, seed=0):
    random = generator(seed)
    return Buffers.of([torch.randn(slots, heads, head_dim, generator=random).to(dtype) for _ in range(count)])


def copies(buffers):
    return Buffers.of([tensor.clone() for tensor in buffers.tensors])


@st.composite
def spans(draw, length):
    """Sorted disjoint spans of a row, at both ends and touching ones among them."""
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    pairs = list(itertools.pairwise(cuts))
    return [pair for pair in pairs if draw(st.booleans())]


@st.composite
def spans_of(draw, lengths):
    return [draw(spans(length)) for length in lengths]
