# SPDX-License-Identifier: Apache-2.0
"""Compare each kernel with plain torch on the same inputs: moves bit by bit, scores to rounding, tokens kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.kernel_bench.cases import Case

ABSOLUTE, RELATIVE = 2e-5, 1e-3  # of float32 sums over thousands of keys in another order
ROUNDED = 2**-7  # two neighbouring bf16 numbers, relative: a last rounding may fall either way
KEPT = 4  # one token of so many is kept


def check(case: Case) -> dict[str, Any]:
    """Return a row of the record; `agrees` is true if the case is right."""
    ours, torchs = case.prepare(), case.prepare()
    got, expected = ours.results(ours.run()), torchs.results(torchs.reference())
    row: dict[str, Any] = {"kind": "check", "kernel": case.kernel, "what": case.what, "exact": case.exact}
    if case.exact:
        differ = sum(not _same_bits(left, right) for left, right in zip(got, expected, strict=True))
        return row | {"agrees": differ == 0, "tensors": len(got), "differ": differ}
    error, agrees, overlap = 0.0, True, 1.0
    for left, right in zip(got, expected, strict=True):
        relative = ROUNDED if left.dtype == torch.bfloat16 else RELATIVE
        error = max(error, float((left.float() - right.float()).abs().max()))
        agrees = agrees and torch.allclose(left.float(), right.float(), atol=ABSOLUTE, rtol=relative)
        if left.dtype == torch.float32:
            overlap = min(overlap, _overlap(left, right))
    return row | {"agrees": agrees, "largest_error": error, "kept_in_common": overlap}


def _same_bits(left: Tensor, right: Tensor) -> bool:
    same = left.shape == right.shape and left.dtype == right.dtype
    return same and bool(torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)))


def _overlap(left: Tensor, right: Tensor) -> float:
    """Return the share of one score's best quarter that is in the other's best quarter, over all rows together."""
    left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
    count = max(1, left.shape[-1] // KEPT)
    marks = torch.zeros_like(left, dtype=torch.int8)
    marks.scatter_(-1, left.topk(count).indices, 1)
    return float(marks.gather(-1, right.topk(count).indices).float().mean())
