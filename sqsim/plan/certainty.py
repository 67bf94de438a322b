"""How sure a number of replicas is: the same setting under other luck (seeds), and where that leaves the SLO.

A seed decides which tasks are drawn, when they arrive and what aux threads name. What no seed moves, the cost profile's
own error, is not in these intervals; `draws` is the one place that says which scenarios stand for the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from sqsim.plan.slo import Slo, broken
from sqsim.points import Found
from sqsim.scenario import Scenario

SOURCE = "seeds: tasks drawn, arrivals, decisions; the cost profile's own error is not in it"
LEVEL = 0.95


class Certainty(NamedTuple):
    """What several draws of one setting at one load gave.

    `kept`: draws that kept the SLO, of `draws`. `limits`: for each bound the value that the next draw stays within with
    95 % (one-sided Student prediction limit; None from a single draw, or where a value is undefined). `sure`: whether
    all those limits keep the SLO.
    """

    draws: int
    kept: int
    limits: dict[str, float | None]
    sure: bool

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def draws(scenario: Scenario, number: int) -> list[Scenario]:
    """The scenario itself, and the same under other seeds."""
    return [scenario.model_copy(update={"seed": scenario.seed + place}) for place in range(number)]


def certainty(found: Sequence[Found], slos: Sequence[Slo]) -> Certainty:
    """What the draws say of an SLO."""
    every = [each["metrics"] for each in found]
    limits = {str(slo): _limit([each.get(slo.metric) for each in every], slo) for slo in slos}
    kept = sum(not broken(tuple(slos), each) for each in every)
    sure = kept == len(every) and all(slo.holds(limits[str(slo)]) for slo in slos)
    return Certainty(len(every), kept, limits, sure)


def _limit(values: Sequence[float | None], slo: Slo) -> float | None:
    from scipy.special import stdtrit  # noqa: PLC0415 - the other commands do without scipy

    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return None
    reach = float(stdtrit(len(known) - 1, LEVEL)) * stdev(known) * (1 + 1 / len(known)) ** 0.5
    return float(fmean(known) + (reach if slo.upper else -reach))
