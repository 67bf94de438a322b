# SPDX-License-Identifier: Apache-2.0
"""Errors by KV pressure: turns are binned by the measured KV usage at their submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqsim.comparison.experiment import Run
from sqsim.comparison.kv_usage import usage
from sqsim.record.columns import Floats, floats
from sqsim.record.schema import RunRecord

EDGES = (0.5, 0.8, 0.95)
"""Edges between bins, in shares of capacity."""
TIMES = ("ttft", "e2e", "tpot")
"""Times of a turn: submission to first token, submission to end, and (end - first token) / (tokens - 1)."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed errors of one time over the turns of a bin, 100 x (simulated / measured - 1); None without a turn."""

    turns: int
    median_percent: float | None
    p25_percent: float | None
    p75_percent: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Turns submitted at a usage of at least `low` and below `high`, in shares; `all`: at any usage."""

    name: str
    low: float | None
    high: float | None
    ttft: Errors
    e2e: Errors
    tpot: Errors


def by_pressure(real: Sequence[Run], simulated: Run) -> list[Bin]:
    """Compute the errors of all turns, then by bin where the usage of every measured run is known.

    A turn's measured usage and times are means over the repeats; turns missing in a run are left out.
    """
    times = [_times(run.record) for run in (*real, simulated)]
    keys = sorted(set.intersection(*(set(found) for found in times)))
    columns = len(TIMES) + 1
    if not keys:
        return [_bin("all", None, None, np.empty((0, len(TIMES))))]
    table = np.array([[found[key] for key in keys] for found in times]).reshape(len(times), len(keys), columns)
    measured, ours = table[:-1].mean(axis=0), table[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = 100 * (ours[:, 1:] / measured[:, 1:] - 1)
    used = measured[:, 0]
    bins = [_bin("all", None, None, errors)]
    if not np.isnan(used).any():
        for low, high in zip((0.0, *EDGES), (*EDGES, None), strict=True):
            inside = (used >= low) & (used < (np.inf if high is None else high))
            bins.append(_bin(_name(low, high), low, high, errors[inside]))
    return bins


def _name(low: float, high: float | None) -> str:
    if high is None:
        return f"from {100 * low:.0f} %"
    return f"below {100 * high:.0f} %" if not low else f"{100 * low:.0f} to {100 * high:.0f} %"


def _times(record: RunRecord) -> dict[tuple[str, int], tuple[float, ...]]:
    """Return, by task and turn, the usage at submission and then TIMES; nan where unknown."""
    turns = record.turns
    submit, first, end, tokens = (
        floats(turns, name) for name in ("submit_s", "first_token_s", "end_s", "output_tokens")
    )
    curve = usage(record)
    start = float(floats(record.tasks, "start_s").min()) if record.tasks.num_rows else 0.0
    used = np.full(submit.size, np.nan) if curve is None else curve.at(submit - start)
    tpot = np.divide(end - first, tokens - 1, out=np.full_like(end, np.nan), where=tokens > 1)
    keys = zip(turns["task"].to_pylist(), turns["turn"].to_pylist(), strict=True)
    return dict(zip(keys, zip(used, first - submit, end - submit, tpot, strict=True), strict=True))


def _bin(name: str, low: float | None, high: float | None, errors: Floats) -> Bin:
    return Bin(name, low, high, *(_errors(errors[:, column]) for column in range(len(TIMES))))


def _errors(values: Floats) -> Errors:
    known = values[np.isfinite(values)]
    if not known.size:
        return Errors(0, None, None, None)
    p25, median, p75 = (float(value) for value in np.percentile(known, (25, 50, 75)))
    return Errors(int(known.size), median, p25, p75)
