# SPDX-License-Identifier: Apache-2.0
"""A sweep: one scenario at every point of a grid, in a directory that keeps finished points (points.py).

`sweep.json` holds the grid and its points in the grid's order, `sweep.parquet` and `sweep.csv` the same as a table. A
wider grid runs only the new points. The three files depend on the points alone: a resumed sweep has the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from sqsim.base.strict_yaml import given_by
from sqsim.base.workers import Progress, Workers
from sqsim.errors import ScenarioError, SqsimError
from sqsim.experiments.grid import Axis, Values, overrides, points, written
from sqsim.experiments.points import UNTIMED, Found, Points, content_key, read_json, write_json
from sqsim.record.definitions import DEFINITIONS
from sqsim.record.evidence import each_once
from sqsim.scenario.labels import labels
from sqsim.scenario.scenario import Scenario, load_scenario
from sqsim.trace.files import written_whole

SCHEMA = "sqsim-sweep/1"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid; `scenario` is None where its values make no scenario, and `error` states why."""

    values: Values
    scenario: Scenario | None = None
    key: str = ""
    metrics: dict[str, Any] | None = None
    evidence: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of a grid, done or failed."""

    points: list[Point]
    resumed: int  # number of points that were finished before

    @property
    def failed(self) -> list[Point]:
        return [point for point in self.points if point.metrics is None]


def run_sweep(
    file: Path,
    axes: Sequence[Axis],
    directory: Path,
    *,
    changes: Sequence[str] = (),
    records: bool = False,
    overwrite: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run the points of a grid that `directory` does not hold yet, and write the sweep's tables.

    A point that fails is reported and does not stop the others. ScenarioError: no point of the grid is a scenario.
    RecordError: the directory holds something else. Interrupted: finished points stay.
    """
    asked = _points(file, axes, changes)
    store = Points(directory, records)
    store.make_room(overwrite)
    whole = [point for point in asked if point.scenario is not None]
    resumed = {point.key for point in whole if store.known(point.key) is not None}
    scenarios = [point.scenario for point in whole if point.scenario is not None]
    found = dict(zip(map(id, whole), store.run(scenarios, workers or Workers(), progress), strict=True))
    every = [_done(point, found.get(id(point))) for point in asked]
    _write(directory, file, axes, changes, every, records=records)
    return Sweep(every, len(resumed))


def _done(point: Point, result: Found | SqsimError | None) -> Point:
    if result is None:
        return point
    if isinstance(result, SqsimError):
        return replace(point, error=_line(str(result)))
    return replace(point, metrics=result["metrics"], evidence=result["evidence"])


def _points(file: Path, axes: Sequence[Axis], changes: Sequence[str]) -> list[Point]:
    found = []
    for values in points(axes):
        own = overrides(values)
        places = [given_by("--set", each) for each in changes] + [given_by("--grid", each) for each in own]
        try:
            scenario = load_scenario(file, [*changes, *own], places)
            found.append(Point(values, scenario, content_key(scenario)))
        except ScenarioError as error:
            found.append(Point(values, error=_line(str(error))))
    if all(point.scenario is None for point in found):
        raise ScenarioError(found[0].error or "")
    return found


def _line(text: str) -> str:
    return "; ".join(text.splitlines())


def _write(
    directory: Path,
    file: Path,
    axes: Sequence[Axis],
    changes: Sequence[str],
    found: Sequence[Point],
    *,
    records: bool,
) -> None:
    content = {
        "schema": SCHEMA,
        "scenario": file.name,
        "changes": list(changes),
        "axes": [
            {"keys": list(axis.keys), "values": [list(values) for values in axis.values]} for axis in axes
        ],
        "evidence": each_once(point.evidence for point in found if point.evidence is not None),
        "points": [
            {
                "key": point.key or None,
                "values": point.values,
                "labels": None if point.scenario is None else labels(point.scenario),
                "metrics": point.metrics,
                "error": point.error,
                "record": f"records/{point.key}" if records and point.metrics is not None else None,
            }
            for point in found
        ],
    }
    write_json(directory / "sweep.json", content)
    table = _table(found)
    with written_whole(directory / "sweep.parquet") as sink:
        pq.write_table(table, sink, compression="zstd")
    with written_whole(directory / "sweep.csv") as sink:
        csv.write_csv(table, sink)


def _table(found: Sequence[Point]) -> pa.Table:
    """Build the table, one row a point: its values, its status, its labels and its metrics."""
    keys = list(found[0].values) if found else []
    failed = sorted({name for point in found for name in (point.metrics or {}) if name.startswith("failed_")})
    columns: dict[str, list[Any]] = {key: [written(point.values[key]) for point in found] for key in keys}
    columns["status"] = ["failed" if point.metrics is None else "done" for point in found]
    columns["error"] = [point.error for point in found]
    columns["key"] = [point.key or None for point in found]
    labelled = [{} if point.scenario is None else labels(point.scenario) for point in found]
    for name in dict.fromkeys(name for each in labelled for name in each):
        columns[name] = [each.get(name) for each in labelled]
    for name in (*DEFINITIONS, *failed):
        if name != UNTIMED:
            absent = 0 if name in failed else None
            columns[name] = [
                None if point.metrics is None else point.metrics.get(name, absent) for point in found
            ]
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: list[Any]) -> pa.Array:
    """Build a column of numbers where all values are numbers, else of text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) > 1:
        return pa.array(values, pa.float64())
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values) if kinds else pa.array(values, pa.string())


def read_sweep(directory: Path) -> dict[str, Any]:
    """Read sweep.json. RecordError: it is no sweep, unfinished, or of another version."""
    return read_json(directory, "sweep.json", SCHEMA)
