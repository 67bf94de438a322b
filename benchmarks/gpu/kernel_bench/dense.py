# SPDX-License-Identifier: Apache-2.0
"""Dense products at gpt-oss-20b's shapes, hidden size 2,880, absent from public step-time tables: bf16, cuBLAS by torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.kernel_bench import sizes
from benchmarks.gpu.kernel_bench.sizes import Size
from benchmarks.gpu.kernel_bench.timing import seconds, spread
from sqsim.models.cost.hardware import Hardware


class Product(NamedTuple):
    """tokens x wide @ wide x out."""

    name: str
    wide: int
    out: int


def products(size: Size) -> list[Product]:
    """Return a layer's projections, one expert's two matrices, and the output head (config.json of openai/gpt-oss-20b)."""
    heads = size.heads * size.group * size.dim
    return [
        Product("qkv", size.hidden, heads + 2 * size.heads * size.dim),
        Product("attention_out", heads, size.hidden),
        Product("router", size.hidden, 32),
        Product("expert_gate_up", size.hidden, 2 * size.hidden),
        Product("expert_down", size.hidden, size.hidden),
        Product("lm_head", size.hidden, size.vocabulary),
    ]


def dense(size: Size, device: torch.device, hardware: Hardware) -> Iterator[tuple[str, Any]]:
    """Return the name and the measuring function of each product at each number of tokens."""
    for product in products(size):
        for tokens in size.tokens:
            if product.name != "lm_head" or tokens <= 512:  # one row a request that gets a token
                yield f"{product.name} x {tokens}", lambda p=product, t=tokens: _product(p, t, device, hardware)


def _product(product: Product, tokens: int, device: torch.device, hardware: Hardware) -> dict[str, Any]:
    """Return a row of the record. Floor: the slower of moving both operands and the result, and of multiplying."""
    random = sizes.generator(device, 0)
    left = torch.randn(tokens, product.wide, generator=random, device=device, dtype=sizes.DTYPE)
    right = torch.randn(product.out, product.wide, generator=random, device=device, dtype=sizes.DTYPE)
    moved = 2 * (left.numel() + right.numel() + tokens * product.out)
    operations = 2 * tokens * product.wide * product.out
    floor_s = max(moved / hardware.bandwidth, operations / hardware.peak("bfloat16"))
    took = seconds(lambda: torch.nn.functional.linear(left, right), device)
    row = {"kind": "gemm", **product._asdict(), "tokens": tokens, "dtype": "bfloat16", "floor_s": floor_s}
    return row | {"device_s": spread(took)}
