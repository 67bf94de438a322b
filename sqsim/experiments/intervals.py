# SPDX-License-Identifier: Apache-2.0
"""Intervals: a 90 % interval for every metric of a run, and the two sources of its width.

Draw i samples a cost profile from its stated uncertainty (models/cost/uncertainty.py) and runs the scenario under another
seed, which also changes what the scenario draws (tasks, arrivals, decisions). A run under the true profile is one more
such draw, if the profile's stated uncertainty is right. So the interval between the m-th smallest and m-th largest of
20 m - 1 draws contains it with a chance of exactly 90 %.

Each profile is run under two seeds. By the law of total variance, the covariance of such a pair is the variance due to
the profile, and half the mean squared difference of a pair is the variance due to sampling.

A server runs one of several kernels, by version and flags, and no interval averages over that choice: where the scenario leaves
the profile to sqsim (`auto`), the metrics under each alternative stand beside the intervals, with the line by which a server
shows what it runs.

The interval does not cover values that the scenario fixes or assumes (recall, KV capacity, the tasks of a file), the
simulated scheduler, and any step beyond the measured ranges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from sqsim.base.random_streams import uniform
from sqsim.base.strict_json import no_constant
from sqsim.base.workers import Progress, Workers
from sqsim.errors import InputError, RecordError, RunError, SqsimError
from sqsim.models.cost.profile import Profile, alternatives
from sqsim.models.cost.uncertainty import describe_uncertainty, sample_profile
from sqsim.record.metrics import Value, metrics
from sqsim.scenario.load import RateLoad
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.simulate import simulate

CONFIDENCE = 0.9
DRAWS = 39
FILE = "bands.json"


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric's 90 % interval in the metric's unit, with the standard deviations due to the profile and to sampling.

    `value` is the metric of the scenario itself; it need not be the middle.
    """

    value: float
    low: float
    high: float
    parameter_sd: float
    sampling_sd: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A run of the scenario under another kernel: `shown_by` is the server's log line; `error`, why it cannot run."""

    shown_by: str
    metrics: dict[str, float]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of every metric that is a number in every draw, in the order of `metrics`."""

    bands: dict[str, Interval]  # the key of bands.json
    draws: dict[str, list[float]]
    """Metric -> its value in each draw. Two scenarios with one seed and profile share the random numbers of draw i."""
    doubts: dict[str, str]
    """Term of the profile -> the uncertainty that was drawn from."""
    sampled: list[str]
    """Key paths of the values that the scenario draws; empty: another seed changes nothing."""
    confidence: float = CONFIDENCE
    alternatives: dict[str, Alternative] = field(default_factory=dict)
    """Profile that the server may run instead -> the metrics under it."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON objects, lists and numbers."""
        return asdict(self)


def intervals(
    scenario: Scenario,
    *,
    draws: int = DRAWS,
    jobs: int = 1,
    progress: Progress | None = None,
    value: Mapping[str, Value] | None = None,
) -> Intervals:
    """Run a scenario on `draws` sampled profiles, twice where the scenario draws values itself; `jobs` runs at a time.

    `value`: the scenario's metrics, if known; otherwise they cost one more run. The same scenario gives the same intervals
    for any `jobs`. InputError: the scenario cannot be run, or `draws` is not one less than a multiple of 20.
    """
    rank = check_draws(draws)
    profile = Resolved.of(scenario).profile
    sampled = _sampled(scenario)
    work = [(index, twin) for twin in range(2 if sampled else 1) for index in range(draws)]
    found: list[dict[str, float]] = [{}] * len(work)
    for place, result in Workers(jobs).each(partial(_run, scenario, profile), work, progress):
        if isinstance(result, SqsimError):
            raise result
        found[place] = result
    as_it_stands = _numbers(metrics(simulate(scenario)) if value is None else value)
    firsts, twins = found[:draws], found[draws:] or found
    keys = [key for key in as_it_stands if all(key in run for run in found)]
    return Intervals(
        {
            key: _interval(as_it_stands[key], [run[key] for run in firsts], [run[key] for run in twins], rank)
            for key in keys
        },
        {key: [run[key] for run in firsts] for key in keys},
        describe_uncertainty(profile),
        sampled,
        alternatives=_under_alternatives(scenario, profile),
    )


def _under_alternatives(scenario: Scenario, profile: Profile) -> dict[str, Alternative]:
    """Run the scenario once under each other kernel that a server may choose; nothing where the scenario names its own."""
    found = {}
    for other in alternatives(profile) if scenario.profile == "auto" else ():
        shown = other.shown_by or other.note
        try:
            record = simulate(scenario.with_({"engine.profile": other.name}))
            found[other.name] = Alternative(shown, _numbers(metrics(record)))
        except SqsimError as error:
            found[other.name] = Alternative(shown, {}, str(error))
    return found


def check_draws(draws: int) -> int:
    """Return the rank from either end that leaves exactly 90 % of the draws between; InputError where there is none."""
    rank, rest = divmod(draws + 1, 20)
    if rest or not rank:
        raise InputError(
            f"bands: {draws} draws give no interval of exactly 90 %; "
            f"choose one less than a multiple of 20: {max(19, 20 * rank - 1)} or {20 * max(1, rank) + 19}"
        )
    return rank


def write_intervals(directory: Path, found: Intervals) -> None:
    """Write `bands.json` into a record's directory. RunError: it cannot be written."""
    path = directory / FILE
    try:
        path.write_text(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; free some space") from error


def read_intervals(directory: Path) -> Intervals | None:
    """Read the intervals of a record; None where it has none. RecordError: the file is damaged."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes(), parse_constant=no_constant)
        bands = {key: Interval(**band) for key, band in data["bands"].items()}
        others = {name: Alternative(**each) for name, each in data.get("alternatives", {}).items()}
        return Intervals(**{**data, "bands": bands, "alternatives": others})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); run the scenario again with --bands") from error


def change_percent(base: Intervals, other: Intervals) -> dict[str, Interval]:
    """Compute the signed change of each metric from `base` in percent, draw by draw, so that shared randomness cancels out.

    The two sources are not separated: `sampling_sd` is 0 and `parameter_sd` holds both. InputError: the numbers of draws
    differ.
    """
    found = {}
    for key in (key for key in base.bands if key in other.bands):
        before, after = base.draws[key], other.draws[key]
        if len(before) != len(after):
            raise InputError(
                f"bands: {len(before)} and {len(after)} draws cannot be paired; use one number for both"
            )
        if not base.bands[key].value or not all(before):
            continue
        changes = [100.0 * (new / old - 1.0) for old, new in zip(before, after, strict=True)]
        value = 100.0 * (other.bands[key].value / base.bands[key].value - 1.0)
        found[key] = _interval(value, changes, changes, (len(changes) + 1) // 20)
    return found


def _sampled(scenario: Scenario) -> list[str]:
    """List the key paths of values that the scenario's seed decides."""
    load, policy = scenario.load, scenario.policy
    drawn_keys = {
        "resample": scenario.resample,
        "load.arrivals": isinstance(load, RateLoad) and load.arrivals != "uniform",
        "policy.decisions": policy.overrides("scripted"),
    }
    return [key for key, is_drawn in drawn_keys.items() if is_drawn]


def _run(scenario: Scenario, profile: Profile, draw: tuple[int, int]) -> dict[str, float]:
    index, twin = draw
    seed = int(uniform(scenario.seed, "bands.seed", index, twin) * 2**62)
    other = scenario.model_copy(update={"seed": seed})
    return _numbers(metrics(simulate(other, profile=sample_profile(profile, scenario.seed, index))))


def _numbers(found: Mapping[str, Value]) -> dict[str, float]:
    """Keep the metrics that are numbers and belong to the run itself."""
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "wall_s"
    }


def _interval(value: float, first: Sequence[float], twin: Sequence[float], rank: int) -> Interval:
    ordered = sorted(first)
    mean, other = fmean(first), fmean(twin)
    between = sum((a - mean) * (b - other) for a, b in zip(first, twin, strict=True)) / (len(first) - 1)
    within = fmean((a - b) ** 2 for a, b in zip(first, twin, strict=True)) / 2
    return Interval(value, ordered[rank - 1], ordered[-rank], sqrt(max(0.0, between)), sqrt(within))
