# SPDX-License-Identifier: Apache-2.0
"""Move keys to other positions: copy rows and rotate them by the difference, as rotary embedding would have.

Plain or YaRN, NeoX halves (element j turns with element j + head_dim / 2), as Llama, Qwen and gpt-oss use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sqkernels import checks
from sqkernels.buffers import VECTOR, Buffers
from sqkernels.errors import KernelInputError
from sqkernels.launch import kernel, launch
from sqkernels.moves import Moves

THREADS = 128  # of a program
ELEMENTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return radians per position of each pair, [head_dim / 2] float64 (RoFormer, arXiv 2104.09864, section 3.3)."""
    head_dim = checks.whole("head_dim", head_dim)
    if head_dim < 2 or head_dim % 2:
        raise KernelInputError(f"head_dim: {head_dim}; give an even number, 2 or more: pairs turn")
    if checks.real("theta", theta) <= 1:
        raise KernelInputError(f"theta: {theta}; give more than 1")
    return theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def yarn_frequencies(
    head_dim: int,
    theta: float,
    factor: float,
    original_context: int,
    *,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
) -> Tensor:
    """Return YaRN's radians per position, [head_dim / 2] float64 (arXiv 2309.00071, section 3.2, "NTK-by-parts").

    Pairs that turn more than beta_fast times in the original context stay, those under beta_slow slow down by the factor,
    with a ramp between. gpt-oss: theta 150,000, factor 32, original_context 4,096, truncate False (its config.json).
    YaRN's other half, the scaled attention, is in the keys already and stays there: turning does not change a length.
    """
    plain = plain_frequencies(head_dim, theta)
    checks.real("factor", factor, 1)
    checks.real("original_context", original_context, 1)
    for name, beta in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
        if checks.real(name, beta) <= 0:
            raise KernelInputError(f"{name}: {beta}; give more than 0 turns")

    def pair(turns: float) -> float:
        """Return the pair, as a real number, that makes this number of turns in the original context."""
        return head_dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines of each pair's turn over 0, 1, 2 ... positions: [positions, head_dim / 2] float32, unscaled."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, frequencies: Tensor, farthest: int, device: torch.device) -> Rotation:
        """Build for differences up to `farthest` positions either way; float32 angles would be inexact at 100,000."""
        farthest = checks.whole("farthest", farthest)
        if farthest < 0:
            raise KernelInputError(f"farthest: {farthest}; give 0 or more positions")
        checks.tensor("frequencies", frequencies, (None,), (*checks.FLOATS, torch.float64))
        if not bool(frequencies.isfinite().all()):
            raise KernelInputError("frequencies: not all are finite; give radians a position")
        angles = torch.arange(farthest + 1, dtype=torch.float64)[:, None] * frequencies.double().cpu()[None]
        return cls(angles.cos().float().to(device), angles.sin().float().to(device))


def move_rotated(keys: Buffers, moves: Moves, difference: Tensor | Sequence[int], rotation: Rotation) -> None:
    """Copy keys from source to target slots, rotated by a number of positions (negative: towards the beginning).

    keys         K of the layers (values carry no position: `moves.move` moves those)
    difference   [moves] new position - old position
    A source that is its own target is turned where it lies.
    Computed in float32; each call rounds once more to the keys' dtype, so turning a key every turn wears it out.
    Raises KernelInputError for a difference that the rotation's table does not reach, and as `moves.move` does.
    Floor: 2 x row bytes x moves x layers; 12 layers of 1 KB, 24,576 rows: 126 us at 4.8 TB/s.
    Source: our own; kvpress's KeyRerotationPress turns keys likewise.
    """
    turns = _difference(keys, moves, difference, rotation)
    half = keys.head_dim // 2
    # so many that each thread has 16 bytes of every half: with fewer, Triton makes narrower accesses
    rows = THREADS * (VECTOR // keys.dtype.itemsize) // half
    launch(
        _move_rotated, (triton.cdiv(len(moves), rows), len(keys)),
        keys.pointers, moves.source, moves.target, turns, rotation.cos, rotation.sin, len(moves),
        ELEMENT=ELEMENTS[keys.dtype], HEADS=keys.heads, HALF=half, ROWS=rows,
    )  # fmt: skip


def move_rotated_reference(
    keys: Buffers, moves: Moves, difference: Tensor | Sequence[int], rotation: Rotation
) -> None:
    """Do the same as `move_rotated` in plain torch."""
    turns = _difference(keys, moves, difference, rotation)
    cos = rotation.cos[turns.abs().long()][:, None]
    sin = (rotation.sin[turns.abs().long()] * turns.sign()[:, None])[:, None]
    for tensor in keys.tensors:
        first, second = tensor[moves.source.long()].float().chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        tensor[moves.target.long()] = turned.to(tensor.dtype)


def _difference(keys: Buffers, moves: Moves, difference: Tensor | Sequence[int], rotation: Rotation) -> Tensor:
    moves.check(keys)
    turns = checks.numbers("difference", difference, keys.device)
    checks.tensor("difference", turns, (len(moves),), (torch.int64,))
    checks.tensor("rotation", rotation.cos, (None, keys.head_dim // 2), (torch.float32,), keys.device)
    reach = len(rotation.cos) - 1
    far = turns[(turns < -reach) | (turns > reach)]  # abs() of the least number is negative
    if len(far):
        raise KernelInputError(
            f"difference: {int(far[0])} positions, the rotation's table reaches {reach}; make it longer"
        )
    return turns.int()


@kernel
def _move_rotated(
    pointers: tl.tensor, source: tl.tensor, target: tl.tensor, difference: tl.tensor, cos: tl.tensor, sin: tl.tensor, count: tl.tensor,
    ELEMENT: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of moves, layers)."""
    base = tl.multiple_of(tl.load(pointers + tl.program_id(1)).to(tl.pointer_type(ELEMENT)), 16)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = number < count
    from_ = tl.load(source + number, mask=inside, other=0).to(tl.int64)
    to = tl.load(target + number, mask=inside, other=0).to(tl.int64)
    turn = tl.load(difference + number, mask=inside, other=0)
    pair = tl.arange(0, HALF)
    at = tl.abs(turn)[:, None] * HALF + pair[None, :]
    c = tl.load(cos + at, mask=inside[:, None], other=1.0)
    s = tl.load(sin + at, mask=inside[:, None], other=0.0) * tl.where(turn < 0, -1.0, 1.0)[:, None]
    for head in range(HEADS):
        element = head * 2 * HALF + pair[None, :]
        row = from_[:, None] * (HEADS * 2 * HALF) + element
        # both halves are in float32 registers before either is written, so a row may be turned in place
        first = tl.load(base + row, mask=inside[:, None], other=0.0).to(tl.float32)
        second = tl.load(base + row + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        row = to[:, None] * (HEADS * 2 * HALF) + element
        tl.store(base + row, (first * c - second * s).to(ELEMENT), mask=inside[:, None])
        tl.store(base + row + HALF, (second * c + first * s).to(ELEMENT), mask=inside[:, None])
