# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for in-place eviction and for the scores of heuristic baselines; they need torch and triton only.

Each file has one noun: as a rule one public function, and a plain torch reference. From the ground up:

errors, launch, checks     refusals by name; the one door through which kernels run
rows, spans, buffers       a page table's rows; spans of positions; KV buffers
compact, compact_mask      dropped slots out of rows, in place: by spans, by a keep mask
moves, pages, shift        KV rows to other slots: disjoint, fewest for whole pages, in order
rotation                   keys to other positions: copied and turned, plain rotary embedding or YaRN
window, attention          the last queries of a request, and what keys receive from them over a paged cache
snapkv, rkv, h2o           scores that the published baselines keep tokens by; redundancy is R-KV's other half
topk                       scores to a keep mask, the same one every time
"""

from importlib.util import find_spec

from sqkernels.errors import KernelInstallError

for _needed in ("torch", "triton"):
    if find_spec(_needed) is None:
        raise KernelInstallError(
            f"sqkernels needs {_needed}, which is not installed; run: pip install 'sqsim[kernels]'"
        )
