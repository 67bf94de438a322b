# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs side by side: metrics, settings, tasks, the token accounting of every turn, measured with simulated.

The first run is the base that the others are compared with. Nothing here prints; `sqsim compare --json` prints
`Comparison.to_json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqsim.base.plain_text import columns, shown
from sqsim.comparison.accounting import Accounting, accounting, comparable
from sqsim.comparison.experiment import Run, timing_refused, warnings
from sqsim.comparison.measured import Measured, measured
from sqsim.errors import InputError, RecordError
from sqsim.record.definitions import DEFINITIONS
from sqsim.record.evidence import HELD_FIXED, evidence_lines, evidence_of
from sqsim.record.metrics import Value, metrics
from sqsim.record.schema import RunRecord, checked_record

_TIMED = {key for key, metric in DEFINITIONS.items() if metric.unit in {"s", "tokens/s", "share"}} | {
    *("retractions", "reclaimed_tokens", "released_sessions"),
}
"""Metrics without meaning for a run whose times cannot be compared."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric in every run. `change_percent` is the signed change from the first run; None where it has no meaning."""

    values: list[Value]
    change_percent: list[float | None]

    def cells(self) -> list[str]:
        """Return the first value, then each other value and its change, as text."""
        first, *others = zip(self.values, self.change_percent, strict=True)
        return [shown(first[0]), *(shown(cell) for pair in others for cell in pair)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`; the lists of `metrics` and `differing` are in the order of `runs`."""

    runs: list[str]
    warnings: list[str]
    """Warnings about the runs, in sentences."""
    rests_on: dict[str, list[str]]
    """The evidence that the numbers rest on, in sentences, with the runs that each is true of."""
    timing_refused: dict[str, str]
    """Runs whose times are not compared, and why."""
    metrics: dict[str, MetricRow]
    differing: dict[str, list[Any]]
    """Values of `run.json` that differ between runs, by key path (`scenario.engine.cache`)."""
    missing_tasks: dict[str, list[str]]
    """For each run, the tasks of other runs that it lacks."""
    accounting: list[Accounting]
    """One for each run with the first run's policy and cache."""
    measured: list[Measured]
    """One for each simulated run and group of real runs of its experiment."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON objects, lists and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        """Write the metrics that are not zero everywhere, with their changes, the differing settings, and the warnings."""
        names = list(self.runs)
        head = ["metric", "unit", names[0], *(text for name in names[1:] for text in (name, "change %"))]
        rows = [
            [name, DEFINITIONS[name].unit if name in DEFINITIONS else "tasks", *row.cells()]
            for name, row in self.metrics.items()
            if name not in {"simulated", "wall_s"} and any(row.values)
        ]
        differing = [["differs", *names], *([key, *map(shown, row)] for key, row in self.differing.items())]
        refused = (f"times of {run} are not compared: {why}" for run, why in self.timing_refused.items())
        notes = [*self.warnings, *self.rests_on, *refused, HELD_FIXED]
        return "\n".join(
            [
                columns([head, *rows], right=range(2, len(head))),
                *(["", columns(differing)] if self.differing else []),
                "",
                *(f"- {note}" for note in notes),
            ]
        )


def compare(
    *records: RunRecord,
    names: Sequence[str] | None = None,
    directories: Sequence[Path] | None = None,
    allow_other_traces: bool = False,
) -> Comparison:
    """Compare two or more runs, `compare(base, other)`; print the result to read it.

    `names` are the runs' names in the result, by default `1`, `2`, ... `directories` are the records' directories, where a
    real record may have its recorded schedule. RecordError: fewer than two runs, or runs of different trace files unless
    `allow_other_traces`. InputError: a malformed
    schedule, or names that do not fit.
    """
    for each in records:
        checked_record(each, "compare")
    if len(records) < 2:
        raise RecordError(
            f"compare: {len(records)} run{'' if len(records) == 1 else 's'} given; a comparison takes at least two"
        )
    called = [str(index + 1) for index in range(len(records))] if names is None else list(names)
    _check_names(called, len(records))
    places: Sequence[Path | None] = [None] * len(records) if directories is None else directories
    if len(places) != len(records):
        raise InputError(
            f"compare: directories: {len(places)} are given for {len(records)} runs; give one for each"
        )
    runs = [Run(*each) for each in zip(called, records, places, strict=True)]
    if not allow_other_traces:
        _same_traces(runs)
    base, *others = runs
    refused = {run.name: why for run in runs if (why := timing_refused(run.record)) is not None}
    return Comparison(
        runs=[run.name for run in runs],
        warnings=warnings(runs),
        rests_on=_rests_on(runs),
        timing_refused=refused,
        metrics=_metric_rows(runs, refused),
        differing=_differing(runs),
        missing_tasks=_missing_tasks(runs),
        accounting=[accounting(base, run) for run in others if comparable(base.record, run.record)],
        measured=measured(runs),
    )


def _check_names(names: Sequence[object], count: int) -> None:
    if len(names) != count:
        raise InputError(f"compare: names: {len(names)} are given for {count} runs; give one for each")
    for each in names:
        if not isinstance(each, str) or names.count(each) > 1:
            why = "is given twice" if isinstance(each, str) else "is no text"
            raise InputError(f"compare: names: {each!r} {why}; give each run its own name")


def _rests_on(runs: Sequence[Run]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in runs:
        content = run.record.run
        simulated = content["kind"] == "simulated"
        for line in evidence_lines([evidence_of(content)]) if simulated else ["every number is measured"]:
            found.setdefault(line, []).append(run.name)
    return found


def change_percent(base: Value, value: Value) -> float | None:
    """Compute the signed change from the base in percent; None for values that are not numbers, and for a change from 0."""
    if not isinstance(base, (int, float)) or not isinstance(value, (int, float)):
        return None
    if isinstance(base, bool) or isinstance(value, bool):
        return None
    if base == value:
        return 0.0
    return 100.0 * (value - base) / abs(base) if base else None


def _same_traces(runs: Sequence[Run]) -> None:
    hashes = [sorted(str(trace.get("sha256")) for trace in run.record.run.get("traces", [])) for run in runs]
    for run, theirs in zip(runs[1:], hashes[1:], strict=True):
        if theirs != hashes[0]:
            raise RecordError(
                f"{run.name}: ran on other traces than {runs[0].name} (sha256 {_short(theirs)}, not {_short(hashes[0])}); "
                "compare runs of the same traces, or pass allow_other_traces=True"
            )


def _short(hashes: Sequence[str]) -> str:
    return ", ".join(value[:12] for value in hashes) or "none"


def _metric_rows(runs: Sequence[Run], refused: Mapping[str, str]) -> dict[str, MetricRow]:
    found = [metrics(run.record) for run in runs]
    rows: dict[str, MetricRow] = {}
    for key in dict.fromkeys(key for values in found for key in values):
        # A failure reason that did not occur has no key, so its count is 0.
        values = [one.get(key, 0 if key.startswith("failed_") else None) for one in found]
        apart = [key in _TIMED and bool({runs[0].name, run.name} & refused.keys()) for run in runs]
        changes = [
            None if no else change_percent(values[0], value) for no, value in zip(apart, values, strict=True)
        ]
        rows[key] = MetricRow(values, changes)
    return rows


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    # Traces are compared by their hash, and failures are metrics.
    flat = [
        dict(_flat({key: value for key, value in run.record.run.items() if key not in {"traces", "failures"}}))
        for run in runs
    ]
    keys = sorted({key for one in flat for key in one})
    rows = {key: [one.get(key) for one in flat] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _missing_tasks(runs: Sequence[Run]) -> dict[str, list[str]]:
    tasks: list[set[str]] = [set(run.record.tasks["task"].to_pylist()) for run in runs]
    union = set().union(*tasks)
    return {run.name: sorted(union - mine) for run, mine in zip(runs, tasks, strict=True)}
