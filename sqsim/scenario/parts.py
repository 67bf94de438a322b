"""The parts of a scenario: engine and load. SPEC.md is the contract, `scenario.py` the whole, `sqsim/policies/` the third part.

`none`, `all` and `auto` in the file are None here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer, model_validator

from sqsim.base.part import Cache, Count, Name, Part, Positive, Word, conflict

Router = Literal["session_affinity", "round_robin", "least_loaded"]
KvDtype = Literal["bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"]


class Engine(Part):
    """The server: GPU, memory, cache and the scheduler's limits. Defaults are SGLang's."""

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
        # Without a pool of its own every token has its sliding-layer KV: the ratio is 1 (SPEC.md).
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


class ClosedLoad(Part):
    """So many tasks at once: the next one starts when one ends. Sub-agents do not count."""

    concurrency: Count = Field(default=24, description="tasks at once, a whole number of at least 1")


class RateLoad(Part):
    """Tasks arrive whether or not others ended. `uniform`: every 1 / rate_per_s seconds.

    `bursts`: so many at one instant, the bursts as a Poisson stream. `daily`: a Poisson stream whose rate swings around
    its mean as a cosine, lowest at 0 s. The mean is always `rate_per_s`.
    """

    rate_per_s: Positive = Field(description="tasks a second, above 0; the mean")
    arrivals: Literal["poisson", "uniform", "bursts", "daily"] = Field(
        default="poisson", description="poisson, uniform, bursts or daily"
    )
    burst: Count = Field(default=10, description="tasks of a burst, at least 1 (bursts)")
    swing: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.8,
        description="how far the rate swings, as a share of its mean, 0 or more and below 1 (daily)",
    )
    period_s: Positive = Field(default=86400.0, description="seconds from low to low, above 0 (daily)")

    _BELONGS: ClassVar[dict[str, str]] = {"burst": "bursts", "swing": "daily", "period_s": "daily"}

    @model_validator(mode="after")
    def _means_something(self) -> RateLoad:
        for key, kind in self._BELONGS.items():
            if key in self.model_fields_set and self.arrivals != kind:
                raise conflict(
                    key,
                    f"means nothing with load.arrivals: {self.arrivals}",
                    f"remove it, or set load.arrivals: {kind}",
                )
        return self

    @model_serializer(mode="wrap")
    def _without_the_rest(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What means nothing is not said."""
        content: dict[str, Any] = write(self)
        return {
            key: value
            for key, value in content.items()
            if self._BELONGS.get(key, self.arrivals) == self.arrivals
        }


class RecordedLoad(Part):
    """Tasks arrive when they did in the recording, `speedup` times as fast."""

    as_recorded: Literal[True] = Field(description="true")
    speedup: Positive = Field(default=1.0, description="a factor above 0")


LOADS: dict[str, type[Part]] = {"concurrency": ClosedLoad, "rate_per_s": RateLoad, "as_recorded": RecordedLoad}


def _tag_of(variants: dict[str, type[Part]], choose: Callable[[dict[str, Any]], str | None]) -> Discriminator:
    def tag(value: Any) -> str | None:
        if isinstance(value, Part):
            return next((name for name, kind in variants.items() if isinstance(value, kind)), None)
        return choose(value) if isinstance(value, dict) else None

    return Discriminator(tag, custom_error_type="choice", custom_error_message="no choice")


def _load_of(values: dict[str, Any]) -> str | None:
    named = [key for key in LOADS if key in values]
    return named[0] if len(named) == 1 else None


Load = Annotated[
    Annotated[ClosedLoad, Tag("concurrency")]
    | Annotated[RateLoad, Tag("rate_per_s")]
    | Annotated[RecordedLoad, Tag("as_recorded")],
    _tag_of(LOADS, _load_of),
]
