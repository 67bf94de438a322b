"""How sure a simulated number is: an interval for every metric, and where its width comes from.

Draw i runs the scenario on the cost profile as it might as well be (models/cost/uncertainty.py) and under a seed of its own, so
what the scenario draws (tasks, arrivals, decisions) is drawn anew too. A run under the true profile would be one more
such draw, as far as the profile's doubts are right. So the interval between the m-th smallest and m-th largest of
20 m - 1 draws holds it with a chance of exactly 90 %.

Each profile is run under two seeds. By the law of total variance, the covariance of such a pair is the part of the
profile, and half the mean squared difference of a pair is the part of the sampling.

What is not in the interval: what a scenario states (recall, KV capacity, the tasks of a file), the simulated
scheduler, and any step beyond the measured ranges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from sqsim.base.random_streams import uniform
from sqsim.base.strict_json import no_constant
from sqsim.base.workers import Progress, Workers
from sqsim.errors import InputError, RecordError, RunError, SqsimError
from sqsim.models.cost.profile import Profile
from sqsim.models.cost.uncertainty import drawn, in_doubt
from sqsim.record.metrics import Value, metrics
from sqsim.scenario.load import RateLoad
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.simulate import simulate

CONFIDENCE = 0.9
DRAWS = 39
FILE = "bands.json"


@dataclass(frozen=True, slots=True)
class Band:
    """A metric with its 90 % interval, in its own unit; the two standard deviations are the parts of the doubt.

    `value` is that of the scenario as it stands, which need not be the middle.
    """

    value: float
    low: float
    high: float
    parameter_sd: float
    sampling_sd: float


@dataclass(frozen=True, slots=True)
class Bands:
    """Every metric that is a number in every draw, in the order of `metrics`."""

    bands: dict[str, Band]
    draws: dict[str, list[float]]
    """Metric -> its value in each draw. Draw i of two scenarios with one seed and profile shares its luck."""
    doubts: dict[str, str]
    """Term of the profile -> what was drawn of it."""
    sampled: list[str]
    """Key paths of what the scenario draws; empty: another seed changes nothing."""
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON objects, lists and numbers."""
        return asdict(self)


def bands(
    scenario: Scenario,
    *,
    draws: int = DRAWS,
    jobs: int = 1,
    progress: Progress | None = None,
    value: Mapping[str, Value] | None = None,
) -> Bands:
    """Run a scenario `draws` times, twice where it draws anything itself; `jobs` at a time.

    `value`: its metrics as it stands, where they are known; they cost a run. The same scenario gives the same bands,
    whatever `jobs`. InputError: the scenario cannot be run, or `draws` is not one less than a multiple of 20.
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
    return Bands(
        {
            key: _band(as_it_stands[key], [run[key] for run in firsts], [run[key] for run in twins], rank)
            for key in keys
        },
        {key: [run[key] for run in firsts] for key in keys},
        in_doubt(profile),
        sampled,
    )


def check_draws(draws: int) -> int:
    """The rank from either end at which so many draws leave 90 % between; InputError where none does so exactly."""
    rank, rest = divmod(draws + 1, 20)
    if rest or not rank:
        raise InputError(
            f"bands: {draws} draws give no interval of exactly 90 %; "
            f"choose one less than a multiple of 20: {max(19, 20 * rank - 1)} or {20 * max(1, rank) + 19}"
        )
    return rank


def write_bands(directory: Path, found: Bands) -> None:
    """Write `bands.json` beside a record. RunError: it cannot be written."""
    path = directory / FILE
    try:
        path.write_text(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; free some space") from error


def read_bands(directory: Path) -> Bands | None:
    """The bands beside a record; None where it has none. RecordError: the file is damaged."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes(), parse_constant=no_constant)
        return Bands(**{**data, "bands": {key: Band(**band) for key, band in data["bands"].items()}})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); run the scenario again with --bands") from error


def change_percent(base: Bands, other: Bands) -> dict[str, Band]:
    """Signed change of each metric against `base` in per cent, draw by draw, so that shared luck cancels out.

    Its parts are not told apart: `sampling_sd` is 0 and `parameter_sd` holds both. InputError: other numbers of draws.
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
        found[key] = _band(value, changes, changes, (len(changes) + 1) // 20)
    return found


def _sampled(scenario: Scenario) -> list[str]:
    """What the scenario's seed decides."""
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
    return _numbers(metrics(simulate(other, profile=drawn(profile, scenario.seed, index))))


def _numbers(found: Mapping[str, Value]) -> dict[str, float]:
    """The metrics that are numbers of the run itself."""
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "wall_s"
    }


def _band(value: float, first: Sequence[float], twin: Sequence[float], rank: int) -> Band:
    ordered = sorted(first)
    mean, other = fmean(first), fmean(twin)
    between = sum((a - mean) * (b - other) for a, b in zip(first, twin, strict=True)) / (len(first) - 1)
    within = fmean((a - b) ** 2 for a, b in zip(first, twin, strict=True)) / 2
    return Band(value, ordered[rank - 1], ordered[-rank], sqrt(max(0.0, between)), sqrt(within))
