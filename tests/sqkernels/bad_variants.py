# SPDX-License-Identifier: Apache-2.0
"""Kernels that break a promise each, one that does not compile, and one that is fine: what the compile check must tell apart."""

from __future__ import annotations

import torch
import triton.language as tl
from sqkernels.compile.promises import BARRIER, NO_SPILLS, TENSOR_CORES, WIDE
from sqkernels.compile.variants import Variant
from sqkernels.launch import Launch, kernel


@kernel
def _spilled(source: tl.tensor, target: tl.tensor) -> None:
    """512 values a thread are alive over the sum, of 255 registers."""
    place = tl.arange(0, 16384)
    value = tl.load(source + place)
    tl.store(target + place, value * tl.sum(value))


@kernel
def _narrow(pointers: tl.tensor, source: tl.tensor, target: tl.tensor) -> None:
    """Nobody says that the address behind a pointer is a multiple of 16."""
    base = tl.load(pointers).to(tl.pointer_type(tl.int64))
    row, word = tl.arange(0, 16)[:, None] * 0, tl.arange(0, 128)[None, :]
    tl.store(base + tl.load(target) * 128 + word + row, tl.load(base + tl.load(source) * 128 + word + row))


@kernel
def _racing(row: tl.tensor, count: tl.tensor) -> None:
    """Moves entries down by one, in place; a block's first is the last one's source, read by another warp."""
    for block in range(0, count, 1024):
        place = block + tl.arange(0, 1024)
        tl.store(row + place, tl.load(row + place + 1))


@kernel
def _small_tile(left: tl.tensor, right: tl.tensor, out: tl.tensor) -> None:
    """16 rows are no wgmma."""
    row, place = tl.arange(0, 16), tl.arange(0, 64)
    a = tl.load(left + row[:, None] * 64 + place[None, :])
    b = tl.load(right + place[:, None] * 64 + place[None, :])
    tl.store(out + row[:, None] * 64 + place[None, :], tl.dot(a, b))


@kernel
def _refused(source: tl.tensor, target: tl.tensor) -> None:
    """A block of three."""
    place = tl.arange(0, 3)
    tl.store(target + place, tl.load(source + place))


@kernel
def _fine(source: tl.tensor, target: tl.tensor) -> None:
    place = tl.arange(0, 1024)
    tl.store(target + place, tl.load(source + place))


FLOATS, WORDS, HALVES = torch.zeros(8), torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.bfloat16)
ROWS = {"source": FLOATS, "target": FLOATS}


def variants():
    return [
        Variant("spills", Launch(_spilled, ROWS, 1, (1,)), (NO_SPILLS,)),
        Variant("narrow", Launch(_narrow, {"pointers": WORDS, "source": WORDS, "target": WORDS}, 4, (1,)), (WIDE,)),
        Variant("races", Launch(_racing, {"row": FLOATS, "count": 2001}, 4, (1,)), (BARRIER,)),
        Variant("small", Launch(_small_tile, {"left": HALVES, "right": HALVES, "out": FLOATS}, 4, (1,)), (TENSOR_CORES,)),
        Variant("refused", Launch(_refused, ROWS, 4, (1,)), (NO_SPILLS,)),
        Variant("fine", Launch(_fine, ROWS, 4, (1,)), (NO_SPILLS, WIDE)),
    ]  # fmt: skip
