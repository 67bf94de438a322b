# SPDX-License-Identifier: Apache-2.0
"""SnapKV's scores of cached keys: the attention they receive from the last queries of a request."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import avg_pool1d

from sqkernels.attention import add_scores
from sqkernels.window import Window, softmax

POOL = 5  # places


def snapkv_scores(window: Window) -> Tensor:
    """Return [b, kv_heads, longest row] float32: attention to each key before the window, averaged over 5 places.

    The mean over the window's queries and the KV head's query heads of the softmax over all keys (causal within the
    window, sinks in the denominator); 0 for the window's own keys, which SnapKV keeps anyway, and behind a row's length.
    Raises KernelInputError as `Window.check` says.
    Floor: two passes over K of the request, one where `lse` is given: 2 x 1 KB x tokens a layer; 24,576 tokens and 12
    layers: 63 us a pass at 4.8 TB/s.
    Source: SnapKV (arXiv 2404.14469), section 4; average pooling and the group's mean as in kvpress's SnapKVPress.
    """
    window.check()
    out = window.zeros()
    add_scores(window, out, 1 / (window.window * window.group), before=True)
    return _pooled(out)


def snapkv_scores_reference(window: Window) -> Tensor:
    """Do the same as `snapkv_scores` in plain torch."""
    window.check()
    out = window.zeros()
    for request, length in enumerate(window.rows.lengths):
        if length:
            received = softmax(window.logits(request), window.sinks).mean((1, 2))
            out[request, :, : length - window.window] = received[:, : length - window.window]
    return _pooled(out)


def _pooled(scores: Tensor) -> Tensor:
    """Take the mean of POOL places, with upstream's zero padding at the window's start and after a row's end."""
    return avg_pool1d(scores, POOL, stride=1, padding=POOL // 2) if scores.numel() else scores
