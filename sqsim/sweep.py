"""A sweep: one scenario at every point of a grid, into a directory that remembers what is done.

    DIR/points/KEY.json     a finished point: its scenario and its metrics
    DIR/records/KEY/        its whole record, where they were asked for
    DIR/sweep.json          the grid and its points, in the grid's order; also sweep.parquet and sweep.csv

A point's key is the sha256 of all that decides its run: the scenario with every default, what its files hold, and
sqsim's own code. So a finished point never runs twice, a sweep that was killed goes on where it stopped, and a wider
grid runs only what is new. The three tables depend on the points alone: resumed or not, the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

import sqsim
from sqsim.errors import Interrupted, RecordError, ScenarioError, SqsimError
from sqsim.grid import Axis, Values, overrides, points, written
from sqsim.labels import labels
from sqsim.metrics import DEFINITIONS, metrics
from sqsim.record import check_place, is_record, write_record
from sqsim.scenario import Scenario, load_scenario
from sqsim.simulate import simulate
from sqsim.trace.files import sha256, written_whole
from sqsim.workers import Progress, Workers

SCHEMA = "sqsim-sweep/1"
_UNTIMED = "wall_s"
"""The one metric that is no property of a run."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place of the grid; `scenario` is None where its values make none, and `error` says why."""

    values: Values
    scenario: Scenario | None = None
    key: str = ""
    metrics: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of a grid, done or failed."""

    points: list[Point]
    resumed: int  # points that were there before

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
    """Run what a grid asks for and `directory` does not hold yet, and write the sweep's tables.

    A point that fails is reported and does not stop the others. ScenarioError: no point of the grid is a scenario.
    RecordError: the directory is something else. Interrupted: finished points stay.
    """
    asked = _points(file, axes, changes)
    _make_room(directory, overwrite)
    found = [_known(point, directory, records) for point in asked]
    todo = [
        point for point in _once(found) if point.metrics is None and point.scenario is not None and point.key
    ]
    done = {}
    work = _Work(directory, records)
    try:
        for place, result in (workers or Workers()).each(work, todo, progress):
            error = isinstance(result, SqsimError)
            fresh = {"error": _line(str(result))} if error else {"metrics": result}
            done[todo[place].key] = replace(todo[place], **fresh)
    except KeyboardInterrupt:
        finished = sum(1 for point in done.values() if point.metrics is not None)
        raise Interrupted(
            f"interrupted; {finished} points were finished and stay in {directory}: the same command goes on"
        ) from None
    resumed = sum(1 for point in _once(found) if point.metrics is not None)
    # Points of one key share a run: values that do not change a scenario do not make another of it.
    every = [replace(done[point.key], values=point.values) if point.key in done else point for point in found]
    _write(directory, file, axes, changes, every, records=records)
    return Sweep(every, resumed)


def content_key(scenario: Scenario) -> str:
    """What names a run: 24 hex digits of the sha256 of all that decides it."""
    files = [*scenario.trace_paths, *([scenario.model_path] if scenario.model_path else [])]
    if scenario.profile.endswith((".yaml", ".yml")):
        files.append(Path(scenario.profile))
    content = {
        "scenario": scenario.resolved(),
        "files": [_sum_of(path) for path in files],
        "code": _code(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """The code that a run goes through: all of the package but pages and the command line."""
    total = hashlib.sha256()
    root = Path(sqsim.__file__).parent
    for file in sorted(root.rglob("*")):
        place = file.relative_to(root)
        if file.suffix in {".py", ".yaml"} and place.parts[0] != "report" and not place.name.startswith("cli"):
            total.update(f"{place.as_posix()}\0".encode() + file.read_bytes())
    return total.hexdigest()


@cache
def _sum_of(path: Path) -> str:
    return sha256(path)


def _points(file: Path, axes: Sequence[Axis], changes: Sequence[str]) -> list[Point]:
    found = []
    for values in points(axes):
        try:
            scenario = load_scenario(file, [*changes, *overrides(values)])
            found.append(Point(values, scenario, content_key(scenario)))
        except ScenarioError as error:
            found.append(Point(values, error=_line(str(error))))
    if all(point.scenario is None for point in found):
        raise ScenarioError(found[0].error or "")
    return found


def _line(text: str) -> str:
    return "; ".join(text.splitlines())


def _once(found: Sequence[Point]) -> Iterator[Point]:
    """One point a key."""
    yield from {point.key: point for point in found if point.key}.values()


def _make_room(directory: Path, overwrite: bool) -> None:
    """A directory that holds nothing, or a sweep that goes on; with `overwrite` its points are forgotten."""
    check_place(directory)
    mine = directory / "points"
    if directory.exists() and any(directory.iterdir()) and not mine.is_dir():
        raise RecordError(f"{directory}: exists and is not a sweep; choose another --output-dir")
    mine.mkdir(parents=True, exist_ok=True)
    if overwrite:
        for file in mine.glob("*.json"):
            file.unlink()


def _known(point: Point, directory: Path, records: bool) -> Point:
    """The point with its metrics, where an earlier run left them whole."""
    if not point.key or (records and not is_record(directory / "records" / point.key)):
        return point
    file = directory / "points" / f"{point.key}.json"
    if not file.is_file():
        return point
    try:
        return replace(point, metrics=json.loads(file.read_bytes())["metrics"])
    except (ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{file}: damaged ({error}); delete it, and it is run again") from error


@dataclass(frozen=True, slots=True)
class _Work:
    """Runs one point and leaves it in the directory; its metrics. May be sent to another process."""

    directory: Path
    records: bool

    def __call__(self, point: Point) -> dict[str, Any]:
        assert point.scenario is not None, "only scenarios are run"
        record = simulate(point.scenario)
        if self.records:
            write_record(record, self.directory / "records" / point.key, overwrite=True)
        found = {name: value for name, value in metrics(record).items() if name != _UNTIMED}
        content = {
            "schema": SCHEMA,
            "key": point.key,
            "scenario": point.scenario.resolved(),
            "metrics": found,
            "evidence": _evidence(record.run),
        }
        _write_json(self.directory / "points" / f"{point.key}.json", content)
        return found


def _evidence(run: dict[str, Any]) -> dict[str, Any]:
    """What a run's numbers rest on, as its run.json says."""
    return {
        "profile": run["profile"]["name"],
        "summary": run["profile"]["summary"],
        "assumed": run["assumed"],
        "references": run["references"],
        "out_of_range": run["out_of_range"],
    }


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with written_whole(path) as file:
        file.write(text.encode())


def _write(
    directory: Path,
    file: Path,
    axes: Sequence[Axis],
    changes: Sequence[str],
    found: Sequence[Point],
    *,
    records: bool,
) -> None:
    evidence = [
        json.loads((directory / "points" / f"{point.key}.json").read_bytes())["evidence"]
        for point in _once(found)
        if point.metrics is not None
    ]
    content = {
        "schema": SCHEMA,
        "scenario": file.name,
        "changes": list(changes),
        "axes": [
            {"keys": list(axis.keys), "values": [list(values) for values in axis.values]} for axis in axes
        ],
        "evidence": [each for at, each in enumerate(evidence) if each not in evidence[:at]],
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
    _write_json(directory / "sweep.json", content)
    table = _table(found)
    with written_whole(directory / "sweep.parquet") as sink:
        pq.write_table(table, sink, compression="zstd")
    with written_whole(directory / "sweep.csv") as sink:
        csv.write_csv(table, sink)


def _table(found: Sequence[Point]) -> pa.Table:
    """One row a point: its values, whether it was done, its labels and its metrics."""
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
        if name != _UNTIMED:
            absent = 0 if name in failed else None
            columns[name] = [
                None if point.metrics is None else point.metrics.get(name, absent) for point in found
            ]
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: list[Any]) -> pa.Array:
    """Numbers as numbers where all of them are, else all as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) > 1:
        return pa.array(values, pa.float64())
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values) if kinds else pa.array(values, pa.string())


def read_sweep(directory: Path) -> dict[str, Any]:
    """What sweep.json holds. RecordError: it is no sweep, unfinished, or of another version."""
    file = directory / "sweep.json"
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{file}: cannot be read: {error.strerror}; let `sqsim sweep` finish first"
        ) from error
    except ValueError as error:
        raise RecordError(f"{file}: cannot be read as JSON ({error}); run the sweep again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RecordError(f"{file}: schema is {schema!r}, this version reads {SCHEMA!r}; run the sweep again")
    assert isinstance(content, dict)
    return content
