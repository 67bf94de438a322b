# SPDX-License-Identifier: Apache-2.0
"""Sizes of all cases: full on a GPU, small on a CPU."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from sqkernels.buffers import Buffers
from sqkernels.rows import Rows
from torch import Tensor

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Size:
    """Shapes of gpt-oss-20b's full-attention layers (its config.json), and amounts to run; lengths in tokens."""

    context: int  # of a long request
    batch: int  # requests whose keys are scored together
    rows: int  # rows of the page table that are compacted together
    row: int  # their length
    decoding: int  # requests that decode together
    layers: int
    heads: int  # KV heads
    group: int  # query heads of a KV head
    dim: int
    window: int  # SnapKV's; R-KV's is 8
    page: int
    random_cases: int  # of each kernel in place
    random_row: int  # their longest row
    tokens: tuple[int, ...]  # rows of a dense product
    hidden: int
    vocabulary: int


FULL = Size(
    context=24_576, batch=8, rows=32, row=131_072, decoding=36, layers=12, heads=8, group=8, dim=64, window=64, page=16,
    random_cases=1000, random_row=6000, tokens=(1, 2, 4, 8, 16, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192),
    hidden=2880, vocabulary=201_088,
)  # fmt: skip
SMALL = Size(
    context=96, batch=2, rows=2, row=200, decoding=2, layers=1, heads=2, group=2, dim=16, window=4, page=4,
    random_cases=4, random_row=150, tokens=(1, 4), hidden=32, vocabulary=64,
)  # fmt: skip


def generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def table(
    device: torch.device, lengths: list[int], seed: int, page: int = 1, dtype: torch.dtype = torch.int32
) -> Rows:
    """Make rows on distinct slots, shuffled by whole pages; page 0 is never used, as in SGLang."""
    random_ = generator(device, seed)
    pages = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(pages), generator=random_, device=device) + 1
    offsets = torch.arange(page, device=device)
    out = torch.full((len(lengths), max([*lengths, 1])), 2**31 - 1, dtype=dtype, device=device)
    at = 0
    for row, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        own = order[at : at + count]
        at += count
        out[row, :length] = (own[:, None] * page + offsets).reshape(-1)[:length].to(dtype)
    return Rows.of(out, range(len(lengths)), lengths)


def slots(lengths: list[int], page: int = 1) -> int:
    """Number of slots that `table` uses, with page 0."""
    return (sum(-(-length // page) for length in lengths) + 1) * page


def kv(device: torch.device, slots_: int, size: Size, seed: int) -> Tensor:
    """Make [slots, KV heads, head_dim] of normal numbers."""
    shape = (slots_, size.heads, size.dim)
    return torch.randn(shape, generator=generator(device, seed), device=device, dtype=DTYPE)


def buffers(device: torch.device, slots_: int, size: Size, seed: int, count: int) -> Buffers:
    return Buffers.of([kv(device, slots_, size, seed + number) for number in range(count)])


def spans(length: int, count: int, share: float, seed: int) -> list[tuple[int, int]]:
    """Make `count` disjoint spans that cover about `share` of a row, as evicted tool responses would."""
    draw = random.Random(f"{seed}-{length}")
    each = length / count
    out = []
    for number in range(count):
        width = max(1, int(each * share * draw.uniform(0.5, 1.5)))
        begin = int(number * each + draw.uniform(0, max(each - width, 0)))
        out.append((begin, min(begin + width, length)))
    return [(begin, end) for begin, end in out if begin < end]
