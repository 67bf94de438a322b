# SPDX-License-Identifier: Apache-2.0
"""KV capacity in tokens: the sizes of SGLang's full-attention pool and of its sliding-window pool.

SGLang keeps `total * (1 - mem_fraction)` of the memory that was free before loading for activations and
graphs; the rest, without the weights, is KV (SPEC.md, "KV capacity, auto"). On a hybrid sliding-window
model each full-attention slot comes with `swa_full_tokens_ratio` sliding slots.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sqsim.errors import InputError
from sqsim.models.cost.geometry import Geometry
from sqsim.models.cost.hardware import GIB, Hardware


class KvCapacity(NamedTuple):
    """Pool sizes in tokens, whole pages; `swa_tokens` is None where every layer shares one pool."""

    tokens: int  # of the full-attention pool
    swa_tokens: int | None
    how: str  # one sentence for reports
    bytes_per_token: float | None = (
        None  # budget of one full-attention slot on one GPU, its sliding share included
    )

    def described(self) -> dict[str, Any]:
        """Build the object `kv_capacity` of run.json."""
        return {"tokens": self.tokens, "swa_tokens": self.swa_tokens, "how": self.how}


def kv_capacity(
    geometry: Geometry,
    hardware: Hardware,
    weight_bytes: float,
    *,
    mem_fraction: float,
    kv_dtype: str,
    swa_pool: bool,
    swa_full_tokens_ratio: float,
    page_size: int,
    tensor_parallel: int,
    given: int | None,
) -> KvCapacity:
    """Compute the pool sizes of a model on `tensor_parallel` GPUs.

    `weight_bytes` counts the whole model, in the format that the cost profile names. `given` is a pool size in
    tokens (SGLang's `--max-total-tokens`, or a real run's `max_total_num_tokens`) and skips the memory
    arithmetic. InputError: a value is out of bounds, or the model does not fit.
    """
    _check(mem_fraction, swa_full_tokens_ratio, page_size)
    hybrid = swa_pool and geometry.sliding_layers > 0
    full_bytes = geometry.kv_bytes_per_token("full", kv_dtype, tensor_parallel)
    sliding_bytes = geometry.kv_bytes_per_token("sliding", kv_dtype, tensor_parallel)
    slot_bytes = full_bytes + (swa_full_tokens_ratio if hybrid else 1.0) * sliding_bytes

    if given is not None:
        tokens, how = given, f"given: {given} tokens"
    else:
        weights = weight_bytes / tensor_parallel
        total = hardware.memory_bytes - hardware.context_bytes
        free = total - weights - total * (1 - mem_fraction)
        tokens = int(free / slot_bytes)
        parts = (
            f"{mem_fraction:g} x {total / GIB:.2f} GiB free before loading - {weights / GIB:.2f} GiB of weights"
            f" = {free / GIB:.2f} GiB of KV a GPU; {slot_bytes / 1024:.1f} KiB a token"
        )
        if 0 < tokens < page_size:
            raise InputError(
                f"engine.page_size {page_size}: one page is larger than the KV pool of {tokens} tokens ({parts}); lower it"
            )
        if tokens < 1:
            raise InputError(
                f"{geometry.name} does not fit on {tensor_parallel} x {hardware.name}: {parts}; raise "
                "engine.tensor_parallel or engine.mem_fraction, or choose a larger GPU or a profile with smaller weights"
            )
        how = f"computed: {parts}"

    full = tokens // page_size * page_size
    if full < 1:
        raise InputError(f"kv_capacity {tokens} is less than one page of {page_size} tokens; raise it")
    if not hybrid:
        return KvCapacity(full, None, how, slot_bytes)
    swa = int(full * swa_full_tokens_ratio) // page_size * page_size
    if swa < 1:
        raise InputError(
            f"swa_full_tokens_ratio {swa_full_tokens_ratio:g} of {full} tokens is less than one page of {page_size}; "
            f"raise it, or engine.kv_capacity to at least {math.ceil(page_size / swa_full_tokens_ratio)}"
        )
    return KvCapacity(full, swa, f"{how}; sliding pool {swa_full_tokens_ratio:g} x full", slot_bytes)


def _check(mem_fraction: float, swa_full_tokens_ratio: float, page_size: int) -> None:
    for key, value in (("mem_fraction", mem_fraction), ("swa_full_tokens_ratio", swa_full_tokens_ratio)):
        if not 0 < value <= 1:
            raise InputError(f"{key} {value} is out of bounds; give a number above 0 and at most 1")
    if page_size < 1:
        raise InputError(f"page_size {page_size} is out of bounds; give a whole number of at least 1")
