# SPDX-License-Identifier: Apache-2.0
"""R-KV's scores of cached keys: importance to the last queries, minus redundancy with newer keys."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import max_pool1d

from sqkernels import checks
from sqkernels.attention import add_scores
from sqkernels.errors import KernelInputError
from sqkernels.redundancy import rkv_redundancy, rkv_redundancy_reference
from sqkernels.window import Window, softmax

POOL = 7  # places
IMPORTANCE = 0.1  # R-KV's lambda: the weight of importance against redundancy
THRESHOLD = 0.5  # cosine above which two keys are alike


def rkv_scores(window: Window, importance: float = IMPORTANCE, threshold: float = THRESHOLD) -> Tensor:
    """Return [b, kv_heads, longest row] float32: importance x R-KV's importance - (1 - importance) x its redundancy.

    Of the keys before the window; what stands elsewhere means nothing (the window is kept anyway: `topk_keep`'s recent).
    Raises KernelInputError as `Window.check` says, and for `lse`.
    Floor: 4 passes over K, and the scan of `rkv_redundancy`.
    Source: R-KV (arXiv 2505.24133), section 3.4, and its code: R1KV.update_kv.
    """
    _check(window, importance)
    redundancy = rkv_redundancy(window.rows, window.keys, threshold)
    return importance * rkv_importance(window) - (1 - importance) * redundancy


def rkv_scores_reference(
    window: Window, importance: float = IMPORTANCE, threshold: float = THRESHOLD
) -> Tensor:
    """Do the same as `rkv_scores` in plain torch."""
    _check(window, importance)
    redundancy = rkv_redundancy_reference(window.rows, window.keys, threshold)
    return importance * rkv_importance_reference(window) - (1 - importance) * redundancy


def rkv_importance(window: Window) -> Tensor:
    """Return [b, kv_heads, longest row] float32: R-KV's importance of keys before the window, largest of 7 places.

    The largest logit of the KV head's query heads, softmax over the keys before the window (a sink in the denominator is
    ours: the largest of the group's; R-KV has none), mean over the window's queries. 0 elsewhere.
    Raises KernelInputError as `Window.check` says, and for `lse`: attention's denominators are others.
    Floor: two passes over K of the request, as for SnapKV without `lse`.
    Source: R-KV (arXiv 2505.24133), section 3.2, and its code: compute_attention_scores, R1KV.update_kv.
    """
    _check(window)
    out = window.zeros()
    add_scores(window, out, 1 / window.window, group_max=True, before=True)
    return _pooled(out)


def rkv_importance_reference(window: Window) -> Tensor:
    """Do the same as `rkv_importance` in plain torch."""
    _check(window)
    out = window.zeros()
    for request, length in enumerate(window.rows.lengths):
        before = length - window.window
        if before > 0:
            logits = window.logits(request).amax(1, keepdim=True)[..., :before]
            sinks = None if window.sinks is None else window.sinks.view(window.heads, -1).amax(1)
            out[request, :, :before] = softmax(logits, sinks).mean((1, 2))
    return _pooled(out)


def _pooled(scores: Tensor) -> Tensor:
    """Take the largest of POOL places; no score is negative, so zero padding gives the same as upstream's -inf."""
    return max_pool1d(scores, POOL, stride=1, padding=POOL // 2) if scores.numel() else scores


def _check(window: Window, importance: float = IMPORTANCE) -> None:
    checks.real("importance", importance, 0, 1)
    window.check()
    if window.lse is not None:
        raise KernelInputError(
            "lse: R-KV's softmax is over the group's largest logits and other keys; leave lse out"
        )
