# SPDX-License-Identifier: Apache-2.0
"""The schema of a run's record, simulated or real: two JSON objects and five tables.

SPEC.md, "RunRecord", is the contract. `run.json` states what was run and on what evidence, the tables hold what
happened, `timing.json` states how long it took on this machine. Everything except `timing.json` is the *identity* of the
run: the same scenario and seed give the same bytes (files.py writes and reads them).

Times are float64 seconds, counts int64. A column is nullable where its event may not have happened: an
unadmitted turn has no `first_token_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from sqsim.base.other_words import FLAGS, other_words
from sqsim.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    import pandas as pd

    from sqsim.record.metrics import Metrics

SCHEMA = "sqrun/1"
COMPLETED = "completed"
"""The outcome of a task that reached its end; any other outcome is the reason why it failed."""

GROUP_ROWS = 1 << 16
"""Rows of a Parquet row group."""
_PACK_ROWS = 1 << 13
"""Rows that wait as Python values, at about 600 bytes each, before they are packed; a group is a whole number of packs."""


def _schema(*columns: tuple[str, pa.DataType], nullable: frozenset[str] = frozenset()) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns])


_TEXT, _COUNT, _TIME = pa.string(), pa.int64(), pa.float64()

TASKS = _schema(
    ("task", _TEXT),
    ("start_s", _TIME),  # its arrival, even if it then waits for a slot
    ("end_s", _TIME),
    ("outcome", _TEXT),  # completed, or the reason of its failure
    ("turns", _COUNT),
    ("output_tokens", _COUNT),  # main only
    ("peak_tokens", _COUNT),  # largest resident main context
    ("kv_read_tokens_main", _COUNT),  # sum over decoded tokens of the resident tokens they read
    ("kv_read_tokens_aux", _COUNT),
    ("parent", _TEXT),  # the task that started this sub-agent
    nullable=frozenset({"parent"}),
)
"""One row a task, sub-agents included."""

TURNS = _schema(
    ("task", _TEXT),
    ("turn", _COUNT),  # step index; the answer is the last one
    ("submit_s", _TIME),
    ("admit_s", _TIME),
    ("first_token_s", _TIME),  # end of the step of the last prefill chunk
    ("end_s", _TIME),
    ("tool_end_s", _TIME),  # when the last tool response returned; null if no tool was waited for
    ("prompt_tokens", _COUNT),
    ("cached_tokens", _COUNT),
    ("computed_tokens", _COUNT),
    ("output_tokens", _COUNT),
    ("resident_tokens_after", _COUNT),
    ("shift", _COUNT),  # tokens evicted in place so far: position = resident + shift
    ("retractions", _COUNT),
    ("prefill_chunks", _COUNT),
    nullable=frozenset({"admit_s", "first_token_s", "end_s", "tool_end_s"}),
)
"""One row a main step."""

AUX = _schema(
    ("task", _TEXT),
    ("spawn_turn", _COUNT),
    ("submit_s", _TIME),
    ("first_token_s", _TIME),
    ("end_s", _TIME),
    ("state", _TEXT),  # applied | late | cancelled | malformed
    ("fork_tokens", _COUNT),
    ("prompt_tokens", _COUNT),
    ("cached_tokens", _COUNT),
    ("output_tokens", _COUNT),
    ("named", pa.list_(pa.field("item", _COUNT, nullable=False))),  # cursors
    ("ignored", _COUNT),  # named cursors that the thread never saw, or that were evicted before it was applied
    ("applied_turn", _COUNT),  # the boundary at which its decision was applied
    ("text", _TEXT),  # what a live thread wrote
    nullable=frozenset({"first_token_s", "end_s", "applied_turn", "text"}),
)
"""One row an auxiliary thread; its index within its task is its place among the task's rows."""

EVICTIONS = _schema(
    ("task", _TEXT),
    ("turn", _COUNT),  # the boundary: before this main step
    ("time_s", _TIME),
    ("cursor", _COUNT),
    ("tokens", _COUNT),  # call and response
    ("by", _TEXT),  # aux index or rule
    ("age_turns", _COUNT),
    ("last_use_turn", _COUNT),
    ("used_later", _COUNT),
    nullable=frozenset({"last_use_turn", "used_later"}),
)
"""One row an evicted cursor. The last two columns hold hindsight: null until `hindsight.judge_evictions` fills them."""

ENGINE = _schema(
    ("t0_s", _TIME),
    ("t1_s", _TIME),
    ("mode", _TEXT),  # prefill | decode | mixed | idle
    ("steps", _COUNT),
    ("requests", _COUNT),  # rows of one step's batch
    ("new_tokens", _COUNT),  # total over the row's steps
    ("context_tokens", _COUNT),  # total over the row's steps
    # from here to kv_free, and swa_used: the state at the row's last step; the five kv_* sum to the capacity
    ("running", _COUNT),
    ("waiting", _COUNT),
    ("kv_running", _COUNT),
    ("kv_idle_sessions", _COUNT),
    ("kv_aux", _COUNT),
    ("kv_tree_evictable", _COUNT),
    ("kv_free", _COUNT),
    ("kv_used_mean", _TIME),  # tokens; time-weighted mean over the row of capacity - free - evictable
    ("swa_used", _COUNT),  # null without a sliding-window pool
    ("retracted", _COUNT),
    ("reclaimed_tokens", _COUNT),
    ("released_sessions", _COUNT),
    ("new_token_ratio", _TIME),
    nullable=frozenset({"swa_used"}),
)
"""One row a step, an interval of alike steps, or an interval without work (mode idle)."""

TableName = Literal["tasks", "turns", "aux", "evictions", "engine"]
TABLES = {"tasks": TASKS, "turns": TURNS, "aux": AUX, "evictions": EVICTIONS, "engine": ENGINE}
_REPLICA = pa.field("replica", _COUNT, nullable=False)
REPLICATED = {
    name: schema.append(_REPLICA) if name in {"turns", "aux", "engine"} else schema
    for name, schema in TABLES.items()
}
"""The tables of a run on several replicas: rows of a request or an engine name their replica."""


class Rows:
    """A table under construction. A row has exactly the schema's columns; every value is kept or refused.

    Rows are kept for `table`. With `write` they are handed on in groups instead; `flush` hands on the last group.
    """

    def __init__(self, schema: pa.Schema, write: Callable[[pa.Table], None] | None = None) -> None:
        self.schema = schema
        self._names = tuple(schema.names)
        self._pending: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._write = write

    def append(self, **columns: Any) -> None:
        """Add one row."""
        names = self._names
        if tuple(columns) == names:  # the usual case: columns in order
            row = tuple(columns.values())
        elif columns.keys() == set(names):
            row = tuple(columns[name] for name in names)
        else:
            missing, unknown = sorted(set(names) - columns.keys()), sorted(columns.keys() - set(names))
            raise TypeError(f"a row has the columns {', '.join(names)}: missing {missing}, unknown {unknown}")
        self.add(row)

    def add(self, row: tuple[Any, ...]) -> None:
        """Add one row, its values in the schema's order."""
        self._pending.append(row)
        if len(self._pending) == _PACK_ROWS:
            self._pack()
            if self._write is not None and len(self._batches) == GROUP_ROWS // _PACK_ROWS:
                self.flush()

    def flush(self) -> None:
        """Hand the kept rows to `write`: a whole group, or the last rows."""
        assert self._write is not None, "these rows are kept"
        table = self.table()
        self._batches.clear()
        if table.num_rows:
            self._write(table)

    def _pack(self) -> None:
        # A value costs about 60 bytes in a Python row and 8 in Arrow: long runs must not keep Python rows.
        columns = zip(*self._pending, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        self._batches.append(pa.record_batch(arrays, schema=self.schema))
        self._pending.clear()

    def table(self) -> pa.Table:
        """Return all rows so far; more may be appended."""
        if self._pending:
            self._pack()
        return pa.Table.from_batches(self._batches, schema=self.schema)


@dataclass(slots=True, repr=False)
class RunRecord:
    """A run in memory. `run` and `timing` are JSON objects; the tables have the schemas above."""

    run: dict[str, Any]
    timing: dict[str, Any] = field(default_factory=dict)
    tasks: pa.Table = field(default_factory=TASKS.empty_table)
    turns: pa.Table = field(default_factory=TURNS.empty_table)
    aux: pa.Table = field(default_factory=AUX.empty_table)
    evictions: pa.Table = field(default_factory=EVICTIONS.empty_table)
    engine: pa.Table = field(default_factory=ENGINE.empty_table)

    def table(self, name: str) -> pa.Table:
        """Return one of the five tables by its name in `TABLES`."""
        return getattr(self, name)

    def metrics(self) -> Metrics:
        """Compute all metrics of the run: a dict by name, which also states units, meanings and evidence."""
        from sqsim.record.metrics import Metrics  # noqa: PLC0415 - it needs this class

        return Metrics(self)

    def to_pandas(self, table: TableName = "turns") -> pd.DataFrame:
        """Return one of the five tables as a DataFrame; empty values are NaN or None.

        InputError: there is no such table. MissingPackageError: pandas is not installed.
        """
        if not isinstance(table, str) or table not in TABLES:
            raise InputError(f"to_pandas: {table!r} is no table of a record; there are {', '.join(TABLES)}")
        if find_spec("pandas") is None:
            raise MissingPackageError("to_pandas: pandas is not installed here; run `pip install pandas`")
        return self.table(table).to_pandas()

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write the record to a directory, whole or not at all; RecordError where something else is there."""
        from sqsim.record.files import write_record  # noqa: PLC0415 - it needs this class

        with other_words(FLAGS):
            write_record(self, directory, overwrite)

    @classmethod
    def load(cls, directory: str | Path) -> RunRecord:
        """Read a record that `save`, `sqsim run` or `sqreal run` wrote; RecordError where there is none or it is damaged."""
        from sqsim.record.files import read_record  # noqa: PLC0415 - it needs this class

        with other_words(FLAGS):
            return read_record(directory)

    def __repr__(self) -> str:
        from sqsim.record.metrics import output_tok_s  # noqa: PLC0415 - it needs this class

        asked = self.run.get("scenario", {})  # a record under construction, or made by hand, may lack it
        load = ", ".join(f"{key} {value}" for key, value in asked.get("load", {}).items())
        setting = f"{asked.get('policy', {}).get('name')} / {asked.get('engine', {}).get('cache')}"
        done, rate = self.tasks["outcome"].to_pylist().count(COMPLETED), output_tok_s(self)
        speed = "no throughput" if rate is None else f"{rate:,.1f} output tokens/s"
        return (
            f"<RunRecord {self.run.get('kind', 'run')}, {setting}, {load or 'no load'}: "
            f"{done} of {self.tasks.num_rows} tasks completed, {speed}>"
        )


def checked_record(value: object, what: str) -> RunRecord:
    """Return a record as it is. InputError: it is something else, such as the path of one."""
    if isinstance(value, RunRecord):
        return value
    raise InputError(f"{what}: {value!r:.60} is no RunRecord; read a directory with RunRecord.load(directory)")


def fault(table: pa.Table, name: str) -> str | None:
    """Describe the first way in which a table breaks its schema; None where it fits."""
    schema = (REPLICATED if "replica" in table.schema.names else TABLES)[name]
    if table.schema.names != schema.names:
        return f"has the columns {table.schema.names} instead of {schema.names}"
    for column in schema:
        values = table[column.name]
        if values.type != column.type:
            return f"column {column.name} is {values.type} instead of {column.type}"
        if values.null_count and not column.nullable:
            return f"column {column.name} has {values.null_count} empty values and may have none"
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            return f"column {column.name} holds a value that is not finite"
    return None
