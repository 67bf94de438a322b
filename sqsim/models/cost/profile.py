# SPDX-License-Identifier: Apache-2.0
"""Cost profiles: YAML files that state the cost of a step, with evidence and source for each term.

Each *term* carries its evidence (`measured`, `derived`, `assumed` or `published`), its source, its measured range
and, where it was fitted, the fit's errors on rows that it never saw. Times are seconds; terms called "a layer" are
multiplied by the model's layers of that kind. step_cost.py has the formula that combines the terms. A profile's name
lists its ingredients: model, GPU, attention kernel, MoE kernel, engine.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from sqsim.errors import InputError
from sqsim.models.cost.geometry import Geometry, Weights

# The C loader reads the same YAML ten times faster, where PyYAML was built with it.
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Evidence = Literal["measured", "derived", "assumed", "published"]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
Count = Annotated[FiniteFloat, Field(ge=0)]
Spread = Annotated[FiniteFloat, Field(ge=0, le=2)]


def _rising(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    for (x0, y0), (x1, y1) in pairwise(points):
        if x1 <= x0 or y1 < y0:
            raise ValueError(f"points must rise: [{x1:g}, {y1:g}] follows [{x0:g}, {y0:g}]")
    return points


Points = Annotated[list[tuple[Count, Seconds]], Field(min_length=1), AfterValidator(_rising)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fit(_Strict):
    """The fit of a term, with its relative errors: |predicted / measured - 1|."""

    rows: int
    mean_abs_error: FiniteFloat
    held_out_rows: int
    held_out_mean_abs_error: FiniteFloat | None
    held_out_max_abs_error: FiniteFloat | None
    # paths of the fitted numbers in the profile (`decode_full.points.1`); None where the term is a table of measurements
    names: list[str] | None = None
    covariance: list[list[FiniteFloat]] | None = None

    @model_validator(mode="after")
    def _square(self) -> Self:
        if (self.names is None) != (self.covariance is None):
            raise ValueError("names and covariance belong together: give both or neither")
        if self.names is not None and self.covariance is not None:
            sizes = {len(self.covariance), *map(len, self.covariance)}
            if sizes != {len(self.names)}:
                raise ValueError(f"covariance must be {len(self.names)} x {len(self.names)}, as many as names")
            if any(self.covariance[at][at] < 0 for at in range(len(self.names))):
                raise ValueError("covariance has a negative variance")
        return self


class Term(_Strict):
    """Base of every term: its evidence, source and fit. `ranges`: quantity -> smallest and largest value measured."""

    evidence: Evidence
    source: str
    ranges: dict[str, tuple[float, float]] = {}
    # relative standard deviation of a factor on the whole term; None: uncertainty.py declares one by the evidence
    spread: Spread | None = None
    fit: Fit | None = None


class StepTerm(Term):
    """The cost of any step, whatever its work: host, launches, small kernels (norms, rotary, sampling)."""

    fixed_s: Annotated[FiniteFloat, Field(gt=0)]
    per_layer_s: Seconds


class CurveTerm(Term):
    """A piecewise linear curve through (tokens, seconds): constant before the first point, extended after the last."""

    points: Points


class DecodeTerm(Term):
    """Decode attention of a layer: a curve over requests, and seconds a token of context read."""

    points: Points
    per_token_s: Seconds
    # (requests, context each): the largest context measured with at least that many requests, by requests
    frontier: list[tuple[Count, Count]] = []


class PrefillTerm(Term):
    """Prefill attention of a layer, by requests, new tokens, pairs of a new token and one it attends to, and waves.

    A kernel computes tiles of `tile_tokens` new tokens of one request and KV head; the GPU takes `tiles_at_once` of them, counted
    over the KV heads, at a time. Each wave after the first costs `per_wave_s`.
    """

    fixed_s: Seconds
    per_request_s: Seconds
    per_token_s: Seconds
    per_pair_s: Seconds
    per_wave_s: Seconds = 0.0
    tile_tokens: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    tiles_at_once: Annotated[FiniteFloat, Field(gt=0)] = 1.0


class PrefixTerm(Term):
    """Reading the KV of the tokens before a prefill: seconds a token a full-attention layer."""

    per_token_s: Seconds


class EightBitKv(_Strict):
    """The terms of attention, measured with 8-bit KV, that replace the profile's own."""

    decode_full: DecodeTerm
    decode_sliding: DecodeTerm | None = None
    prefill_full: PrefillTerm
    prefill_sliding: PrefillTerm | None = None
    prefix_read: PrefixTerm


class ClientTerm(Term):
    """The time between an agent and the scheduler: HTTP, tokenizer and detokenizer processes, the agent's own loop."""

    request_s: Seconds  # from the submission until the scheduler can queue it
    response_s: Seconds  # from a step's result until the agent has it


class Profile(_Strict):
    """One cost profile. `auto`: the reason why it is the default of its model and GPU; None: it is not."""

    schema_: Literal["sqsim-profile/1"] = Field(alias="schema")
    name: str
    model: str
    gpu: str
    engine: str
    version: str
    weights: Weights
    kv_dtype: str
    note: str
    auto: str | None = None
    shown_by: str | None = (
        None  # the line by which a running server shows that it runs this, not an alternative
    )
    spread: Spread = 0.0  # relative standard deviation of a factor on all step times of a run

    step: StepTerm
    dense: CurveTerm  # a layer's projections (and dense MLP), by tokens in the step
    moe: CurveTerm | None = None  # a layer's experts, by tokens in the step
    lm_head: CurveTerm  # the output projection, by requests that get a token
    decode_full: DecodeTerm
    decode_sliding: DecodeTerm | None = None
    prefill_full: PrefillTerm
    prefill_sliding: PrefillTerm | None = None
    prefix_read: PrefixTerm
    client: ClientTerm | None = None  # None: both ways take no time
    eight_bit_kv: EightBitKv | None = None  # None: 8-bit KV was not measured

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.decode_sliding is None) != (self.prefill_sliding is None):
            raise ValueError("decode_sliding and prefill_sliding belong together: give both or neither")
        for term in self.terms().values():
            for path in (term.fit.names if term.fit else None) or ():
                if not self._has(path):
                    raise ValueError(f"fit.names: {path!r} is no number of this profile, such as step.fixed_s")
        return self

    def _has(self, path: str) -> bool:
        """Whether a path names seconds of this profile: `decode_full.per_token_s`, `decode_full.points.1`."""
        name, _, key = path.partition(".")
        value = getattr(self.terms().get(name), key.split(".")[0], None)
        if isinstance(value, list):
            return key in {f"points.{at}" for at in range(len(value))}
        return key.endswith("_s") and isinstance(value, float)

    def terms(self) -> dict[str, Term]:
        """Return this profile's terms by name, in the order of the formula."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in values if isinstance(value, Term)}

    def with_kv(self, dtype: str) -> Profile:
        """Return the profile as measured with this KV dtype; the same profile where there is no such measurement."""
        if dtype == self.kv_dtype or not dtype.startswith("fp8") or self.eight_bit_kv is None:
            return self
        terms = {name: getattr(self.eight_bit_kv, name) for name in type(self.eight_bit_kv).model_fields}
        return self.model_copy(update={**terms, "kv_dtype": dtype, "eight_bit_kv": None})

    def evidence(self) -> dict[str, str]:
        """Map each term to its evidence, for the header of a report."""
        return {name: term.evidence for name, term in self.terms().items()}

    def require(self, geometry: Geometry, place: str) -> None:
        """Raise an InputError unless the profile has exactly the terms that this model needs."""
        for names, needed in (
            (("moe",), geometry.experts > 0),
            (("decode_sliding", "prefill_sliding"), geometry.sliding_layers > 0),
        ):
            for name in names:
                if (name in self.terms()) != needed:
                    raise InputError(
                        f"{place}: {name}: {'missing' if needed else 'given'}, but {geometry.name} has "
                        f"{geometry.experts} experts and {geometry.sliding_layers} sliding layers; "
                        f"{'add' if needed else 'remove'} it"
                    )


def read_profile(text: str, place: str) -> Profile:
    """Read a profile from YAML text. InputError: the text is wrong; the message names the place and the key."""
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - both choices are safe loaders
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'profile'}: {problem['msg']}, got {problem['input']!r:.80}"
            for problem in error.errors()
        )
        raise InputError(f"{place}: {problems}") from error


def load_profile(path: Path) -> Profile:
    """Load a user's own profile file."""
    known = f"known profiles: {', '.join(each.name for each in shipped_profiles())}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"profile {path}: cannot be read: {error.strerror}; {known}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"profile {path}: not UTF-8 text ({error.reason}); {known}") from error
    return read_profile(text, str(path))


@cache
def shipped_profiles(model: str = "", gpu: str = "") -> tuple[Profile, ...]:
    """Read the profiles that come with sqsim, sorted by name; only those of one model and GPU where both are given.

    A profile's file has the profile's name, which begins with its model and GPU.
    """
    prefix = f"{model}-{gpu}-" if model else ""
    folder = resources.files("sqsim.models.cost.profiles")
    files = sorted(
        (each for each in folder.iterdir() if each.name.endswith(".yaml")), key=lambda each: each.name
    )
    return tuple(
        read_profile(each.read_text("utf-8"), each.name) for each in files if each.name.startswith(prefix)
    )


def alternatives(profile: Profile) -> tuple[Profile, ...]:
    """Return the other shipped profiles of a model and GPU: what a server may run instead, by version and flags."""
    return tuple(each for each in shipped_profiles(profile.model, profile.gpu) if each.name != profile.name)


def profile_text(profile: Profile, made_by: str) -> str:
    """Write a profile as YAML for `read_profile`; `made_by` is the command that made it."""
    data = profile.model_dump(by_alias=True, mode="json", exclude_none=True, exclude_defaults=True)
    head = f"# Made by {made_by}. Seconds and tokens; `dense` to `prefix_read`: a layer.\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)
