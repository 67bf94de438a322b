# SPDX-License-Identifier: Apache-2.0
"""Read and write traces: sqtrace/1 is one task a line, compressed when the name ends in `.zst`.

Both ways are streamed, and every fault of a file is a `TraceError` that names file, line, field,
problem and fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sqsim.errors import TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.files import written_whole
from sqsim.trace.importing import stream
from sqsim.trace.schema import SCHEMA, Task


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write a trace and return its number of tasks. The file appears under its name only when it is complete."""
    path = Path(path)
    checks = Checks()
    count = 0
    with written_whole(path) as sink:
        for count, task in enumerate(tasks, 1):
            checks.task(task, file=path, line=count)
            # Defaults are left out to keep lines short, so the schema, a default, is put in by hand.
            rest = task.model_dump_json(by_alias=True, exclude_defaults=True).removeprefix("{")
            sink.write(f'{{"schema":"{SCHEMA}",{rest}\n'.encode())
        if not count:
            raise TraceError("there is no task to write", file=path, fix="an empty trace is not a trace")
    return count


def read_tasks(path: str | Path) -> Iterator[Task]:
    """Stream the checked tasks of a trace: sqtrace/1, any importable file, or a directory of them."""
    return stream(path)
