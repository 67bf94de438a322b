# SPDX-License-Identifier: Apache-2.0
"""View of a run record: whole small tables, and an engine table thinned without losing its peaks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqsim.record.files import read_record
from sqsim.record.schema import COMPLETED

Numbers = npt.NDArray[np.float64]

OWNERS = ("kv_running", "kv_idle_sessions", "kv_aux", "kv_tree_evictable", "kv_free")
"""Owners of the full-attention slots; the five sum to the capacity."""


class Pressure(NamedTuple):
    """Retractions and released sessions within one piece of the time line."""

    time_s: float
    retracted: int
    released: int


@dataclass(frozen=True, eq=False)
class RecordView:
    """Record without its full engine table. `owners[name]` and `times` have one entry for each kept engine row."""

    path: Path
    run: dict[str, Any]
    timing: dict[str, Any]
    tasks: pa.Table
    turns: pa.Table
    aux: pa.Table
    evictions: pa.Table
    times: Numbers  # s, end of the row
    owners: dict[str, Numbers]  # tokens
    pressure: list[Pressure]
    engine_rows: int
    steps: int  # of the engine, in all its rows

    @property
    def complete(self) -> bool:
        """Whether the record states that the run completed."""
        return bool(self.run.get("status", "complete") == "complete")

    @property
    def failures(self) -> dict[str, int]:
        """Count the tasks that ended for each reason other than completion."""
        counts: dict[str, int] = {}
        for outcome in self.tasks["outcome"].to_pylist():
            if outcome != COMPLETED:
                counts[outcome] = counts.get(outcome, 0) + 1
        return dict(sorted(counts.items()))


def numbers(table: pa.Table, column: str) -> Numbers:
    """Return a column as floats; empty values are nan."""
    return np.asarray(table[column].to_numpy(), dtype=np.float64)


def peak_rows(times: Numbers, used: Numbers, pieces: int) -> npt.NDArray[np.intp]:
    """Choose rows so that each of `pieces` equal pieces of time keeps its lowest and its highest value.

    Rows are returned in order; the first and the last one are always included.
    """
    if len(times) <= 2 * pieces:
        return np.arange(len(times))
    span = float(times[-1] - times[0]) or 1.0
    piece = np.minimum(((times - times[0]) / span * pieces).astype(np.intp), pieces - 1)
    order = np.lexsort((used, piece))
    first = np.flatnonzero(np.diff(piece[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    ends = np.array([0, len(times) - 1])
    return np.unique(np.concatenate((order[first], order[last], ends)))


def _pressure(engine: pa.Table, times: Numbers, pieces: int) -> list[Pressure]:
    retracted, released = numbers(engine, "retracted"), numbers(engine, "released_sessions")
    rows = np.flatnonzero((retracted > 0) | (released > 0))
    if not len(rows):
        return []
    span = float(times[-1] - times[0]) or 1.0
    piece = np.minimum(((times[rows] - times[0]) / span * pieces).astype(np.intp), pieces - 1)
    return [
        Pressure(
            float(times[part[0]]),
            int(retracted[part].sum()),
            int(released[part].sum()),
        )
        for value in np.unique(piece)
        for part in (rows[piece == value],)
    ]


def read_record_view(path: Path, pieces: int) -> RecordView:
    """Read a record and thin its engine table to at most two rows for each of `pieces` pieces of its time.

    RecordError where the directory holds no record. An incomplete run is read: the page marks it as incomplete.
    """
    record = read_record(path, allow_incomplete=True)
    engine = record.engine
    times = numbers(engine, "t1_s")
    used = numbers(engine, "kv_free") + numbers(engine, "kv_tree_evictable")
    rows = peak_rows(times, used, pieces)
    return RecordView(
        path=path,
        run=record.run,
        timing=record.timing,
        tasks=record.tasks,
        turns=record.turns,
        aux=record.aux,
        evictions=record.evictions,
        times=times[rows],
        owners={name: numbers(engine, name)[rows] for name in OWNERS},
        pressure=_pressure(engine, times, pieces=60),
        engine_rows=engine.num_rows,
        steps=int(numbers(engine, "steps").sum()),
    )
