# SPDX-License-Identifier: Apache-2.0
"""KV usage over time, (capacity - free - evictable) / capacity, as a curve, and the distance between two curves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sqsim.comparison.experiment import Run
from sqsim.record.columns import Floats, floats
from sqsim.record.schema import RunRecord

PIECES = 200
"""Number of equal pieces of the run in a curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's usage curve: the mean share of capacity in each of `PIECES` equal pieces of the run."""

    run: str
    real: bool
    run_time_s: float
    usage: list[float]


@dataclass(frozen=True, slots=True)
class Distances:
    """The mean absolute distance of two curves, in % of capacity.

    `normalised`: over each run's time divided by its run time; `absolute`: over seconds, where a run that has ended uses 0.
    """

    normalised: float
    absolute: float


@dataclass(frozen=True, slots=True)
class KvUsage:
    """The curves, the simulated one last, and its distance from each measured one."""

    curves: list[Curve]
    distances: list[Distances]  # by measured run
    mean: Distances
    between_measured: Distances | None  # mean over all pairs of them; None with one


@dataclass(frozen=True, slots=True)
class Usage:
    """A run's usage over time: constant within an engine row, 0 outside. Times are seconds since the first arrival."""

    begin_s: Floats  # of the rows, ascending
    end_s: Floats
    share: Floats  # of capacity
    run_time_s: float

    def at(self, times_s: Floats) -> Floats:
        """Return the usage at these times; at an edge it is that of the row that begins there."""
        row = np.searchsorted(self.begin_s, times_s, "right") - 1
        inside = (row >= 0) & (times_s <= self.end_s[row])
        return np.where(inside, self.share[row], 0.0)

    def integral(self, times_s: Floats) -> Floats:
        """Return share x seconds from the start of the run to these times."""
        lasted = self.end_s - self.begin_s
        total = np.cumsum(lasted * self.share)
        knots = np.column_stack((self.begin_s, self.end_s)).ravel()
        risen = np.column_stack((total - lasted * self.share, total)).ravel()
        return np.interp(times_s, knots, risen)

    @property
    def edges_s(self) -> Floats:
        """Times at which the usage may change, in seconds."""
        return np.concatenate(([0.0], self.begin_s, self.end_s, [self.run_time_s]))


def usage(record: RunRecord) -> Usage | None:
    """Compute the usage of a run; None without an engine table or a capacity, or where the run took no time."""
    capacity = record.run.get("kv_capacity", {}).get("tokens")
    if not capacity or not record.engine.num_rows or not record.tasks.num_rows:
        return None
    start = float(floats(record.tasks, "start_s").min())
    run_time = float(floats(record.tasks, "end_s").max()) - start
    if run_time <= 0:
        return None
    t0, t1 = (np.clip(floats(record.engine, name) - start, 0.0, run_time) for name in ("t0_s", "t1_s"))
    order = np.argsort(t0, kind="stable")
    return Usage(t0[order], t1[order], floats(record.engine, "kv_used_mean")[order] / capacity, run_time)


def kv_usage(real: list[Run], simulated: Run) -> KvUsage | None:
    """Compare the simulated curve with the measured ones; None where one of them is not known."""
    runs = [*real, simulated]
    found = [curve for run in runs if (curve := usage(run.record)) is not None]
    if len(found) < len(runs):
        return None
    *measured, ours = found
    distances = [_distance(curve, ours) for curve in measured]
    pairs = [_distance(one, other) for one, other in combinations(measured, 2)]
    return KvUsage(
        curves=[_curve(run, curve) for run, curve in zip(runs, found, strict=True)],
        distances=distances,
        mean=_mean(distances),
        between_measured=_mean(pairs) if pairs else None,
    )


def _curve(run: Run, curve: Usage) -> Curve:
    edges = np.linspace(0.0, curve.run_time_s, PIECES + 1)
    means = np.diff(curve.integral(edges)) / np.diff(edges)
    return Curve(run.name, run.is_real, curve.run_time_s, [float(value) for value in means])


def _distance(one: Usage, other: Usage) -> Distances:
    longest = max(one.run_time_s, other.run_time_s)
    absolute = np.concatenate((one.edges_s, other.edges_s))
    normalised = np.concatenate((one.edges_s / one.run_time_s, other.edges_s / other.run_time_s))
    return Distances(
        normalised=_apart(one, other, normalised, one.run_time_s, other.run_time_s),
        absolute=_apart(one, other, absolute / longest, longest, longest),
    )


def _apart(one: Usage, other: Usage, edges: Floats, one_s: float, other_s: float) -> float:
    """Integrate |one - other| over u in 0..1, in %, at the times u x one_s and u x other_s.

    `edges` are all u at which one of them changes.
    """
    edges = np.unique(edges)
    # Both are constant between edges, so their integrals are linear there.
    between = np.diff(one.integral(edges * one_s)) / one_s - np.diff(other.integral(edges * other_s)) / other_s
    return 100 * float(np.abs(between).sum())


def _mean(distances: list[Distances]) -> Distances:
    return Distances(
        normalised=float(np.mean([each.normalised for each in distances])),
        absolute=float(np.mean([each.absolute for each in distances])),
    )
