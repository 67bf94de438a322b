# SPDX-License-Identifier: Apache-2.0
"""Confidence in a number of replicas: the share of draws that keep the SLO, under other seeds and cost profiles.

As in intervals.py, a draw has another seed, which decides the tasks drawn, arrivals and decisions, and a cost profile
sampled from its stated uncertainty (models/cost/uncertainty.py). The first draw is the scenario itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from sqsim.experiments.plan.slo import Slo, broken
from sqsim.experiments.points import Draw, Found, Item
from sqsim.scenario.scenario import Scenario

SOURCE = (
    "draws of tasks, arrivals, decisions and of the cost profile within its doubt; what the scenario states "
    "(recall, KV capacity) and the simulated scheduler are taken as they are"
)
LEVEL = 0.95


class Confidence(NamedTuple):
    """The result of several draws of one setting at one load.

    `kept`: draws that kept the SLO, of `draws`. `limits`: for each bound the value that the next draw stays within with a
    chance of 95 % (one-sided Student prediction limit; None from a single draw, or where a value is undefined). `sure`:
    every draw and all those limits keep the SLO.
    """

    draws: int
    kept: int
    limits: dict[str, float | None]
    sure: bool

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def draws(scenario: Scenario, number: int) -> list[Item]:
    """List the scenario itself and draws of it under other seeds and profiles, which are the same for all settings."""
    seed = scenario.seed
    others = [scenario.model_copy(update={"seed": seed + place}) for place in range(1, number)]
    return [scenario, *(Draw(each, seed, place) for place, each in enumerate(others, 1))]


def confidence(found: Sequence[Found], slos: Sequence[Slo]) -> Confidence:
    """Compute the confidence that draws of one setting give in an SLO."""
    every = [each["metrics"] for each in found]
    limits = {str(slo): _limit([each.get(slo.metric) for each in every], slo) for slo in slos}
    kept = sum(not broken(tuple(slos), each) for each in every)
    sure = kept == len(every) and all(slo.holds(limits[str(slo)]) for slo in slos)
    return Confidence(len(every), kept, limits, sure)


def _limit(values: Sequence[float | None], slo: Slo) -> float | None:
    from scipy.special import stdtrit  # noqa: PLC0415 - the other commands do without scipy

    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return None
    reach = float(stdtrit(len(known) - 1, LEVEL)) * stdev(known) * (1 + 1 / len(known)) ** 0.5
    return float(fmean(known) + (reach if slo.upper else -reach))
