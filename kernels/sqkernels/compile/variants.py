# SPDX-License-Identifier: Apache-2.0
"""Launches to compile: each public function's launches of every kernel, over the dtypes and shapes it takes.

Nothing is listed twice: the public functions themselves are called, on small tensors of the shapes in question, while
`launch.recording` notes their launches down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sqkernels.buffers import Buffers
from sqkernels.compact import compact_spans
from sqkernels.compact_mask import compact_mask
from sqkernels.compile.machine_code import Specialised
from sqkernels.compile.promises import Promise, promised
from sqkernels.h2o import h2o_accumulate
from sqkernels.launch import Launch, recording
from sqkernels.moves import Moves, move
from sqkernels.redundancy import rkv_redundancy
from sqkernels.rkv import rkv_importance
from sqkernels.rotation import Rotation, move_rotated, plain_frequencies
from sqkernels.rows import Rows
from sqkernels.shift import shift
from sqkernels.snapkv import snapkv_scores
from sqkernels.topk import topk_keep
from sqkernels.window import Window

CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TABLES = (torch.int32, torch.int64)
DIMS = (64, 128)
HEADS = 8  # KV heads, as in gpt-oss, Llama 3 and Qwen 3
LENGTH = 301  # tokens of a row; no number here is a multiple of 16 unless it always is one: the harder case
SPANS = [[(3, 40), (41, 60), (200, 301)], [(0, 7)], [(7, 9)]]


@dataclass(frozen=True, eq=False)
class Variant:
    """One launch to compile; `case` names the call that makes it."""

    case: str
    launch: Launch
    promises: tuple[Promise, ...]

    @property
    def name(self) -> str:
        return f"{self.launch.kernel.__name__} ({self.case})"


def variants() -> list[Variant]:
    """List all variants, each once."""
    found: dict[object, Variant] = {}
    for case, call in _calls():
        with recording() as launches:
            call()
        for launch in launches:
            key = (launch.kernel.__name__, launch.warps, Specialised.of(launch).key)
            found.setdefault(key, Variant(case, launch, promised(launch)))
    return list(found.values())


def _calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a one-line description of each call, and the call."""
    shapes = ((8, 64, DTYPES[0]), (8, 128, DTYPES[0]), (8, 128, DTYPES[2]), (3, 64, DTYPES[1]))
    for table in TABLES:
        rows, index = _rows(table), _short(table)
        yield f"spans, {index}", partial(compact_spans, rows, SPANS)
        yield f"mask, {index}", partial(compact_mask, rows, torch.ones(3, 303, dtype=torch.bool))
        for heads, dim, dtype in shapes:
            buffers, shape = Buffers.of([_kv(dtype, dim, heads)] * 2), f"{heads} x {dim} {_short(dtype)}"
            yield f"shift, {shape}, {index}", partial(shift, buffers, rows, SPANS)
            if table == torch.int32:
                yield f"move, {shape}", partial(move, buffers, _moves())
    yield "top-k", partial(topk_keep, torch.zeros(3, 303), [LENGTH] * 3, [100] * 3, 8)
    for dtype in DTYPES:
        for dim in DIMS:
            yield f"turned, {dim} {_short(dtype)}", partial(_turn, dtype, dim)
            yield from _scored(dtype, dim, TABLES[0])
    yield from _scored(DTYPES[0], DIMS[0], TABLES[1])
    group5, prefill = _window(DTYPES[0], 64, TABLES[0], 32, 5), _window(DTYPES[0], 64, TABLES[0], 256)
    yield "snapkv, window 32 x group 5, 64 bf16, i32", partial(snapkv_scores, group5)
    yield "h2o, prefill 256, 64 bf16, i32", partial(h2o_accumulate, _sums(), prefill)


def _scored(dtype: torch.dtype, dim: int, table: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls that read keys: they depend on the keys' dtype and size, and on the table's dtype."""
    shape = f"{dim} {_short(dtype)}, {_short(table)}"
    yield f"snapkv, window 64, {shape}", partial(snapkv_scores, _window(dtype, dim, table, 64))
    yield f"r-kv, window 8, {shape}", partial(rkv_importance, _window(dtype, dim, table, 8))
    yield f"h2o, decode, {shape}", partial(h2o_accumulate, _sums(), _window(dtype, dim, table, 1))
    yield f"redundancy, {shape}", partial(rkv_redundancy, _rows(table), _kv(dtype, dim))


def _rows(table: torch.dtype) -> Rows:
    return Rows.of(torch.zeros(4, 333, dtype=table), [0, 2, 3], [LENGTH, 299, LENGTH])


def _kv(dtype: torch.dtype, dim: int, heads: int = HEADS) -> Tensor:
    return torch.zeros(LENGTH, heads, dim, dtype=dtype)


def _moves() -> Moves:
    return Moves.of(torch.arange(99), torch.arange(100, 199), LENGTH, CPU)


def _turn(dtype: torch.dtype, dim: int) -> None:
    rotation = Rotation.of(plain_frequencies(dim, 10_000.0), 7, CPU)
    move_rotated(Buffers.of([_kv(dtype, dim)] * 2), _moves(), [-7] * 99, rotation)


def _window(dtype: torch.dtype, dim: int, table: torch.dtype, size: int, group: int = 8) -> Window:
    queries = torch.zeros(3, size, group * HEADS, dim, dtype=dtype)
    return Window(_rows(table), _kv(dtype, dim), queries, dim**-0.5, torch.zeros(group * HEADS))


def _sums() -> Tensor:
    return torch.zeros(LENGTH, HEADS)


def _short(dtype: torch.dtype) -> str:
    """Shorten a dtype's name: bf16, fp16, fp32, i32, i64."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp").replace("int", "i")
