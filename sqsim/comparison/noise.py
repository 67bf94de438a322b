# SPDX-License-Identifier: Apache-2.0
"""The noise floor: a simulated number's distance from measured ones, compared with the spread of the measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqsim.record.metrics import Value

WITHIN_PERCENT, WITHIN_SD = 5.0, 2.0
RULE = f"max({WITHIN_PERCENT:g} %, {WITHIN_SD:g} sd)"
"""The tolerance of a simulated number around the mean of the measured ones: the larger of the two."""
_ROUNDING = 1e-9
"""Below this share of the mean a spread is only rounding."""


@dataclass(frozen=True, slots=True)
class Held:
    """One number, measured in each repeat and simulated. None: undefined."""

    measured: list[float | None]
    mean: float | None  # of the measured values
    sd: float | None  # standard deviation (n - 1) of the measured values; None with fewer than two
    simulated: float | None
    error_percent: float | None  # signed, in percent of the mean
    error_sd: float | None  # signed, in standard deviations; None without a spread
    within: bool | None  # RULE is kept; None where one measurement leaves that open, or a number is missing


def hold(measured: Sequence[Value], simulated: Value) -> Held:
    """Compare a simulated number with its repeated measurements."""
    values = [_number(value) for value in measured]
    known = [value for value in values if value is not None]
    ours = _number(simulated)
    mean = float(np.mean(known)) if known else None
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    if mean is None or ours is None:
        return Held(values, mean, sd, ours, None, None, None)
    error = ours - mean
    close = abs(error) <= abs(mean) * WITHIN_PERCENT / 100
    return Held(
        measured=values,
        mean=mean,
        sd=sd,
        simulated=ours,
        error_percent=0.0 if not error else 100 * error / abs(mean) if mean else None,
        error_sd=error / sd if sd is not None and sd > _ROUNDING * abs(mean) else None,
        # With one measurement the spread is unknown, and it may be larger than the error.
        within=close or (None if sd is None else abs(error) <= WITHIN_SD * sd),
    )


def floor(runs: int) -> str:
    """Describe how many runs the noise floor rests on."""
    return "unknown: one run" if runs == 1 else f"standard deviation (n - 1) of {runs} runs"


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
