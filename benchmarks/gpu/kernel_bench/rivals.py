# SPDX-License-Identifier: Apache-2.0
"""Other libraries' versions of the kernels, timed on the same inputs where installed: set-up function by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from benchmarks.gpu.kernel_bench import sizes
from benchmarks.gpu.kernel_bench.sizes import Size

Rivals = dict[str, Callable[[], Callable[[], object]]]


def moves(size: Size, device: torch.device) -> Rivals:
    """Move rows of all layers to other slots: plain torch; SGLang's pool, whose kernel takes 256 rows a launch."""
    order = torch.randperm(2 * size.context, generator=sizes.generator(device, 13), device=device)
    source, target = order[: size.context], order[size.context :]

    def by_torch() -> Callable[[], object]:
        kv = sizes.buffers(device, 2 * size.context, size, 7, 2 * size.layers).tensors

        def run() -> None:
            for tensor in kv:
                tensor[target] = tensor[source]

        return run

    def by_sglang() -> Callable[[], object]:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: PLC0415 - only where it is installed

        pool = MHATokenToKVPool(
            2 * size.context, 1, sizes.DTYPE, size.heads, size.dim, size.layers, str(device), enable_memory_saver=False,
            enable_kv_cache_copy=True,
        )  # fmt: skip
        return lambda: pool.move_kv_cache(target, source)

    found: Rivals = {"torch": by_torch}
    if device.type == "cuda" and find_spec("sglang"):
        found["sglang move_kv_cache"] = by_sglang
    return found


def topk(size: Size, device: torch.device) -> Rivals:
    """Select the k best of each row: torch.topk (no order among equals) and FlashInfer's fused lookup; neither makes a mask."""
    count, k = size.batch * size.heads, size.context // 4
    scores = torch.randn(count, size.context, generator=sizes.generator(device, 12), device=device)

    def by_flashinfer() -> Callable[[], object]:
        from flashinfer import top_k_page_table_transform  # noqa: PLC0415 - only where it is installed

        table = torch.arange(size.context, device=device, dtype=torch.int32).repeat(count, 1)
        lengths = torch.full((count,), size.context, device=device, dtype=torch.int32)
        return lambda: top_k_page_table_transform(scores, table, lengths, k)

    found: Rivals = {"torch.topk": lambda: lambda: scores.topk(k, sorted=False)}
    if device.type == "cuda" and find_spec("flashinfer"):
        found["flashinfer top_k_page_table_transform"] = by_flashinfer
    return found
