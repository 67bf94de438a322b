"""What a run leaves behind, simulated or real: a directory of two JSON files and five Parquet tables.

SPEC.md, "RunRecord", is the contract. `run.json` says what was run and on what evidence, the tables what
happened, `timing.json` how long it took here. All but `timing.json` is the *identity* of the run: the same
scenario and seed give the same bytes. A directory is written under a temporary name and moved into place
when it is whole; `run.json` is written last, so that what was cut short never reads as a record.

Times are float64 seconds, counts int64. A column is nullable where its event may not have happened: an
unadmitted turn has no `first_token_s`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqsim.errors import RecordError, RunError

SCHEMA = "sqrun/1"
COMPLETED = "completed"
"""The outcome of a task that reached its end; any other outcome is the reason why it failed."""

_GROUP_ROWS = 1 << 16
"""Rows of a Parquet row group."""
_PACK_ROWS = 1 << 13
"""Rows that wait as Python values, at some 600 bytes each, before they are packed; a group is a whole number of packs."""
_SEAL = "sha256"


def _schema(*columns: tuple[str, pa.DataType], nullable: frozenset[str] = frozenset()) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns])


_TEXT, _COUNT, _TIME = pa.string(), pa.int64(), pa.float64()

TASKS = _schema(
    ("task", _TEXT),
    ("start_s", _TIME),  # its arrival: a task that waits for a slot has started
    ("end_s", _TIME),
    ("outcome", _TEXT),  # COMPLETED, or the reason of its failure
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
    ("tool_end_s", _TIME),  # when the last tool response returned; null where no tool was waited for
    ("prompt_tokens", _COUNT),
    ("cached_tokens", _COUNT),
    ("computed_tokens", _COUNT),
    ("output_tokens", _COUNT),
    ("resident_tokens_after", _COUNT),
    ("shift", _COUNT),  # evicted in place so far: position = resident + shift
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
    ("ignored", _COUNT),  # of those, never seen at its fork, or gone when it was applied: they changed nothing
    ("applied_turn", _COUNT),  # the boundary at which its decision was applied
    ("text", _TEXT),  # what it wrote, where it was live
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
"""One row an evicted cursor. The last two columns hold hindsight: null until `metrics.judge_evictions` fills them."""

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

TABLES = {"tasks": TASKS, "turns": TURNS, "aux": AUX, "evictions": EVICTIONS, "engine": ENGINE}
_REPLICA = pa.field("replica", _COUNT, nullable=False)
REPLICATED = {
    name: schema.append(_REPLICA) if name in {"turns", "aux", "engine"} else schema
    for name, schema in TABLES.items()
}
"""The tables of a run on several replicas: what was served, or happened, on one of them says on which."""
_FILES = ("run.json", "timing.json", *(f"{name}.parquet" for name in TABLES))


class Rows:
    """A table under construction. A row has exactly the schema's columns; every value is kept or refused.

    Rows are kept for `table`, or with `write` handed on in groups, the last of them by `flush`.
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
        if tuple(columns) == names:  # as a rule they come in order
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
            if self._write is not None and len(self._batches) == _GROUP_ROWS // _PACK_ROWS:
                self.flush()

    def flush(self) -> None:
        """Hand what is here to `write`: a whole group, or the last rows."""
        assert self._write is not None, "these rows are kept"
        table = self.table()
        self._batches.clear()
        if table.num_rows:
            self._write(table)

    def _pack(self) -> None:
        # Python rows cost some 60 bytes a value, Arrow 8: long runs must not hold them.
        columns = zip(*self._pending, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        self._batches.append(pa.record_batch(arrays, schema=self.schema))
        self._pending.clear()

    def table(self) -> pa.Table:
        """All rows so far; more may be appended."""
        if self._pending:
            self._pack()
        return pa.Table.from_batches(self._batches, schema=self.schema)


@dataclass(slots=True)
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
        """One of the five tables by its name in `TABLES`."""
        return getattr(self, name)


def _fault(table: pa.Table, name: str) -> str | None:
    """Name what makes a table unfit for its schema, if anything does."""
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


def _json_bytes(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _sealed(run: dict[str, Any]) -> str:
    """The sha256 of run.json's content, which stands in it: what was changed since does not read as a record."""
    return hashlib.sha256(_json_bytes(run)).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class TableFile:
    """A record's table on disk, written a group of rows at a time.

    The bytes depend on the rows and not on how they came together. ValueError: rows break the schema.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema) -> None:
        self.name, self._schema, self._path = name, schema, directory / f"{name}.parquet"
        # A file of our own: pyarrow takes no path that is not UTF-8, and reports a full disk in words of its own.
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", compression_level=3)

    def write(self, rows: pa.Table) -> None:
        """Write the next group: `_GROUP_ROWS` rows, in the last group fewer."""
        if (fault := _fault(rows, self.name)) is not None:
            raise ValueError(f"{self.name} {fault}")
        self._writer.write_table(rows.combine_chunks(), row_group_size=_GROUP_ROWS)  # one group of one chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()

    def close(self) -> str:
        """Nothing more follows; the file's sha256."""
        self._shut()
        _sync(self._path)
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _shut(self) -> None:
        self._writer.close()
        self._file.close()


def seal(directory: Path, run: dict[str, Any], timing: dict[str, Any], sums: dict[str, str]) -> None:
    """Write the JSON files beside tables of these sha256: what makes a directory a record."""
    run = {"schema": SCHEMA, **run, "tables_sha256": sums}
    run[_SEAL] = _sealed(run)
    # Last: without run.json a directory is no record.
    for name, content in (("timing.json", timing), ("run.json", run)):
        (directory / name).write_bytes(_json_bytes(content))
        _sync(directory / name)
    _sync(directory)


def _write_files(record: RunRecord, directory: Path) -> None:
    sums = {}
    for name in TABLES:
        table = record.table(name)
        with TableFile(directory, name, table.schema) as file:
            for start in range(0, table.num_rows, _GROUP_ROWS):
                file.write(table.slice(start, _GROUP_ROWS))
            sums[name] = file.close()
    seal(directory, record.run, record.timing, sums)


def _check(record: RunRecord) -> None:
    if record.run.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"this code writes {SCHEMA}, the record says {record.run['schema']!r}")
    for name in TABLES:
        if (fault := _fault(record.table(name), name)) is not None:
            raise ValueError(f"{name} {fault}")


def is_record(directory: str | Path) -> bool:
    """Whether this directory is a record, of any version."""
    try:
        content = json.loads((Path(directory) / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("schema", "")).startswith("sqrun/")


def check_place(directory: str | Path) -> None:
    """Refuse a place where no directory is or can be made: RecordError names it and the fix."""
    target = Path(directory)
    if not os.path.lexists(target):
        above = next(parent for parent in target.absolute().parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RecordError(f"{target}: no directory can be made in {above}; choose another --output-dir")
    elif not target.is_dir():
        raise RecordError(f"{target}: exists and is not a directory; choose another --output-dir")


def check_writable(directory: str | Path, overwrite: bool = False) -> None:
    """Refuse what `write_record` would refuse, before a long run: RecordError names the directory and the fix."""
    check_place(directory)
    target = Path(directory)
    if not target.exists() or not any(target.iterdir()):
        return
    if not is_record(target):
        raise RecordError(
            f"{target}: exists and is not a record, so it is never replaced; choose another --output-dir"
        )
    if not overwrite:
        raise RecordError(
            f"{target}: a record is there already; choose another --output-dir, or add --overwrite"
        )


def write_record(record: RunRecord, directory: str | Path, overwrite: bool = False) -> None:
    """Write a record so that `directory` holds either all of it or what it held before.

    `overwrite` replaces a record, and nothing but a record. Replacing takes two renames: a crash between
    them leaves the new record whole beside the place, under a name that starts with a dot, and no record in it.
    RecordError: the directory is taken. RunError: it cannot be written. ValueError: the record breaks its own schema.
    """
    _check(record)
    check_writable(directory, overwrite)
    with whole_directory(directory, overwrite) as fresh:
        _write_files(record, fresh)


@contextmanager
def whole_directory(directory: str | Path, overwrite: bool) -> Iterator[Path]:
    """A directory to fill, which takes its name when it is whole; until then the name holds what it held before.

    Whether it may be replaced is for the caller to check first. RunError: it cannot be written.
    """
    target = Path(os.path.abspath(directory))  # noqa: PTH100  (a symbolic link is replaced by name, not followed)
    mark = secrets.token_hex(4)
    fresh, old = (target.parent / f".{target.name}.{mark}.{state}" for state in ("partial", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        yield fresh
        _swap(fresh, target, old, overwrite)
        _sync(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{target}: cannot be written: {reason}; free some space, or choose another --output-dir"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if old.is_symlink():
            old.unlink()
        elif target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _swap(fresh: Path, target: Path, old: Path, overwrite: bool) -> None:
    """Move what stands at `target` to `old` and `fresh` into its place, or put back what stood there."""
    try:
        # Without `overwrite` what appeared meanwhile stays: a rename replaces an empty directory only.
        if target.is_symlink() or (overwrite and target.exists() and any(target.iterdir())):
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            old.rename(target)
        raise


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}; check the file's permissions") from error


def no_constant(name: str) -> NoReturn:
    """For `json.loads(..., parse_constant=no_constant)`: NaN and Infinity are a ValueError."""
    raise ValueError(f"{name} is not a number")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_bytes(path), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: cannot be read as JSON ({error}); run the scenario again") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}: is not a JSON object; run the scenario again")
    return content


def _read_run(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        what = "is no directory" if directory.exists() else "no such directory"
        raise RecordError(f"{directory}: {what}; give the --output-dir of a run")
    for work in ("plan", "region", "sweep"):
        if (directory / f"{work}.json").is_file():
            raise RecordError(
                f"{directory}: holds a {work}, no run; `sqsim report {directory} -o FILE.html` shows it by itself, and what "
                "`sqsim sweep --records` keeps in records/ are runs"
            )
    if missing := [name for name in _FILES if not (directory / name).is_file()]:
        raise RecordError(
            f"{directory}: not a whole record: {', '.join(missing)} missing; run the scenario again"
        )
    run = _read_json(directory / "run.json")
    if run.get("schema") != SCHEMA:
        raise RecordError(
            f"{directory / 'run.json'}: schema is {run.get('schema')!r}, this version reads {SCHEMA!r}; run the scenario again"
        )
    if run.pop(_SEAL, None) != _sealed(run):
        raise RecordError(
            f"{directory / 'run.json'}: damaged, changed by hand, or of an older version: its sha256 is not that "
            "of its content; run the scenario again"
        )
    return run


def read_record(directory: str | Path, allow_incomplete: bool = False) -> RunRecord:
    """Read a record; RecordError where it is missing, cut short, damaged or of another version.

    A run that says of itself `status: incomplete` is refused unless `allow_incomplete`.
    """
    path = Path(directory)
    run = _read_run(path)
    if run.get("status", "complete") != "complete" and not allow_incomplete:
        raise RecordError(
            f"{path}: the run was not completed (status {run['status']!r}); run the scenario again"
        )
    sums = run.pop("tables_sha256", {})
    tables: dict[str, pa.Table] = {}
    for name in TABLES:
        file = path / f"{name}.parquet"
        content = _bytes(file)
        if not isinstance(sums, dict) or hashlib.sha256(content).hexdigest() != sums.get(name):
            raise RecordError(
                f"{file}: damaged, or of another run: its sha256 is not the one in run.json; run the scenario again"
            )
        table = pq.read_table(pa.BufferReader(content))
        if (fault := _fault(table, name)) is not None:
            raise RecordError(f"{file}: {fault}; run the scenario again with this version")
        tables[name] = table
    return RunRecord(run=run, timing=_read_json(path / "timing.json"), **tables)


def identity(directory: str | Path) -> str:
    """sha256 of everything in a record but `timing.json`: equal for one scenario and seed."""
    path = Path(directory)
    _read_run(path)
    total = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        name = file.relative_to(path).as_posix()
        if name != "timing.json":
            total.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n".encode())
    return total.hexdigest()
