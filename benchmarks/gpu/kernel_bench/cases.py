# SPDX-License-Identifier: Apache-2.0
"""Benchmark cases, one for each kernel: the call, its reference, its minimal bytes and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from sqkernels.compact import compact_spans, compact_spans_reference
from sqkernels.compact_mask import Masked, compact_mask, compact_mask_reference
from sqkernels.h2o import h2o_accumulate, h2o_accumulate_reference
from sqkernels.moves import Moves, move, move_reference
from sqkernels.pages import fill_pages, fill_pages_reference
from sqkernels.redundancy import rkv_redundancy, rkv_redundancy_reference
from sqkernels.rkv import rkv_importance, rkv_importance_reference
from sqkernels.rotation import Rotation, move_rotated, move_rotated_reference, yarn_frequencies
from sqkernels.rows import Rows
from sqkernels.shift import shift, shift_reference
from sqkernels.snapkv import snapkv_scores, snapkv_scores_reference
from sqkernels.topk import topk_keep, topk_keep_reference
from sqkernels.window import Window
from torch import Tensor

from benchmarks.gpu.kernel_bench import rivals, sizes
from benchmarks.gpu.kernel_bench.sizes import Size


class Prepared(NamedTuple):
    """Inputs with their set-up done once; a kernel that works in place changes them."""

    run: Callable[[], Any]
    reference: Callable[[], Any]
    results: Callable[[Any], list[Tensor]]  # of either: what they return, and what they changed in place
    floor_bytes: int  # read and written at the least


@dataclass(frozen=True)
class Case:
    """A public function at one size. Each call of `prepare` makes the same inputs anew."""

    kernel: str
    what: str
    prepare: Callable[[], Prepared]
    exact: bool  # bit by bit, or to rounding
    rivals: Callable[[], rivals.Rivals] = field(default=dict)


def cases(size: Size, device: torch.device) -> list[Case]:
    """Make the cases of all kernels, the cheapest set-up first."""
    make = _Maker(size, device)
    long, scored = f"{size.context} tokens", f"{size.batch} x {size.context} tokens, 1 layer"
    moved = partial(rivals.moves, size, device)
    return [
        Case("compact_spans", f"1 row of {size.context}", partial(make.compact_spans, [size.context]), exact=True),
        Case("compact_spans", f"{size.rows} rows of {size.row}", partial(make.compact_spans, [size.row] * size.rows), exact=True),
        Case("compact_mask", f"{size.rows} rows of {size.row}", make.compact_mask, exact=True),
        Case("fill_pages", f"pages of {size.page}, {long}, {2 * size.layers} buffers", make.fill_pages, exact=True),
        Case("move", f"{long}, {2 * size.layers} buffers", make.move, exact=True, rivals=moved),
        Case("shift", f"{long}, {2 * size.layers} buffers", make.shift, exact=True, rivals=moved),
        Case("move_rotated", f"{long}, {size.layers} buffers, YaRN", make.move_rotated, exact=False),
        Case("snapkv_scores", f"window {size.window}, {scored}", make.snapkv, exact=False),
        Case("snapkv_scores", f"window {size.window}, lse given, {scored}", make.snapkv_lse, exact=False),
        Case("rkv_importance", f"window 8, {scored}", make.rkv, exact=False),
        Case("rkv_redundancy", f"{size.context // 3} tokens, 1 layer", make.redundancy, exact=False),
        Case("h2o_accumulate", f"{size.decoding} decoding x {long}, 1 layer", make.h2o, exact=False),
        Case("topk_keep", f"{size.batch * size.heads} rows of {size.context}", make.topk, exact=True,
             rivals=partial(rivals.topk, size, device)),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Maker:
    size: Size
    device: torch.device

    def compact_spans(self, lengths: list[int]) -> Prepared:
        rows = sizes.table(self.device, lengths, 1)
        cut = [sizes.spans(length, 40, 0.3, number) for number, length in enumerate(lengths)]
        behind = sum(length - own[0][0] for length, own in zip(lengths, cut, strict=True))
        return Prepared(
            lambda: compact_spans(rows, cut), lambda: compact_spans_reference(rows, cut),
            lambda got: [got.freed, *_kept(rows, got.lengths)], 8 * behind,
        )  # fmt: skip

    def compact_mask(self) -> Prepared:
        lengths = [self.size.row] * self.size.rows
        rows = sizes.table(self.device, lengths, 2)
        keep = torch.rand(len(lengths), max(lengths), generator=self._random(3), device=self.device) < 0.5

        def results(got: Masked) -> list[Tensor]:
            left = got.length.tolist()
            freed = [got.freed[row, : length - left[row]] for row, length in enumerate(lengths)]
            return [got.length, *freed, *_kept(rows, left)]

        return Prepared(
            lambda: compact_mask(rows, keep),
            lambda: compact_mask_reference(rows, keep),
            results,
            9 * sum(lengths),
        )

    def fill_pages(self) -> Prepared:
        size, lengths = self.size, [self.size.context]
        keep = torch.ones(size.context, dtype=torch.bool)
        for begin, end in sizes.spans(size.context, 40, 0.3, 5):
            keep[begin:end] = False
        rows = sizes.table(self.device, lengths, 4, size.page)
        kv = sizes.buffers(self.device, sizes.slots(lengths, size.page), size, 6, 2 * size.layers)
        # how many rows move is the plan's to say: it is made once for that, on a table that nothing else is done to
        planned = sizes.table(self.device, lengths, 4, size.page)
        one = sizes.buffers(self.device, kv.slots, size, 6, 1)
        moved = fill_pages_reference(one, planned, [keep], size.page).moved
        return Prepared(
            lambda: fill_pages(kv, rows, [keep], size.page), lambda: fill_pages_reference(kv, rows, [keep], size.page),
            lambda got: [*kv.tensors, *_kept(rows, got.lengths), torch.tensor([*got.pages, got.moved])],
            2 * kv.row_bytes * moved * len(kv),
        )  # fmt: skip

    def move(self) -> Prepared:
        kv = sizes.buffers(self.device, 2 * self.size.context, self.size, 7, 2 * self.size.layers)
        moves = self._moves()
        floor = 2 * kv.row_bytes * len(moves) * len(kv)
        return Prepared(
            lambda: move(kv, moves), lambda: move_reference(kv, moves), lambda _: list(kv.tensors), floor
        )

    def shift(self) -> Prepared:
        size, lengths = self.size, [self.size.context]
        rows, cut = sizes.table(self.device, lengths, 8), [[(0, size.context // 50)]]
        kv = sizes.buffers(self.device, sizes.slots(lengths), size, 9, 2 * size.layers)
        return Prepared(
            lambda: shift(kv, rows, cut), lambda: shift_reference(kv, rows, cut), lambda got: [got.freed, *kv.tensors],
            2 * kv.row_bytes * (size.context - size.context // 50) * len(kv),
        )  # fmt: skip

    def move_rotated(self) -> Prepared:
        size = self.size
        kv = sizes.buffers(self.device, 2 * size.context, size, 10, size.layers)
        moves = self._moves()
        rotation = Rotation.of(yarn_frequencies(size.dim, 150_000, 32, 4096, truncate=False), 1000, self.device)
        random = self._random(11)
        turns = torch.randint(-1000, 0, (len(moves),), generator=random, device=self.device, dtype=torch.int32)
        return Prepared(
            lambda: move_rotated(kv, moves, turns, rotation), lambda: move_rotated_reference(kv, moves, turns, rotation),
            lambda _: list(kv.tensors), 2 * kv.row_bytes * len(moves) * len(kv),
        )  # fmt: skip

    def snapkv(self) -> Prepared:
        window = self._window(self.size.batch, self.size.window)
        return _scored(snapkv_scores, snapkv_scores_reference, window, passes=2)

    def snapkv_lse(self) -> Prepared:
        window = self._window(self.size.batch, self.size.window)
        assert window.sinks is not None, "_window makes them"
        lse = []
        for request in range(self.size.batch):  # one after the other: a request's logits are large
            own = window.logits(request).logsumexp(-1)  # [KV heads, group, window]
            lse.append(torch.logaddexp(own, window.sinks.view(window.heads, -1, 1)).permute(2, 0, 1).flatten(1))
        return _scored(snapkv_scores, snapkv_scores_reference, replace(window, lse=torch.stack(lse)), passes=1)

    def rkv(self) -> Prepared:
        return _scored(rkv_importance, rkv_importance_reference, self._window(self.size.batch, 8), passes=2)

    def redundancy(self) -> Prepared:
        window = self._window(
            1, 1, self.size.context // 3
        )  # torch's own needs 17 bytes a pair of tokens and head
        run, reference = partial(rkv_redundancy, window.rows), partial(rkv_redundancy_reference, window.rows)
        return Prepared(
            lambda: run(window.keys), lambda: reference(window.keys), lambda got: [got], 2 * _key_bytes(window)
        )

    def h2o(self) -> Prepared:
        window = self._window(self.size.decoding, 1)
        sums = torch.zeros(window.keys.shape[0], window.heads, device=self.device)
        return Prepared(
            lambda: h2o_accumulate(sums, window), lambda: h2o_accumulate_reference(sums, window), lambda _: [sums],
            2 * _key_bytes(window),
        )  # fmt: skip

    def topk(self) -> Prepared:
        count, context = self.size.batch * self.size.heads, self.size.context
        scores = torch.randn(count, context, generator=self._random(12), device=self.device)
        wanted = ([context] * count, [context // 4] * count)
        return Prepared(
            lambda: topk_keep(scores, *wanted), lambda: topk_keep_reference(scores, *wanted), lambda got: [got],
            5 * scores.numel(),
        )  # fmt: skip

    def _random(self, seed: int) -> torch.Generator:
        return sizes.generator(self.device, seed)

    def _moves(self) -> Moves:
        context = self.size.context
        order = torch.randperm(2 * context, generator=self._random(13), device=self.device)
        return Moves.of(order[:context], order[context:], len(order), self.device)

    def _window(self, batch: int, window: int, context: int = 0) -> Window:
        size, random = self.size, self._random(14)
        lengths = [context or size.context] * batch
        heads = size.heads * size.group
        shape = (batch, window, heads, size.dim)
        queries = torch.randn(shape, generator=random, device=self.device, dtype=sizes.DTYPE)
        sinks = torch.randn(heads, generator=random, device=self.device)
        keys = sizes.kv(self.device, sizes.slots(lengths), size, 15)
        return Window(sizes.table(self.device, lengths, 16), keys, queries, size.dim**-0.5, sinks)


def _scored(
    run: Callable[[Window], Tensor], reference: Callable[[Window], Tensor], window: Window, *, passes: int
) -> Prepared:
    return Prepared(
        lambda: run(window), lambda: reference(window), lambda got: [got], passes * _key_bytes(window)
    )


def _key_bytes(window: Window) -> int:
    """Return the bytes of one pass over the keys of all requests."""
    tokens, width = sum(window.rows.lengths), int(window.keys.shape[2])
    return tokens * window.heads * width * int(window.keys.element_size())


def _kept(rows: Rows, lengths: Sequence[int]) -> list[Tensor]:
    return [rows.slots(request)[:length] for request, length in enumerate(lengths)]
