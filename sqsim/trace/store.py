"""Reading and writing sqtrace/1: one task a line, compressed when the name ends in `.zst`, streamed both ways.

Whatever is wrong with a file is a `TraceError` that names file, line, field, problem and fix.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import zstandard

from sqsim.errors import TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.files import compressed
from sqsim.trace.formats.sqtrace import read_sqtrace
from sqsim.trace.schema import SCHEMA, Task


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write a trace and return its number of tasks. The file appears under its name only when it is complete."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            if compressed(path):
                with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as sink:
                    count = _write(path, sink, tasks)
            else:
                count = _write(path, file, tasks)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise TraceError(
            f"cannot be written: {error.strerror}", file=path, fix="check directory and disk"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write(path: Path, sink: IO[bytes] | zstandard.ZstdCompressionWriter, tasks: Iterable[Task]) -> int:
    checks = Checks()
    count = 0
    for count, task in enumerate(tasks, 1):
        checks.task(task, file=path, line=count)
        # Defaults are left out to keep lines short, so the schema, a default, is put in by hand.
        rest = task.model_dump_json(by_alias=True, exclude_defaults=True).removeprefix("{")
        sink.write(f'{{"schema":"{SCHEMA}",{rest}\n'.encode())
    if not count:
        raise TraceError("there is no task to write", file=path, fix="an empty trace is not a trace")
    return count


def read_tasks(path: str | Path) -> Iterator[Task]:
    """The tasks of a trace, streamed and checked."""
    return read_sqtrace(path)
