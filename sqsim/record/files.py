# SPDX-License-Identifier: Apache-2.0
"""A record on disk: a directory of two JSON files and five Parquet tables, written whole or not at all.

`run.json` is written last, so an interrupted write never reads as a record. It holds the sha256 of each table and of
itself, so a record that was changed later is refused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sqsim.base.directories import check_place, sync, whole_directory
from sqsim.base.given_path import given_path
from sqsim.base.strict_json import SEAL, is_whole, json_bytes, no_constant, sealed
from sqsim.errors import RecordError
from sqsim.record.schema import GROUP_ROWS, SCHEMA, TABLES, RunRecord, fault

_FILES = ("run.json", "timing.json", *(f"{name}.parquet" for name in TABLES))


class TableFile:
    """A record's table on disk, written a group of rows at a time.

    The bytes depend on the rows alone, not on how they were grouped. ValueError: rows break the schema.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema) -> None:
        self.name, self._schema, self._path = name, schema, directory / f"{name}.parquet"
        # We open the file: pyarrow takes no path that is not UTF-8, and it words a full disk differently.
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", compression_level=3)

    def write(self, rows: pa.Table) -> None:
        """Write the next group of `GROUP_ROWS` rows; the last group may have fewer."""
        if (wrong := fault(rows, self.name)) is not None:
            raise ValueError(f"{self.name} {wrong}")
        self._writer.write_table(rows.combine_chunks(), row_group_size=GROUP_ROWS)  # one group of one chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()

    def close(self) -> str:
        """Close the file and return its sha256."""
        self._shut()
        sync(self._path)
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _shut(self) -> None:
        self._writer.close()
        self._file.close()


def seal(directory: Path, run: dict[str, Any], timing: dict[str, Any], sums: dict[str, str]) -> None:
    """Write the JSON files that make a directory of tables a record; `sums` are the tables' sha256."""
    run = sealed({"schema": SCHEMA, **run, "tables_sha256": sums})
    # run.json last: without it a directory is no record.
    for name, content in (("timing.json", timing), ("run.json", run)):
        (directory / name).write_bytes(json_bytes(content))
        sync(directory / name)
    sync(directory)


def _write_files(record: RunRecord, directory: Path) -> None:
    sums = {}
    for name in TABLES:
        table = record.table(name)
        with TableFile(directory, name, table.schema) as file:
            for start in range(0, table.num_rows, GROUP_ROWS):
                file.write(table.slice(start, GROUP_ROWS))
            sums[name] = file.close()
    seal(directory, record.run, record.timing, sums)


def _check(record: RunRecord) -> None:
    if record.run.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"this code writes {SCHEMA}, the record states {record.run['schema']!r}")
    for name in TABLES:
        if (wrong := fault(record.table(name), name)) is not None:
            raise ValueError(f"{name} {wrong}")


def is_record(directory: str | Path) -> bool:
    """Tell whether this directory is a record, of any version."""
    try:
        content = json.loads((Path(directory) / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("schema", "")).startswith("sqrun/")


def check_writable(directory: str | Path, overwrite: bool = False) -> None:
    """Refuse, before a long run, what `write_record` would refuse; RecordError names the directory and the fix."""
    target = given_path(directory, RecordError, "choose another --output-dir")
    check_place(target)
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
    """Write a record so that `directory` holds either all of it or its earlier content.

    `overwrite` replaces a record, and nothing but a record. Replacing takes two renames: a crash between
    them leaves no record at `directory`, and the new record whole next to it, under a name that starts with a dot.
    RecordError: the directory is taken. RunError: it cannot be written. ValueError: the record breaks its own schema.
    """
    _check(record)
    check_writable(directory, overwrite)
    with whole_directory(directory, overwrite) as fresh:
        _write_files(record, fresh)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}; check the file's permissions") from error


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
    if not is_whole(run):
        raise RecordError(
            f"{directory / 'run.json'}: damaged, changed by hand, or of an older version: its sha256 is not that "
            "of its content; run the scenario again"
        )
    del run[SEAL]
    return run


def read_record(directory: str | Path, allow_incomplete: bool = False) -> RunRecord:
    """Read a record; RecordError where it is missing, cut short, damaged or of another version.

    A run whose run.json states `status: incomplete` is refused unless `allow_incomplete`.
    """
    path = given_path(directory, RecordError, "give the --output-dir of a run")
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
        if (wrong := fault(table, name)) is not None:
            raise RecordError(f"{file}: {wrong}; run the scenario again with this version")
        tables[name] = table
    return RunRecord(run=run, timing=_read_json(path / "timing.json"), **tables)


def identity(directory: str | Path) -> str:
    """Compute the sha256 of a record without `timing.json`; it is equal for one scenario and seed."""
    path = Path(directory)
    _read_run(path)
    total = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        name = file.relative_to(path).as_posix()
        if name != "timing.json":
            total.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n".encode())
    return total.hexdigest()
