"""How many tokens of KV fit: the sizes of SGLang's full-attention pool and of its sliding-window pool.

SGLang keeps `total * (1 - mem_fraction)` of the memory that was free before loading for activations and
graphs; what is then left after the weights is KV (SPEC.md, "KV capacity, auto"). On a hybrid sliding-window
model each full-attention slot brings `swa_full_tokens_ratio` sliding slots with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sqsim.errors import InputError
from sqsim.models.geometry import Geometry
from sqsim.models.hardware import GIB, Hardware


class Capacity(NamedTuple):
    """Pool sizes in tokens, whole pages; `swa_tokens` is None where every layer shares one pool."""

    full_tokens: int
    swa_tokens: int | None
    bytes_per_full_token: float  # budget of one full-attention slot on one GPU, its sliding share included
    how: str  # one sentence for reports


def kv_capacity(
    geometry: Geometry,
    hardware: Hardware,
    weight_bytes: float,
    *,
    mem_fraction: float = 0.88,
    kv_dtype: str = "bfloat16",
    swa_pool: bool = True,
    swa_full_tokens_ratio: float = 0.8,
    page_size: int = 1,
    tensor_parallel: int = 1,
    override: int | None = None,
) -> Capacity:
    """Pool sizes for a model on that many GPUs.

    `weight_bytes` is the whole model's, in the format the cost profile names; `override` is a pool size in
    tokens (SGLang's `--max-total-tokens`, or a real run's `max_total_num_tokens`) and skips the memory
    arithmetic. InputError when a value is out of bounds or the model does not fit.
    """
    _check(mem_fraction, swa_full_tokens_ratio, page_size)
    hybrid = swa_pool and geometry.sliding_layers > 0
    full_bytes = geometry.kv_bytes_per_token("full", kv_dtype, tensor_parallel)
    sliding_bytes = geometry.kv_bytes_per_token("sliding", kv_dtype, tensor_parallel)
    slot_bytes = full_bytes + (swa_full_tokens_ratio if hybrid else 1.0) * sliding_bytes

    if override is not None:
        tokens, how = override, f"given: {override} tokens"
    else:
        weights = weight_bytes / tensor_parallel
        total = hardware.memory_bytes - hardware.context_bytes
        free = total - weights - total * (1 - mem_fraction)
        tokens = int(free / slot_bytes)
        parts = (
            f"{mem_fraction:g} x {total / GIB:.2f} GiB free before loading - {weights / GIB:.2f} GiB of weights"
            f" = {free / GIB:.2f} GiB of KV a GPU; {slot_bytes / 1024:.1f} KiB a token"
        )
        if tokens < page_size:
            raise InputError(
                f"{geometry.name} does not fit on {tensor_parallel} x {hardware.name}: {parts}; raise "
                "engine.tensor_parallel or engine.mem_fraction, or choose a larger GPU or a profile with smaller weights"
            )
        how = f"computed: {parts}"

    full = tokens // page_size * page_size
    if full < 1:
        raise InputError(f"kv_capacity {tokens} is less than one page of {page_size} tokens; raise it")
    if not hybrid:
        return Capacity(full, None, slot_bytes, how)
    swa = int(full * swa_full_tokens_ratio) // page_size * page_size
    if swa < 1:
        raise InputError(
            f"swa_full_tokens_ratio {swa_full_tokens_ratio:g} of {full} tokens is less than one page of {page_size}; "
            f"raise it, or engine.kv_capacity to at least {math.ceil(page_size / swa_full_tokens_ratio)}"
        )
    return Capacity(full, swa, slot_bytes, f"{how}; sliding pool {swa_full_tokens_ratio:g} x full")


def _check(mem_fraction: float, swa_full_tokens_ratio: float, page_size: int) -> None:
    for key, value in (("mem_fraction", mem_fraction), ("swa_full_tokens_ratio", swa_full_tokens_ratio)):
        if not 0 < value <= 1:
            raise InputError(f"{key} {value} is out of bounds; give a number above 0 and at most 1")
    if page_size < 1:
        raise InputError(f"page_size {page_size} is out of bounds; give a whole number of at least 1")
