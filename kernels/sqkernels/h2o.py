# SPDX-License-Identifier: Apache-2.0
"""H2O's running sums: the attention that each slot has received up to now."""

from __future__ import annotations

import torch
from torch import Tensor

from sqkernels import checks
from sqkernels.attention import add_scores
from sqkernels.window import Window, softmax


def h2o_accumulate(sums: Tensor, window: Window) -> None:
    """Add the attention that each key receives from the new queries to its slot's sum, in place.

    sums    [slots, kv_heads] float32; the caller zeroes a slot when it is allocated. Never normalised by age.
    window  the queries of this forward pass: one a request when decoding, the whole extension after a prefill
    The sum over queries, the mean over the KV head's query heads. Requests that share slots add to the same sums.
    Sums of slots that no two requests share are the same every time; of others, in their last bits, not.
    Raises KernelInputError as `Window.check` says. A slot beyond the sums is written out of them: the caller rules it out.
    Floor: two passes over K of the request, one where `lse` is given: at every decode step half of what attention itself
    reads, which makes H2O the costliest baseline.
    Source: H2O (arXiv 2306.14048), section 4 and algorithm 1; the group's mean as in kvpress's ObservedAttentionPress.
    """
    _check(sums, window)
    add_scores(window, sums, 1 / window.group, by_slot=True)


def h2o_accumulate_reference(sums: Tensor, window: Window) -> None:
    """Do the same as `h2o_accumulate` in plain torch."""
    _check(sums, window)
    for request, length in enumerate(window.rows.lengths):
        if length:
            received = softmax(window.logits(request), window.sinks).sum(2).mean(1)
            sums.index_add_(0, window.rows.slots(request).long(), received.T)


def h2o_scores(sums: Tensor, window: Window) -> Tensor:
    """Return [b, kv_heads, longest row] float32: the sums of each request's tokens, 0 after a row's length."""
    _check(sums, window)
    rows = window.rows
    out = torch.zeros(len(rows), window.heads, rows.longest, dtype=torch.float32, device=sums.device)
    for request, length in enumerate(rows.lengths):
        out[request, :, :length] = sums[rows.slots(request).long()].T
    return out


def _check(sums: Tensor, window: Window) -> None:
    window.check()
    checks.tensor("sums", sums, (window.keys.shape[0], window.heads), (torch.float32,), window.keys.device)
    checks.dense("sums", sums)
