# SPDX-License-Identifier: Apache-2.0
"""Read CSV files as rows with their places."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from sqsim.errors import TraceError
from sqsim.trace.files import lines


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows with their line numbers, as texts by the names in the first line. Raises `TraceError`."""
    names: list[str] = []
    empty = True
    for number, text in lines(path):
        try:
            (row,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError) as error:
            raise TraceError(f"not CSV: {error}", file=path, line=number, fix="give one row a line") from None
        if not names:
            names = [name.strip().removeprefix("\ufeff") for name in row]
            continue
        if len(row) != len(names):
            raise TraceError(
                f"{len(row)} values for {len(names)} columns", file=path, line=number, fix="give one a column"
            )
        empty = False
        yield number, dict(zip(names, row, strict=True))
    if empty:
        raise TraceError("the file holds no row", file=path, fix="an empty trace is not a trace")
