# SPDX-License-Identifier: Apache-2.0
"""A scenario's engine: the server's GPU, memory, cache and limits. SPEC.md is the contract.

`auto` in the file is None here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sqsim.base.part import Cache, Count, Name, Part, Positive, Word, conflict

Router = Literal["session_affinity", "round_robin", "least_loaded"]
KvDtype = Literal["bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"]


class Engine(Part):
    """The server's GPU, memory, cache and scheduler limits. Defaults are SGLang's."""

    gpu: Name = Field(default="h100-sxm", description="a GPU that `sqsim support` lists")
    profile: Annotated[Name | None, Word("auto")] = Field(
        default=None, description="auto, or a cost profile that `sqsim support` lists"
    )
    kernel_costs: Annotated[Name | None, Word("auto")] = Field(
        default=None,
        description="auto, or a record of benchmarks/gpu/kernels.py: what an eviction in place costs",
    )
    tensor_parallel: Count = Field(default=1, description="a number of GPUs, at least 1")
    kv_dtype: KvDtype = Field(
        default="bfloat16", description="bfloat16, float16, float32, fp8_e4m3 or fp8_e5m2"
    )
    mem_fraction: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.88, description="the share of GPU memory for weights and KV, above 0 and below 1"
    )
    kv_capacity: Annotated[Count | None, Word("auto")] = Field(
        default=None, description="auto, or full-attention slots in tokens, at least one page"
    )
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.8, description="sliding-window slots for each full-attention slot, above 0 and at most 1"
    )
    swa_pool: bool = Field(default=True, description="on, or off: every token is kept in every layer")
    page_size: Count = Field(default=1, description="tokens, a whole number of at least 1")
    max_running: Count = Field(default=256, description="requests, a whole number of at least 1")
    max_new_tokens: Count = Field(default=4096, description="tokens that a request declares, at least 1")
    chunked_prefill: Count = Field(default=8192, description="tokens a step, a multiple of engine.page_size")
    schedule_conservativeness: Positive = Field(default=1.0, description="a number above 0")
    cache: Cache = Field(default="radix", description="radix or session")
    context_length: Annotated[Count | None, Word("auto")] = Field(
        default=None, description="auto (the model's), or tokens, at least 1"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_pool(cls, values: Any) -> Any:
        # Without a sliding-window pool every token keeps its sliding-layer KV: the ratio is 1 (SPEC.md).
        if isinstance(values, dict) and values.get("swa_pool") is False:
            return {"swa_full_tokens_ratio": 1.0, **values}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Engine:
        if not self.swa_pool and self.swa_full_tokens_ratio < 1:
            raise conflict(
                "swa_full_tokens_ratio",
                f"{self.swa_full_tokens_ratio} means nothing with engine.swa_pool: off",
                "remove it, or set engine.swa_pool: on",
            )
        if self.chunked_prefill % self.page_size:
            below, above = (
                step(self.chunked_prefill / self.page_size) * self.page_size for step in (math.floor, math.ceil)
            )
            raise conflict(
                "chunked_prefill",
                f"{self.chunked_prefill} is no multiple of engine.page_size {self.page_size}",
                f"set engine.chunked_prefill: {below or above}, or another engine.page_size",
            )
        if self.kv_capacity is not None and self.kv_capacity < self.page_size:
            raise conflict(
                "kv_capacity",
                f"{self.kv_capacity} tokens do not hold one page of {self.page_size}",
                f"set engine.kv_capacity to at least {self.page_size}, or to auto",
            )
        return self
