# SPDX-License-Identifier: Apache-2.0
"""Moves of KV rows between slots, correct in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.buffers import WORD, Buffers
from sqkernels.errors import KernelInputError
from sqkernels.launch import kernel, launch

ROWS = 16  # rows a program


@dataclass(frozen=True, eq=False)
class Moves:
    """Rows to move, source[i] to target[i]: [n] int32 both, on the device of buffers with `slots` slots.

    Any order of them gives the same.
    """

    source: Tensor
    target: Tensor
    slots: int

    @classmethod
    def of(
        cls, source: Tensor | Sequence[int], target: Tensor | Sequence[int], slots: int, device: torch.device
    ) -> Moves:
        """Build moves within buffers of `slots` slots from host or device numbers (it waits for the device, to check them).

        Refused: slots outside of the buffers, a target twice, a target that is another move's source.
        """
        slots = checks.whole("slots", slots)
        source_, target_ = checks.numbers("source", source, device), checks.numbers("target", target, device)
        checks.tensor("target", target_, tuple(source_.shape), (torch.int64,))
        for name, numbers in (("source", source_), ("target", target_)):
            outside = numbers[(numbers < 0) | (numbers >= slots)]
            if len(outside):
                fix = checks.choices(slots, "slots ")
                raise KernelInputError(f"{name}: slot {int(outside[0])} of {slots}; {fix}")
        twice = target_.sort().values
        twice = twice[1:][twice[1:] == twice[:-1]]
        if len(twice):
            raise KernelInputError(f"target: slot {int(twice[0])} stands there twice; give each target once")
        moving = source_ != target_
        both = target_[moving & torch.isin(target_, source_)]
        if len(both):
            raise KernelInputError(
                f"target: slot {int(both[0])} is the source of another move; use sqkernels.shift for overlapping moves"
            )
        return cls(source_.int(), target_.int(), slots)

    def __len__(self) -> int:
        return len(self.source)

    def check(self, buffers: Buffers) -> None:
        """Refuse buffers whose number of slots differs from that of these moves."""
        if self.slots != buffers.slots:
            raise KernelInputError(
                f"moves: made for {self.slots} slots, the buffers have {buffers.slots}; give Moves.of these slots"
            )


def move(buffers: Buffers, moves: Moves) -> None:
    """Copy rows from source to target slots, in every buffer, byte by byte whatever the dtype.

    Raises KernelInputError for moves that were made for another number of slots.
    Floor: 2 x row bytes x moves x buffers. 128-bit loads and stores; no order among programs is needed.
    Source: our own; SGLang's `move_kv_cache` (srt/mem_cache/memory_pool.py) gives the same.
    """
    moves.check(buffers)
    words = buffers.row_bytes // WORD
    column = words & -words  # the largest power of two that divides a row
    column = min(column, 128)
    launch(
        _move, (triton.cdiv(len(moves), ROWS), len(buffers), words // column),
        buffers.pointers, moves.source, moves.target, len(moves), WORDS=words, COLUMN=column, ROWS=ROWS,
    )  # fmt: skip


def move_reference(buffers: Buffers, moves: Moves) -> None:
    """Do the same as `move` in plain torch."""
    moves.check(buffers)
    for tensor in buffers.tensors:
        tensor[moves.target.long()] = tensor[moves.source.long()]


@kernel
def _move(
    pointers: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    count: tl.tensor,
    WORDS: tl.constexpr,
    COLUMN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Grid (blocks of moves, buffers, columns of a row)."""
    # Buffers.of refuses addresses that are no multiple of 16: without saying so here no access is wider than 8 bytes.
    base = tl.multiple_of(tl.load(pointers + tl.program_id(1)).to(tl.pointer_type(tl.int64)), 16)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = number < count
    from_ = tl.load(source + number, mask=inside, other=0).to(tl.int64)
    to = tl.load(target + number, mask=inside, other=0).to(tl.int64)
    word = tl.program_id(2) * COLUMN + tl.arange(0, COLUMN)
    row = tl.load(base + from_[:, None] * WORDS + word[None, :], mask=inside[:, None])
    tl.store(base + to[:, None] * WORDS + word[None, :], row, mask=inside[:, None])
