# SPDX-License-Identifier: Apache-2.0
"""A record written while its run goes on, so that a long run keeps no more rows in memory than a short one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from sqsim.base.directories import whole_directory
from sqsim.record.files import TableFile, check_writable, seal
from sqsim.record.schema import TABLES, Rows


class Recorder:
    """The rows of each table of a record, and the files that they are written to."""

    def __init__(self, directory: Path, files: dict[str, TableFile], schemas: Mapping[str, pa.Schema]) -> None:
        self._directory, self._files = directory, files
        self.rows = {name: Rows(schemas[name], files[name].write) for name in files}

    def finish(self, run: dict[str, Any], timing: dict[str, Any]) -> None:
        """Write the last rows, then run.json and timing.json."""
        sums = {}
        for name, file in self._files.items():
            self.rows[name].flush()
            sums[name] = file.close()
        seal(self._directory, run, timing, sums)


@contextmanager
def recorder(
    directory: str | Path, overwrite: bool, schemas: Mapping[str, pa.Schema] = TABLES
) -> Iterator[Recorder]:
    """Open a record that replaces `directory` when it is finished; an unfinished one leaves `directory` as it was.

    RecordError: the directory is taken. RunError: it cannot be written.
    """
    check_writable(directory, overwrite)
    with whole_directory(directory, overwrite) as fresh, ExitStack() as stack:
        files = {name: stack.enter_context(TableFile(fresh, name, schema)) for name, schema in schemas.items()}
        yield Recorder(fresh, files, schemas)
