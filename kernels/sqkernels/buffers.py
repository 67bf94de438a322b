# SPDX-License-Identifier: Apache-2.0
"""KV buffers: one tensor per layer for keys and one for values, with a row for each slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sqkernels import checks
from sqkernels.errors import KernelInputError

WORD = 8  # bytes: rows are copied as int64, whatever they hold
VECTOR = 16  # bytes of the widest load of a GPU


def check(
    name: str, tensor: Tensor, shape: Sequence[int | None], dtypes: Iterable[torch.dtype], device: torch.device
) -> None:
    """Refuse a tensor that is not a dense [slots, kv_heads, head_dim] with a head_dim that the kernels support."""
    checks.tensor(name, tensor, shape, dtypes, device)
    checks.dense(name, tensor)
    if tensor.data_ptr() % VECTOR:
        raise KernelInputError(f"{name}: begins at no multiple of {VECTOR} bytes; give a whole allocation")
    head_dim = tensor.shape[2]
    if not 16 <= head_dim <= 256 or head_dim & (head_dim - 1):
        raise KernelInputError(f"{name}: head_dim {head_dim}; give a power of two from 16 to 256")


@dataclass(frozen=True, eq=False)
class Buffers:
    """Buffers of one shape: SGLang's `k_buffer` and `v_buffer` of all or some full-attention layers.

    tensors   [n] each [slots, kv_heads, head_dim] in bf16, fp16 or fp32, contiguous
    pointers  [n] int64 on their device: where they lie
    """

    tensors: tuple[Tensor, ...]
    pointers: Tensor

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Buffers:
        """Build from a list of one or more tensors.

        Refused: several shapes, dtypes or devices, gaps, a head_dim that is no power of two from 16 to 256.
        """
        what = "the K and V tensors of at least one layer"
        if isinstance(tensors, Tensor):  # it would be taken apart into its slots
            raise KernelInputError(f"buffers: one tensor of shape {list(tensors.shape)}; give a list: {what}")
        tensors = checks.each("buffers", tensors, what)
        if not tensors:
            raise KernelInputError(f"buffers: none given; give {what}")
        first = tensors[0]
        checks.tensor("buffers[0]", first, (None, None, None), checks.FLOATS)
        for number, tensor in enumerate(tensors):
            name = f"buffers[{number}]"
            shape = (None, None, None) if tensor is first else first.shape
            dtypes = checks.FLOATS if tensor is first else (first.dtype,)
            check(name, tensor, shape, dtypes, first.device)
        pointers = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64).to(first.device)
        return cls(tuple(tensors), pointers)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def slots(self) -> int:
        return int(self.tensors[0].shape[0])

    @property
    def heads(self) -> int:
        return int(self.tensors[0].shape[1])

    @property
    def head_dim(self) -> int:
        return int(self.tensors[0].shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one slot in one buffer."""
        return self.heads * self.head_dim * int(self.tensors[0].element_size())
