# SPDX-License-Identifier: Apache-2.0
"""Read our own format, sqtrace/1: one task a line (traces/README.md documents every field)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sqsim.errors import TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.files import lines
from sqsim.trace.schema import Task

_SHOWN = 60
"""Characters of a wrong value that a message quotes."""


def read_sqtrace(path: Path, checks: Checks) -> Iterator[Task]:
    """Yield the tasks of one sqtrace/1 file, checked one by one as they are read."""
    empty = True
    for number, line in lines(path):
        yield checks.task(parse_task(line, file=path, line=number), file=path, line=number)
        empty = False
    if empty:
        raise TraceError("the file holds no task", file=path, fix="an empty trace is not a trace")


def is_sqtrace(path: Path) -> bool:
    """Whether the file's first line identifies it as ours, of this or another version."""
    first = next(lines(path), None)
    return first is not None and re.match(r'\{.*"schema"\s*:\s*"sqtrace/', first[1]) is not None


def parse_task(text: str, *, file: Path | None = None, line: int | None = None) -> Task:
    """Parse one line as a task; a fault of form is a `TraceError` (only `Checks` can find the others)."""
    try:
        return Task.model_validate_json(text)
    except ValidationError as error:
        raise named(error, file=file, line=line) from None


def named(error: ValidationError, *, file: Path | None = None, line: int | None = None) -> TraceError:
    """Make our error from pydantic's: the first fault of the task, and the number of others."""
    faults = error.errors(include_url=False)
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return TraceError(_problem(first) + more, file=file, line=line, field=_path(first["loc"]), fix=_fix(first))


def _path(loc: tuple[int | str, ...]) -> str | None:
    """Write a pydantic location as a JSON path: `turns[3].calls[0].latency_s`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".") or None


def _problem(fault: ErrorDetails) -> str:
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    if fault["type"] in {"missing", "json_invalid", "extra_forbidden"}:
        return {"missing": "is missing", "extra_forbidden": "is not a field of sqtrace/1"}.get(
            fault["type"], message
        )
    value = repr(fault["input"])
    return f"{value if len(value) <= _SHOWN else value[:_SHOWN] + '…'}: {message}"


def _fix(fault: ErrorDetails) -> str:
    return {
        "json_invalid": "every line is one JSON object",
        "extra_forbidden": "remove it; traces/README.md lists the fields",
        "missing": "add it; traces/README.md lists the fields",
    }.get(fault["type"], "traces/README.md says what the field holds")
