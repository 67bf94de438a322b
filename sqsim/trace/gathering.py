# SPDX-License-Identifier: Apache-2.0
"""Gather the files that an import reads, by format.

A directory gives every file in it whose name ends as a recording's does. A format may name further files that belong
to one (a session's sub-agents); they are read with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.files import plain_name
from sqsim.trace.formats import FORMATS
from sqsim.trace.formats.base import Format, SourceFile
from sqsim.trace.formats.foreign import looks_like
from sqsim.trace.formats.inspect_log.archive import ArchiveFile, is_archive
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.dump import SUFFIX as DUMP_SUFFIX
from sqsim.trace.formats.served.dump import SglangDump, is_dump
from sqsim.trace.formats.sqtrace import is_sqtrace
from sqsim.trace.schema import SCHEMA

SUFFIXES = {".csv", ".eval", ".har", ".json", ".jsonl", ".ndjson", ".traj", DUMP_SUFFIX}
IMPORTABLE = f"importable are {SCHEMA}, {', '.join(FORMATS)}"


class Evidence(NamedTuple):
    """File and the reason for its format: `weka_trace: one object with id, ...`."""

    path: str
    text: str


@dataclass
class Gathered:
    """Files of an import by format, in the order in which the formats' first files came.

    `number` counts all files that were looked at.
    """

    known: list[tuple[Format | str, list[SourceFile]]] = field(default_factory=list)
    number: int = 0

    def add(self, kind: Format | str, file: SourceFile) -> None:
        for known, files in self.known:
            if known is kind:
                files.append(file)
                return
        self.known.append((kind, [file]))


def gathered(paths: Sequence[Path], format_name: str, evidence: list[Evidence], notes: Notes) -> Gathered:
    """Gather all files of the paths, recognised or left out. `TraceError`: a strict import, or none is left."""
    found = Gathered()
    named = {path.resolve() for path in paths}
    seen: set[Path] = set()
    faults: list[tuple[Path, TraceError]] = []
    for path in paths:
        for file in _files(path):
            if file.path.resolve() in seen and file.path.resolve() not in named:
                continue  # it was read together with another
            seen.add(file.path.resolve())
            found.number += 1
            try:
                kind = _recognise(file, format_name, evidence)
            except TraceError as fault:
                faults.append((file.path, fault))
                continue
            file.forget_head()
            found.add(kind, file)
            if isinstance(kind, str):
                continue
            for inner in kind.beside(file.path):
                if inner.resolve() not in seen | named:
                    seen.add(inner.resolve())
                    found.number += 1
                    evidence.append(Evidence(str(inner), f"{kind.name}: belongs to {file.path.name}"))
                    found.add(kind, SourceFile(inner))
    if found.number == 1 and faults and not paths[0].is_dir():
        raise faults[0][1]
    for where, problem in faults:
        notes.unreadable(where, problem)
    return found


def _files(path: Path) -> Iterator[SourceFile]:
    if not path.exists():
        raise TraceError("does not exist", file=path, fix="check the path")
    if not path.is_dir():
        yield _opened(path)
        return
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and Path(plain_name(inner)).suffix in SUFFIXES and not inner.name.startswith("."):
            yield _opened(inner)


def _opened(path: Path) -> SourceFile:
    return ArchiveFile(path) if is_archive(path) else SourceFile(path)


def _recognise(file: SourceFile, format_name: str, evidence: list[Evidence]) -> Format | str:
    """Find the file's format; SCHEMA for our own. Raises `TraceError` if no importer knows it."""
    if format_name != "auto":
        evidence.append(Evidence(str(file.path), f"{format_name}: as told"))
        return FORMATS.get(format_name, SCHEMA)
    if is_dump(file.path):
        evidence.append(Evidence(str(file.path), f"{SglangDump.name}: a pickle, read without executing it"))
        return FORMATS[SglangDump.name]
    if not isinstance(file, ArchiveFile) and is_sqtrace(file.path):
        evidence.append(Evidence(str(file.path), f"{SCHEMA}: the first line says so"))
        return SCHEMA
    try:
        head = file.head
    except TraceError as fault:
        raise TraceError(
            fault.problem, file=fault.file, line=fault.line, fix=f"{fault.fix}; {IMPORTABLE}"
        ) from None
    for known in FORMATS.values():
        text = known.evidence(head)
        if text is not None:
            evidence.append(Evidence(str(file.path), f"{known.name}: {text}"))
            return known
    foreign = looks_like(head)
    if foreign is not None:
        raise TraceError(
            f"looks like {foreign.name}, which has no importer",
            file=file.path,
            fix=f"{foreign.fix}; {IMPORTABLE}",
        )
    raise TraceError(
        f"no importer recognises it; it begins with {_shown(head[0])}",
        file=file.path,
        fix=f"{IMPORTABLE}; --format names one",
    )


def _shown(first: Any) -> str:
    if isinstance(first, dict):
        return f"an object with {', '.join(list(first)[:8]) or 'no keys'}"
    if isinstance(first, list) and first and isinstance(first[0], dict):
        return f"a list of objects with {', '.join(list(first[0])[:8]) or 'no keys'}"
    return type(first).__name__
