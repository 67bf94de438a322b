# SPDX-License-Identifier: Apache-2.0
"""Comparison of one simulation with the repeated real runs of its experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqsim.comparison.accounting import Accounting, accounting
from sqsim.comparison.experiment import Run, experiment, repeat_of, timing_refused, unlike, warnings
from sqsim.comparison.kv_usage import KvUsage, kv_usage
from sqsim.comparison.noise import Held, floor, hold
from sqsim.comparison.pressure import Bin, by_pressure
from sqsim.fidelity.lockstep import replay
from sqsim.fidelity.recording import SCHEDULE
from sqsim.record.metrics import metrics

TIMED = (
    *("run_time_s", "output_tok_s", "total_tok_s"),
    *(
        f"{name}_p{p}"
        for name in ("ttft_s", "tpot_s", "task_s", "aux_ttft_s", "aux_e2e_s")
        for p in (50, 90, 99)
    ),
    *("kv_usage_mean", "kv_usage_peak", "retractions"),
)
"""Metrics that depend on timing; they are compared as numbers."""

_SHOWN_DIFFERENCES = 8


@dataclass(frozen=True, slots=True)
class LockStep:
    """The scheduler compared with one real run's recorded schedule (law 11)."""

    run: str
    batches: int
    evicted_leaves: int
    retractions: int
    differing: int
    differences: list[str]  # the first few
    stopped_at: int | None  # the last line of the log that was compared, where the two decided differently


@dataclass(frozen=True, slots=True)
class Timing:
    """The comparison of times; the mean of the measured runs is the base of every error."""

    noise_floor: str
    metrics: dict[str, Held]
    kv: KvUsage | None  # None where a run has no engine table
    by_pressure: list[Bin]  # the first one is of all turns


@dataclass(frozen=True, slots=True)
class Measured:
    """One simulated run compared with the real runs of its experiment, which are repeats of each other."""

    what: str
    real: list[str]
    simulated: str
    warnings: list[str]  # of these runs
    unlike: list[str]  # limits that differ between the simulated and the real server
    accounting: list[Accounting]  # one for each real run, which is its base
    turns_differing_among_real: list[int]  # each real run after the first, compared with the first
    lockstep: list[LockStep]  # of the real runs that have a recorded schedule
    without_schedule: list[str]  # the others
    timing: Timing | None
    timing_refused: str | None  # why there is no timing

    @property
    def holds_in_lockstep(self) -> bool | None:
        """Whether the scheduler forms every batch of every schedule; None where there is no schedule."""
        return all(not each.differing for each in self.lockstep) if self.lockstep else None


def measured(runs: Sequence[Run]) -> list[Measured]:
    """Pair each simulated run with each group of repeats of the same experiment, in the order of the runs.

    InputError: the recorded schedule of a record is malformed.
    """
    repeats: dict[str, list[Run]] = {}
    for run in runs:
        if run.is_real:
            repeats.setdefault(repeat_of(run.record.run), []).append(run)
    pairs = [
        (real, run)
        for real in repeats.values()
        for run in runs
        if not run.is_real and experiment(run.record.run) == experiment(real[0].record.run)
    ]
    checked = {run.name: _lockstep(run) for real, _ in pairs for run in real}
    return [_held(real, simulated, checked) for real, simulated in pairs]


def _held(real: list[Run], simulated: Run, checked: dict[str, LockStep | None]) -> Measured:
    refused = [
        f"{run.name}: {why}" for run in (*real, simulated) if (why := timing_refused(run.record)) is not None
    ]
    found = [checked[run.name] for run in real]
    return Measured(
        what=_what(simulated),
        real=[run.name for run in real],
        simulated=simulated.name,
        warnings=warnings([*real, simulated]),
        unlike=unlike(real[0], simulated),
        accounting=[accounting(run, simulated) for run in real],
        turns_differing_among_real=[accounting(real[0], run).turns.rows_differing for run in real[1:]],
        lockstep=[each for each in found if each is not None],
        without_schedule=[run.name for run in real if checked[run.name] is None],
        timing=None if refused else _timing(real, simulated),
        timing_refused=refused[0] if refused else None,
    )


def _what(run: Run) -> str:
    scenario = run.record.run.get("scenario", {})
    policy, engine = scenario.get("policy", {}), scenario.get("engine", {})
    second = engine.get("cache") if policy.get("name") == "none" else policy.get("after_eviction")
    return f"{policy.get('name')} / {second}, {scenario.get('model')} on {engine.get('gpu')}"


def _lockstep(run: Run) -> LockStep | None:
    if run.directory is None or not (run.directory / SCHEDULE).is_dir():
        return None
    report = replay(run.directory / SCHEDULE)
    return LockStep(
        run=run.name,
        batches=report.batches,
        evicted_leaves=report.evicted_leaves,
        retractions=report.retractions,
        differing=len(report.differences),
        differences=[str(each) for each in report.differences[:_SHOWN_DIFFERENCES]],
        stopped_at=report.stopped_at,
    )


def _timing(real: list[Run], simulated: Run) -> Timing:
    theirs, ours = [metrics(run.record) for run in real], metrics(simulated.record)
    return Timing(
        noise_floor=floor(len(real)),
        metrics={key: hold([found[key] for found in theirs], ours[key]) for key in TIMED},
        kv=kv_usage(real, simulated),
        by_pressure=by_pressure(real, simulated),
    )
