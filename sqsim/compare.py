"""Runs side by side: metrics, circumstances, tasks, and the token accounting of every turn.

The first run is the base that the others are compared with. Nothing here prints; `Comparison.to_json` is what
`sqsim compare --json` shows. Two runs of one policy on the same tasks, a simulation and a measurement above
all, must account for the same tokens turn by turn (law 10): `accounting` lists where they do not. Law 10 allows
one token of resident KV after a stop token, so those turns are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sqsim.errors import RecordError
from sqsim.metrics import Value, metrics
from sqsim.record import RunRecord

ACCOUNTED = ("prompt_tokens", "cached_tokens", "computed_tokens", "resident_tokens_after", "output_tokens")
"""The columns of `turns` that two runs of the same tasks under the same policy must agree on."""


class MetricRow(NamedTuple):
    """One metric in every run. `change_percent` is signed, against the first run; None where that says nothing."""

    values: list[Value]
    change_percent: list[float | None]


class TurnDifference(NamedTuple):
    """A turn whose account differs: `column` is `base` in the first run and `other` in this one."""

    task: str
    turn: int
    column: str
    base: int
    other: int


@dataclass(frozen=True, slots=True)
class Accounting:
    """One run's turns against the first run's."""

    run: str
    turns: int  # in both
    turns_in_one: int
    turns_differing: int
    resident_by_one: int  # of these, turns that differ by one resident token only (RULES.md, rule 27)
    by_column: dict[str, int]  # turns that differ in this column
    differences: list[TurnDifference]  # by task and turn


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found; the lists of `metrics` and `differing` are in the order of `runs`."""

    runs: list[str]
    metrics: dict[str, MetricRow]
    differing: dict[str, list[Any]]
    """Values of `run.json` that are not the same in all runs, by key path (`scenario.engine.cache`)."""
    missing_tasks: dict[str, list[str]]
    """For each run the tasks of the others that it lacks."""
    accounting: list[Accounting]
    """One for each run that has the first one's policy and cache."""

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON objects, lists and numbers."""
        plain = asdict(self)  # leaves the named tuples as they are
        plain["metrics"] = {name: row._asdict() for name, row in self.metrics.items()}
        for part, account in zip(plain["accounting"], self.accounting, strict=True):
            part["differences"] = [difference._asdict() for difference in account.differences]
        return plain


def compare(
    records: Sequence[RunRecord], names: Sequence[str] | None = None, *, allow_other_traces: bool = False
) -> Comparison:
    """Compare two runs or more; `names` (default `1`, `2`, ...) are what the result calls them.

    RecordError: fewer than two runs, or runs of different trace files unless `allow_other_traces`.
    """
    runs = [str(index + 1) for index in range(len(records))] if names is None else list(names)
    if len(records) < 2:
        raise RecordError(f"{len(records)} run given; a comparison takes at least two directories")
    if not allow_other_traces:
        _same_traces(records, runs)
    return Comparison(
        runs=runs,
        metrics=_metric_rows(records),
        differing=_differing(records),
        missing_tasks=_missing_tasks(records, runs),
        accounting=[
            _accounting(records[0], record, run)
            for record, run in zip(records[1:], runs[1:], strict=True)
            if _replayed_as(record) == _replayed_as(records[0])
        ],
    )


def change_percent(base: Value, value: Value) -> float | None:
    """Signed change against the base in percent; None for what are no numbers, and for any change from 0."""
    if not isinstance(base, (int, float)) or not isinstance(value, (int, float)):
        return None
    if isinstance(base, bool) or isinstance(value, bool):
        return None
    if base == value:
        return 0.0
    return 100.0 * (value - base) / abs(base) if base else None


def _same_traces(records: Sequence[RunRecord], runs: Sequence[str]) -> None:
    hashes = [sorted(str(trace.get("sha256")) for trace in record.run.get("traces", [])) for record in records]
    for run, theirs in zip(runs[1:], hashes[1:], strict=True):
        if theirs != hashes[0]:
            raise RecordError(
                f"{run}: ran on other traces than {runs[0]} (sha256 {_short(theirs)}, not {_short(hashes[0])}); "
                "compare runs of the same traces, or add --allow-other-traces"
            )


def _short(hashes: Sequence[str]) -> str:
    return ", ".join(value[:12] for value in hashes) or "none"


def _metric_rows(records: Sequence[RunRecord]) -> dict[str, MetricRow]:
    found = [metrics(record) for record in records]
    rows: dict[str, MetricRow] = {}
    for key in dict.fromkeys(key for values in found for key in values):
        # A reason that did not occur has no key: nothing failed by it.
        values = [one.get(key, 0 if key.startswith("failed_") else None) for one in found]
        rows[key] = MetricRow(values, [change_percent(values[0], value) for value in values])
    return rows


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _differing(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    # Traces are compared by their hash, failures are metrics.
    flat = [
        dict(_flat({key: value for key, value in record.run.items() if key not in {"traces", "failures"}}))
        for record in records
    ]
    keys = sorted({key for one in flat for key in one})
    rows = {key: [one.get(key) for one in flat] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _missing_tasks(records: Sequence[RunRecord], runs: Sequence[str]) -> dict[str, list[str]]:
    tasks: list[set[str]] = [set(record.tasks["task"].to_pylist()) for record in records]
    union = set().union(*tasks)
    return {run: sorted(union - mine) for run, mine in zip(runs, tasks, strict=True)}


def _replayed_as(record: RunRecord) -> tuple[Any, Any]:
    scenario = record.run.get("scenario", {})
    return scenario.get("policy"), scenario.get("engine", {}).get("cache")


def _accounts(record: RunRecord) -> dict[tuple[str, int], tuple[int, ...]]:
    columns = (record.turns[name].to_pylist() for name in ("task", "turn", *ACCOUNTED))
    return {(task, turn): tuple(counts) for task, turn, *counts in zip(*columns, strict=True)}


def _by_one(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    off = [(column, abs(a - b)) for column, a, b in zip(ACCOUNTED, left, right, strict=True) if a != b]
    return off == [("resident_tokens_after", 1)]


def _accounting(base: RunRecord, other: RunRecord, run: str) -> Accounting:
    ours, theirs = _accounts(base), _accounts(other)
    both = sorted(ours.keys() & theirs.keys())
    differences = [
        TurnDifference(*key, column, left, right)
        for key in both
        for column, left, right in zip(ACCOUNTED, ours[key], theirs[key], strict=True)
        if left != right
    ]
    return Accounting(
        run=run,
        turns=len(both),
        turns_in_one=len(ours.keys() ^ theirs.keys()),
        turns_differing=len({(found.task, found.turn) for found in differences}),
        resident_by_one=sum(_by_one(ours[key], theirs[key]) for key in both),
        by_column={column: sum(found.column == column for found in differences) for column in ACCOUNTED},
        differences=differences,
    )
