# SPDX-License-Identifier: Apache-2.0
"""Last queries of requests, and the keys of one layer that they attend to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sqkernels import buffers, checks
from sqkernels.errors import KernelInputError
from sqkernels.rows import Rows


@dataclass(frozen=True, eq=False)
class Window:
    """Last queries of requests and the keys of one layer that they attend to.

    Scores read keys at the rows' slots as they are: one beyond `keys` is the caller's to rule out, since finding it would
    wait for the device.

    rows     b rows; each has no tokens at all or at least as many as the window
    keys     [slots, kv_heads, head_dim] bf16, fp16 or fp32, as cached: after rotary embedding
    queries  [b, window, heads, head_dim] of the keys' dtype, after rotary embedding; heads a multiple of kv_heads
    scale    what a logit q.k is multiplied with, 1 / sqrt(head_dim) as a rule
    sinks    None or [heads] float32: attention sinks, logits without a key (gpt-oss)
    lse      None or [b, window, heads] float32: natural log of each softmax's denominator, sink included, where the
             attention kernel returns it: that saves one pass over the keys. Not for the group maximum.
    """

    rows: Rows
    keys: Tensor
    queries: Tensor
    scale: float
    sinks: Tensor | None = None
    lse: Tensor | None = None

    def check(self) -> None:
        """Refuse arguments that the kernels cannot take, and name them."""
        checks.real("scale", self.scale)
        rows, keys, device = self.rows, self.keys, self.rows.table.device
        buffers.check("keys", keys, (None, None, None), checks.FLOATS, device)
        checks.tensor("queries", self.queries, (len(rows), None, None, keys.shape[2]), (keys.dtype,), device)
        checks.dense("queries", self.queries)
        window, heads = self.queries.shape[1:3]
        if not window:
            raise KernelInputError("queries: a window of 0 queries; give at least one")
        if not heads or heads % keys.shape[1]:
            raise KernelInputError(f"queries: {heads} heads for {keys.shape[1]} KV heads; give a multiple")
        for request, length in enumerate(rows.lengths):
            if 0 < length < window:
                raise KernelInputError(
                    f"lengths[{request}]: {length} tokens, its window has {window} queries; "
                    "give fewer queries, or leave the request out"
                )
        if self.sinks is not None:
            checks.tensor("sinks", self.sinks, (heads,), (torch.float32,), device)
        if self.lse is not None:
            checks.tensor("lse", self.lse, (len(rows), window, heads), (torch.float32,), device)

    @property
    def window(self) -> int:
        return int(self.queries.shape[1])

    @property
    def heads(self) -> int:
        """Number of KV heads."""
        return int(self.keys.shape[1])

    @property
    def group(self) -> int:
        """Number of query heads of one KV head."""
        return int(self.queries.shape[2]) // self.heads

    def logits(self, request: int) -> Tensor:
        """Compute in plain torch: [kv_heads, group, window, length] float32, causal within the window."""
        slots = self.rows.slots(request).long()
        keys = self.keys[slots].float()
        queries = self.queries[request].float().view(self.window, self.heads, self.group, -1)
        logits = torch.einsum("whgd,nhd->hgwn", queries, keys) * self.scale
        place = torch.arange(len(slots), device=slots.device)
        last = len(slots) - self.window + torch.arange(self.window, device=slots.device)
        return logits.masked_fill(place > last[:, None], -torch.inf)

    def zeros(self) -> Tensor:
        """Return [b, kv_heads, longest row] float32 zeros, to which kernels add scores."""
        rows = self.rows
        return torch.zeros(len(rows), self.heads, rows.longest, dtype=torch.float32, device=rows.table.device)


def softmax(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Apply softmax over the last dimension of [kv_heads, group, window, keys], with sinks [kv_heads * group]."""
    if sinks is None:
        return logits.softmax(-1)
    beside = sinks.view(logits.shape[0], logits.shape[1], 1, 1).expand(*logits.shape[:3], 1)
    return torch.cat([logits, beside], -1).softmax(-1)[..., :-1]
