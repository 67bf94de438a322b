# SPDX-License-Identifier: Apache-2.0
"""The SLO of a plan: bounds on metrics, such as `ttft_s_p99<2`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqsim.errors import InputError
from sqsim.record.definitions import DEFINITIONS

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*(\S+)\s*")

MEMORY_FAILURES = ("failed_kv_capacity", "failed_out_of_memory")
"""Metrics that count tasks failed by lack of memory; a setting with such failures does not serve, at any latency."""


@dataclass(frozen=True, slots=True)
class Slo:
    """One bound on a metric: its name, the sign of the comparison, and the bound in the metric's unit."""

    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"

    @property
    def upper(self) -> bool:
        """Whether it is an upper bound."""
        return self.sign in {"<", "<="}

    def holds(self, value: float | None) -> bool:
        """Tell whether a value keeps the bound; an undefined value (nothing completed) does not."""
        return value is not None and _OPERATORS[self.sign](value, self.bound)


def parse_slo(text: str) -> Slo:
    """Read one `--slo` option. InputError names the fault and the known metrics."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(f"--slo {text!r}: is no bound on a metric; write METRIC<NUMBER, such as ttft_s_p99<2")
    metric, sign, number = found.groups()
    if metric not in DEFINITIONS:
        known = ", ".join(name for name, each in DEFINITIONS.items() if each.unit)
        raise InputError(f"--slo {text!r}: there is no metric {metric!r}; there are {known}")
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise InputError(f"--slo {text!r}: {number!r} is no number; write METRIC<NUMBER")
    slo = Slo(metric, sign, bound)
    if slo.upper and not slo.holds(0.0):
        raise InputError(
            f"--slo {text!r}: no run keeps it, since {metric} is never below 0; raise the bound, or write METRIC>NUMBER"
        )
    return slo


def broken(slos: tuple[Slo, ...], found: Mapping[str, Any]) -> list[str]:
    """List the bounds that a run's metrics break, and its failures by lack of memory; empty where it serves."""
    lost = [name for name in MEMORY_FAILURES if found.get(name)]
    return [str(slo) for slo in slos if not slo.holds(found.get(slo.metric))] + lost
