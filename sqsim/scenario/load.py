# SPDX-License-Identifier: Apache-2.0
"""A scenario's load: when its tasks start. SPEC.md is the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer, model_validator

from sqsim.base.part import Count, Part, Positive, conflict


class ClosedLoad(Part):
    """`concurrency` tasks at once: the next one starts when one ends. Sub-agents do not count."""

    concurrency: Count = Field(default=24, description="tasks at once, a whole number of at least 1")


class RateLoad(Part):
    """Tasks arrive whether or not others ended. `uniform`: every 1 / rate_per_s seconds.

    `bursts`: `burst` tasks at one instant, the bursts as a Poisson stream. `daily`: a Poisson stream whose rate swings
    around its mean as a cosine, lowest at 0 s. The mean is always `rate_per_s`.
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
        """Leave out keys that have no effect on this kind of arrivals."""
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
