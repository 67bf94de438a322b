"""From any importable file to checked tasks: recognise the format, import, fill in what is missing, label it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from sqsim.draws import generator
from sqsim.errors import InputError, TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.formats import FORMATS
from sqsim.trace.formats.base import Filling, Format, Notes, Options, SourceFile
from sqsim.trace.formats.sqtrace import is_sqtrace, named, read_sqtrace
from sqsim.trace.latency import tool_latency_s
from sqsim.trace.references import synthesise_uses
from sqsim.trace.schema import SCHEMA, Carries, Task

_log = logging.getLogger(__name__)

_SUFFIXES = {".json", ".jsonl", ".ndjson"}


class Evidence(NamedTuple):
    """A file and why it was taken for what it is: `weka_trace: one object with id, ...`."""

    path: str
    text: str


@dataclass
class ImportReport:
    """What an import found: the tasks, what each file was taken for, and what had to be changed."""

    tasks: list[Task] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    warnings: dict[str, int] = field(default_factory=dict)  # what, and how often
    carries: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> how -> tasks


def import_files(
    paths: Sequence[str | Path],
    format: str = "auto",  # noqa: A002 - the flag's name
    *,
    references: str = "synthesise",
    timing: str = "synthesise",
    seed: int = 0,
    licence: str | None = None,
) -> ImportReport:
    """Import files and directories, in the order given; ids must be new across all of them.

    In a directory, files that no importer recognises are left out and counted. References and tool latencies
    that a file lacks are drawn (keyed by `seed`), or with "none" left absent. Raises `TraceError`.
    """
    options = Options(_filling("references", references), _filling("timing", timing), seed, licence)
    report = ImportReport()
    notes: Notes = Counter()
    report.tasks = list(_imported([Path(path) for path in paths], format, options, notes, report.evidence))
    report.warnings = dict(sorted(notes.items()))
    for kind in Carries.model_fields:
        counts = Counter(getattr(task.carries, kind) for task in report.tasks)
        report.carries[kind] = dict(sorted(counts.items()))
    return report


def _filling(name: str, value: str) -> Filling:
    fillings: dict[str, Filling] = {"synthesise": "synthesise", "none": "none"}
    if value not in fillings:
        raise InputError(f"{name} {value!r} does not exist; choose {' or '.join(fillings)}")
    return fillings[value]


def stream(path: str | Path) -> Iterator[Task]:
    """The tasks of one file or directory as a stream; what an import changed is logged at its end."""
    notes: Notes = Counter()
    yield from _imported([Path(path)], "auto", Options(), notes, [])
    for note, times in sorted(notes.items()):
        _log.warning("%s: %s (%d times)", path, note, times)


def _imported(
    paths: Sequence[Path], format_name: str, options: Options, notes: Notes, evidence: list[Evidence]
) -> Iterator[Task]:
    if format_name not in {"auto", SCHEMA, *FORMATS}:
        raise TraceError(
            f"format {format_name!r} does not exist", fix=f"choose auto, {SCHEMA} or {', '.join(FORMATS)}"
        )
    checks = Checks()
    for path in paths:
        count = 0
        for file in _files(path):
            kind = _recognise(file, format_name, evidence, required=not path.is_dir())
            if kind is None:
                notes["a file of no known format was left out"] += 1
                continue
            for task in _tasks(file, kind, options, notes, checks):
                yield task
                count += 1
        if not count:
            raise TraceError(
                "holds nothing that can be imported",
                file=path,
                fix=f"importable are {SCHEMA} and {', '.join(FORMATS)} in files named {', '.join(sorted(_SUFFIXES))}",
            )


def _files(path: Path) -> Iterator[SourceFile]:
    if not path.exists():
        raise TraceError("does not exist", file=path, fix="check the path")
    if not path.is_dir():
        yield SourceFile(path)
        return
    for inner in sorted(path.rglob("*")):
        named = inner.with_suffix("") if inner.suffix == ".zst" else inner
        if inner.is_file() and named.suffix in _SUFFIXES and not inner.name.startswith("."):
            yield SourceFile(inner)


def _recognise(
    file: SourceFile, format_name: str, evidence: list[Evidence], *, required: bool
) -> Format | str | None:
    """The file's format, SCHEMA for our own; None if no importer knows it and none has to."""
    if format_name != "auto":
        evidence.append(Evidence(str(file.path), f"{format_name}: as told"))
        return FORMATS.get(format_name, SCHEMA)
    if is_sqtrace(file.path):
        evidence.append(Evidence(str(file.path), f"{SCHEMA}: the first line says so"))
        return SCHEMA
    importable = f"importable are {SCHEMA}, {', '.join(FORMATS)}"
    try:
        head = file.head
    except TraceError as fault:
        raise TraceError(
            fault.problem, file=fault.file, line=fault.line, fix=f"{fault.fix}; {importable}"
        ) from None
    for known in FORMATS.values():
        found = known.evidence(head)
        if found is not None:
            evidence.append(Evidence(str(file.path), f"{known.name}: {found}"))
            return known
    if required:
        first = head[0]
        shown = (
            f"an object with {', '.join(list(first)[:8])}" if isinstance(first, dict) else type(first).__name__
        )
        raise TraceError(
            f"no importer recognises it; it begins with {shown}",
            file=file.path,
            fix=f"{importable}; --format names one",
        )
    return None


def _tasks(
    file: SourceFile, kind: Format | str, options: Options, notes: Notes, checks: Checks
) -> Iterator[Task]:
    if isinstance(kind, str):
        yield from read_sqtrace(file.path, checks)
        return
    file.licence = options.licence
    empty = True
    try:
        for task in kind.tasks(file, notes):
            empty = False
            yield checks.task(filled(task, options), file=file.path)
    except ValidationError as error:  # each count is a count, yet together they are beyond a task's bounds
        raise named(error, file=file.path) from None
    if empty:
        raise TraceError("the file holds no task", file=file.path, fix="an empty trace is not a trace")


def filled(task: Task, options: Options) -> Task:
    """The task with tool latencies and references drawn where it has none, and labelled so."""
    if options.timing == "synthesise" and task.carries.timing == "absent" and task.turns:
        task = _with_latencies(task, options.seed)
    if options.references == "synthesise" and task.carries.references == "absent":
        task = synthesise_uses(task, options.seed)
    return task


def _with_latencies(task: Task, seed: int) -> Task:
    turns = []
    for index, turn in enumerate(task.turns):
        draws = generator(seed, "latency", task.task_id, index)
        calls = (call.model_copy(update={"latency_s": tool_latency_s(call.tool, draws)}) for call in turn.calls)
        turns.append(turn.model_copy(update={"calls": tuple(calls)}))
    carries = task.carries.model_copy(update={"timing": "synthesised"})
    return task.model_copy(update={"turns": tuple(turns), "carries": carries})
