# SPDX-License-Identifier: Apache-2.0
"""Rows of a page table: the slots that hold the KV of each position of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sqkernels import checks
from sqkernels.errors import KernelInputError


@dataclass(frozen=True, eq=False)
class Rows:
    """Requests' rows of SGLang's `req_to_token` (srt/mem_cache/memory_pool.py), known to the host and the device.

    table    [requests, context] int32 or int64: position -> slot. Within a row, slots are distinct up to its length.
    index    [b] int32 on the table's device: the row of each request
    length   [b] int32 on the table's device: positions in use, in tokens
    indices  the same as index, on the host
    lengths  the same as length, on the host

    Of the lengths before a call: make them anew after one that drops tokens. That the slots lie within the buffers is
    not checked by kernels, which would have to wait for the device; only `fill_pages`, which waits, does.
    """

    table: Tensor
    index: Tensor
    length: Tensor
    indices: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, table: Tensor, indices: Sequence[int], lengths: Sequence[int]) -> Rows:
        """Build rows from host numbers, in one transfer. Refuse a repeated row, or one that is outside the table."""
        checks.tensor("table", table, (None, None), checks.INTEGERS)
        count, context = table.shape
        checks.apart("table", table)
        indices = checks.wholes("indices", indices)
        lengths = checks.wholes("lengths", lengths, len(indices))
        for request, (row, length) in enumerate(zip(indices, lengths, strict=True)):
            if not 0 <= row < count:
                raise KernelInputError(
                    f"indices[{request}]: row {row} of a table of {count} rows; {checks.choices(count)}"
                )
            if not 0 <= length <= context:
                raise KernelInputError(
                    f"lengths[{request}]: {length} tokens in a row of {context}; give 0 to {context}"
                )
        if len(set(indices)) != len(indices):
            twice = next(row for row in indices if indices.count(row) > 1)
            raise KernelInputError(f"indices: row {twice} stands there twice; give each row once")
        index, length_ = checks.to_device(table.device, indices, lengths)
        return cls(table, index, length_, tuple(indices), tuple(lengths))

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def longest(self) -> int:
        """Return the tokens of the longest request; 0 where there is none."""
        return max(self.lengths, default=0)

    def slots(self, request: int) -> Tensor:
        """Return the request's slots, [length], as a view of the table."""
        return self.table[self.indices[request], : self.lengths[request]]
