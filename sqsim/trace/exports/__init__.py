# SPDX-License-Identifier: Apache-2.0
"""Exporters, one file a format (contract: `base.py`), and the export of a trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqsim.base.directories import whole_directory
from sqsim.errors import InputError, TraceError
from sqsim.trace.exports.agentic_mooncake import AgenticMooncakeExport
from sqsim.trace.exports.aiperf_messages import AIPerfMessagesExport
from sqsim.trace.exports.base import Export, Exporter, Written, families_of
from sqsim.trace.exports.mooncake import AIPerfExport, MooncakeExport
from sqsim.trace.exports.openai_chat import OpenAIChatExport
from sqsim.trace.exports.weka import WekaExport
from sqsim.trace.files import check_free, written_whole
from sqsim.trace.schema import Task

__all__ = ["EXPORTERS", "Export", "Exporter", "export", "exporter"]

EXPORTERS: dict[str, type[Exporter]] = {
    kind.name: kind
    for kind in (
        MooncakeExport,
        AIPerfExport,
        AgenticMooncakeExport,
        WekaExport,
        OpenAIChatExport,
        AIPerfMessagesExport,
    )
}
"""By the names that `--to` takes."""


def exporter(to: str, block_tokens: int | None = None) -> Exporter:
    """Return a new exporter by its name. Raises `InputError`."""
    if to not in EXPORTERS:
        raise InputError(f"--to {to!r} is no known format; use {', '.join(EXPORTERS)}")
    if block_tokens is not None and not 1 <= block_tokens <= 10**9:
        raise InputError(f"--block-tokens {block_tokens} is no size of a block; give 1 or more tokens")
    return EXPORTERS[to](block_tokens)


def export(
    tasks: Iterable[Task],
    path: str | Path,
    to: str = "mooncake",
    block_tokens: int | None = None,
    *,
    overwrite: bool = True,
) -> Export:
    """Write tasks in another tool's format; a file or directory appears under its name only when it is complete.

    Formats that tie a task to its sub-agents hold all tasks in memory; the others stream. Raises `TraceError` where there
    is no task, `InputError` where the format is unknown or `path` may not be written over.
    """
    path = Path(path)
    out = exporter(to, block_tokens)
    lost: Counter[str] = Counter()
    count = lines = 0

    def each() -> Iterator[Written]:
        nonlocal count, lines, lost
        for family in families_of(tasks) if out.families else ([task] for task in tasks):
            written = out.written(family)
            count += len(written.tasks)
            lines += len(written.values)
            lost += out.lost(written, path)
            yield written
        if not count:
            raise TraceError("there is no task to export", file=path, fix="an empty trace is not a trace")

    check_place(path, out, overwrite)
    if out.directory:
        with whole_directory(path, overwrite) as directory:
            for number, value in enumerate(value for written in each() for value in written.values):
                (directory / f"trace_{number:06}.json").write_bytes(_json(value) + b"\n")
    else:
        with written_whole(path) as sink:
            for written in each():
                for value in written.values:
                    sink.write(_json(value) + b"\n")
    return Export(count, lines, dict(lost), {text: times for text, times in out.assumed.items() if times})


def check_place(path: Path, out: Exporter, overwrite: bool) -> None:
    """Refuse to write over anything without permission, or over a directory with other files. Raises `InputError`."""
    if not out.directory:
        check_free(path, overwrite)
    elif path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; {out.name} is written as a directory, so name one")
    elif path.is_dir() and any(path.iterdir()):
        others = [inner.name for inner in path.iterdir() if not inner.match("trace_*.json")]
        if others:
            raise InputError(f"{path}: holds {others[0]}, which is no exported trace; choose another name")
        if not overwrite:
            raise InputError(f"{path}: exists already; choose another name, or add --overwrite")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
