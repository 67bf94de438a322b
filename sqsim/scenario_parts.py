"""The parts of a scenario: engine, load and policy. SPEC.md is the contract, `scenario.py` the whole.

The models are strict: an unknown key is an error, a value is never converted, `nan` and `inf` are no numbers.
Each field's description says what is allowed there; it is what an error message prints. `none`, `all` and
`auto` in the file are None here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sqsim.base.checked import Checked

AfterEviction = Literal["in_place", "reprefill"]
Cache = Literal["radix", "session"]
Router = Literal["session_affinity", "round_robin", "least_loaded"]
KvDtype = Literal["bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"]

FITS: dict[str, AfterEviction] = {"radix": "reprefill", "session": "in_place"}
"""SPEC.md, "Which combinations exist": what may follow an eviction with each cache."""

# The bound is far above any engine and keeps sums of tokens inside int64.
Count = Annotated[int, Field(ge=1, le=10**12)]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]


class Word:
    """Annotates an optional field whose absence is written as a word: `all`, `auto` or `none`."""

    def __init__(self, word: str) -> None:
        self.word = word

    def _read(self, value: Any) -> Any:
        if isinstance(value, str) and value == self.word:
            return None
        if value is None and self.word != "none":  # `null` is YAML's none, but an empty value is no `auto`
            raise PydanticCustomError("empty", "it has no value")
        return value

    def _write(self, value: Any) -> Any:
        return self.word if value is None else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self._write),
        )


def conflict(path: str, problem: str, fix: str) -> PydanticCustomError:
    """Build the error for values that do not go together; `path` is relative to the model that raises it."""
    return PydanticCustomError("conflict", "{problem}; {fix}", {"path": path, "problem": problem, "fix": fix})


class Part(Checked):
    """Base of every part of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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


class NoEviction(Part):
    """Nothing is ever evicted: what servers do today."""

    name: Literal["none"] = Field(default="none", description="none")


class SideQuest(Part):
    """The model names stale cursors on an aux thread (METHOD.md, Algorithm 1; arXiv 2602.22603).

    `decisions: scripted` draws them from a decision model, whose are `recall` and `false_rate`, and `aux_tokens`, the
    mean length of its output; with `live` the model of a real server writes them.
    """

    name: Literal["sidequest"] = Field(description="sidequest")
    k: Count = Field(default=4, description="turns from one aux thread to the next, at least 1")
    decisions: Literal["scripted", "live"] = Field(
        default="scripted", description="scripted, or live: the server's model writes them (`sqreal run` only)"
    )
    recall: Share = Field(default=0.85, description="the chance that an expired cursor is named, from 0 to 1")
    false_rate: Share = Field(default=0.02, description="the chance that a live cursor is named, from 0 to 1")
    aux_tokens: Count = Field(default=125, description="mean tokens of an aux output, at least 1")
    aux_max_new_tokens: Count = Field(
        default=256, description="tokens that an aux request declares, at least 1"
    )
    aux_start: Literal["after_main_prefill", "with_main"] = Field(
        default="after_main_prefill", description="after_main_prefill or with_main"
    )
    after_eviction: AfterEviction = Field(default="in_place", description="in_place or reprefill")
    spawn_without_cursors: bool = Field(
        default=False, description="true, or false: no aux thread before there is a cursor"
    )

    @property
    def live(self) -> bool:
        """Whether a real server's model decides."""
        return self.decisions == "live"

    @model_validator(mode="after")
    def _output_fits(self) -> SideQuest:
        if not self.live and self.aux_tokens > self.aux_max_new_tokens:
            raise conflict(
                "aux_tokens",
                f"a mean of {self.aux_tokens} does not fit into policy.aux_max_new_tokens {self.aux_max_new_tokens}",
                "raise policy.aux_max_new_tokens, or lower policy.aux_tokens",
            )
        return self


class KeepLast(Part):
    """The last `n` tool responses stay, once the context holds more than `trigger_tokens` (Claude's clear_tool_uses)."""

    name: Literal["keep_last"] = Field(description="keep_last")
    n: Annotated[int, Field(ge=0, le=10**12)] = Field(default=3, description="responses that stay, 0 or more")
    trigger_tokens: Annotated[int, Field(ge=0, le=10**12)] = Field(
        default=0, description="it evicts once more tokens are resident, 0 or more"
    )
    after_eviction: AfterEviction = Field(default="reprefill", description="in_place or reprefill")


class Oracle(Part):
    """Hindsight: each response goes right after its last use. The one policy that may read the future."""

    name: Literal["oracle"] = Field(description="oracle")
    after_eviction: AfterEviction = Field(default="in_place", description="in_place or reprefill")


class Compaction(Part):
    """Beyond `trigger_tokens` the agent writes a summary, which takes the place of all that was read."""

    name: Literal["compaction"] = Field(description="compaction")
    trigger_tokens: Annotated[int, Field(ge=0, le=10**12)] = Field(
        default=32768, description="it compacts once more tokens are resident, 0 or more"
    )
    summary_tokens: Count = Field(default=1000, description="tokens of a summary, at least 1")


class PinTtl(Part):
    """KV of a session stays for `ttl_s` after each turn, whatever the pressure (Continuum)."""

    name: Literal["pin_ttl"] = Field(description="pin_ttl")
    ttl_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        default=10.0, description="seconds after a turn, 0 or more"
    )


class Pause(Part):
    """Agents pause at a boundary where all contexts at work do not fit (ThunderAgent, CONCUR)."""

    name: Literal["pause"] = Field(description="pause")
    above: Positive = Field(
        default=0.9, description="contexts at work over KV capacity, above 0: more pauses one"
    )
    below: Positive = Field(default=0.8, description="the same; at most so much lets one go on again")

    @model_validator(mode="after")
    def _resumes_below(self) -> Pause:
        if self.below > self.above:
            raise conflict(
                "below",
                f"{self.below} is above policy.above {self.above}",
                f"set policy.below to at most {self.above}",
            )
        return self


LOADS: dict[str, type[Part]] = {"concurrency": ClosedLoad, "rate_per_s": RateLoad, "as_recorded": RecordedLoad}
# A policy stands here and, for the type checker, in the union `Policy` below; a test holds the two together.
POLICIES: dict[str, type[Part]] = {
    "none": NoEviction,
    "sidequest": SideQuest,
    "keep_last": KeepLast,
    "oracle": Oracle,
    "compaction": Compaction,
    "pin_ttl": PinTtl,
    "pause": Pause,
}


def _tag_of(variants: dict[str, type[Part]], choose: Callable[[dict[str, Any]], str | None]) -> Discriminator:
    def tag(value: Any) -> str | None:
        if isinstance(value, Part):
            return next((name for name, kind in variants.items() if isinstance(value, kind)), None)
        return choose(value) if isinstance(value, dict) else None

    return Discriminator(tag, custom_error_type="choice", custom_error_message="no choice")


def _load_of(values: dict[str, Any]) -> str | None:
    named = [key for key in LOADS if key in values]
    return named[0] if len(named) == 1 else None


def _policy_of(values: dict[str, Any]) -> str | None:
    name = values.get("name")
    return name if isinstance(name, str) and name in POLICIES else None


Load = Annotated[
    Annotated[ClosedLoad, Tag("concurrency")]
    | Annotated[RateLoad, Tag("rate_per_s")]
    | Annotated[RecordedLoad, Tag("as_recorded")],
    _tag_of(LOADS, _load_of),
]
Policy = Annotated[
    Annotated[NoEviction, Tag("none")]
    | Annotated[SideQuest, Tag("sidequest")]
    | Annotated[KeepLast, Tag("keep_last")]
    | Annotated[Oracle, Tag("oracle")]
    | Annotated[Compaction, Tag("compaction")]
    | Annotated[PinTtl, Tag("pin_ttl")]
    | Annotated[Pause, Tag("pause")],
    _tag_of(POLICIES, _policy_of),
]
