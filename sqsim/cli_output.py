"""What the commands share: options, tables, JSON, progress, and files that appear whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sqsim.errors import InputError, RunError

_ANY_WIDTH = 1000
"""Columns: wider than any table of ours."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]


def print_json(value: Any) -> None:
    """One JSON value on stdout; keys in their order, no NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))  # noqa: T201 - a command's result


def print_line(text: str) -> None:
    """A line on stdout."""
    print(text)  # noqa: T201 - a command's result


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers to the right, and shortened for reading (--json has them exact)."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        number = bool(rows) and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    # A pipe or a file has no width to keep to.
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=_ANY_WIDTH)
    console.print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one a line."""
    print_rows(title, ["metric", "value"], [[name, _shown(value)] for name, value in pairs])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr when that is a terminal and nobody asked for quiet; else None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file that nobody allowed us to replace."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name, or add --overwrite")


def write_text(path: Path, text: str, overwrite: bool) -> None:
    """Write a file so that its name holds all of the text or what it held before."""
    check_free(path, overwrite)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; check directory and disk") from error
    finally:
        partial.unlink(missing_ok=True)
