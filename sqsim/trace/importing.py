# SPDX-License-Identifier: Apache-2.0
"""Import any known file as checked tasks: recognise the format, import, fill in what is missing, label it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sqsim.base.random_streams import generator
from sqsim.base.workers import Progress
from sqsim.errors import InputError, TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.formats import FORMATS
from sqsim.trace.formats.base import Filling, Options, SourceFile, Unit
from sqsim.trace.formats.notes import LeftOut, Notes
from sqsim.trace.formats.sqtrace import named, read_sqtrace
from sqsim.trace.gathering import SUFFIXES, Evidence, gathered
from sqsim.trace.latency import tool_latency_s
from sqsim.trace.recount import Recount, Recounting
from sqsim.trace.references import synthesise_uses
from sqsim.trace.schema import KINDS, SCHEMA, Task

_log = logging.getLogger(__name__)


@dataclass
class ImportReport:
    """Report of an import: the tasks, the format of each file, the changes made, and the files left out."""

    tasks: list[Task] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    warnings: dict[str, int] = field(default_factory=dict)  # what, and how often
    carries: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> how -> tasks
    usage: str | None = None  # the share of calls whose token counts were recorded, or what became of them
    left_out: list[LeftOut] = field(default_factory=list)
    references: dict[str, int] = field(
        default_factory=dict
    )  # kind of evidence in texts -> references that it found


class Import:
    """Import of files and directories in the order given, task by task; ids must be unique across all of them.

    Iterate once over it: the report is complete after the last task, and holds no tasks. A file that cannot be read is left out,
    named and counted, unless `strict` is given or nothing else is left. References and tool latencies that a file lacks are
    drawn (keyed by `seed`), or with "none" left absent. `tokens` (`recorded`, `model`, `scale=X`) selects the model that they
    are counted for (`recount.py`). `block_tokens` states what a hash id stands for, where a file neither states nor shows it.
    `progress` is told the number of files that were read, of all. Raises `TraceError`, also from the iteration.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        format: str = "auto",  # noqa: A002 - the flag's name
        *,
        references: str = "synthesise",
        timing: str = "synthesise",
        tokens: str = "recorded",
        seed: int = 0,
        licence: str | None = None,
        strict: bool = False,
        block_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if block_tokens is not None and not 1 <= block_tokens <= 10**9:
            raise InputError(f"block_tokens {block_tokens} is no size of a block; give 1 or more tokens")
        self._options = Options(
            _filling("references", references), _filling("timing", timing), seed, licence, block_tokens
        )
        self._recounting = Recounting(Recount.named(tokens))
        self._paths, self._format, self._progress = [Path(path) for path in paths], format, progress
        self._notes = Notes(strict=strict)
        self.report = ImportReport()

    def __iter__(self) -> Iterator[Task]:
        report, notes = self.report, self._notes
        carried = {kind: Counter[str]() for kind in KINDS}
        found = _imported(self._paths, self._format, self._options, notes, report.evidence, self._progress)
        for task in self._recounting.tasks(found):
            for kind in KINDS:
                carried[kind][task.carries.label(kind)] += 1
            yield task
        report.warnings = dict(sorted(notes.items()))
        report.usage = self._recounting.said or notes.share_of_usage()
        report.left_out = notes.left_out
        report.references = dict(notes.evidence.most_common())
        report.carries = {kind: dict(sorted(counts.items())) for kind, counts in carried.items()}


def import_files(paths: Sequence[str | Path], format: str = "auto", **options: Any) -> ImportReport:  # noqa: A002 - the flag's name
    """Import files and directories whole: the report of `Import`, with its tasks. `options` are those of `Import`."""
    made = Import(paths, format, **options)
    made.report.tasks = list(made)
    return made.report


def _filling(name: str, value: str) -> Filling:
    fillings: dict[str, Filling] = {"synthesise": "synthesise", "none": "none"}
    if value not in fillings:
        raise InputError(f"{name} {value!r} does not exist; choose {' or '.join(fillings)}")
    return fillings[value]


def stream(path: str | Path) -> Iterator[Task]:
    """Stream the tasks of one file or directory; the changes that the import made are logged at the end."""
    notes = Notes()
    yield from _imported([Path(path)], "auto", Options(), notes, [])
    for name, reason in notes.left_out:
        _log.warning("%s: left out: %s", name, reason)
    for note, times in sorted(notes.items()):
        _log.warning("%s: %s (%d times)", path, note, times)


def _imported(
    paths: Sequence[Path],
    format_name: str,
    options: Options,
    notes: Notes,
    evidence: list[Evidence],
    progress: Progress | None = None,
) -> Iterator[Task]:
    if format_name not in {"auto", SCHEMA, *FORMATS}:
        raise TraceError(
            f"format {format_name!r} does not exist", fix=f"choose auto, {SCHEMA} or {', '.join(FORMATS)}"
        )
    files = gathered(paths, format_name, evidence, notes)
    checks = Checks()
    # One file that cannot be read is an error; of several, the others go on, so none may have given tasks before.
    alone = files.number == 1 or notes.strict
    empty = True
    read = 0

    def told(more: int) -> None:
        nonlocal read
        read += more
        if progress is not None:
            progress(read, files.number)

    for kind, members in files.known:
        if isinstance(kind, str):
            for file in members:
                for task in read_sqtrace(file.path, checks):
                    empty = False
                    yield task
                told(1)
            continue
        before = read
        for file in members:
            file.licence = options.licence
            file.block_tokens = options.block_tokens
        units = kind.units(members, notes)
        for unit in units if alone else _readable(units, members, notes):
            tasks = _tasks(unit, options, notes, checks)
            for task in tasks if alone else _whole(tasks, unit.file.path, notes, checks):
                empty = False
                yield task
            told(1 if read < before + len(members) else 0)
        told(before + len(members) - read)  # a unit may be several files
        for file in members:
            if file.cut is not None:
                _cut_off(file.cut, notes)
    if empty:
        raise _nothing(paths, notes)


def _readable(units: Iterator[Unit], members: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
    """Yield the units; a fault that lies before any of them leaves out the file, as other files are read too."""
    try:
        yield from units
    except TraceError as fault:
        notes.unreadable(members[0].path, fault)


def _tasks(unit: Unit, options: Options, notes: Notes, checks: Checks) -> Iterator[Task]:
    """Yield the tasks of one unit, filled in and checked."""
    path = unit.file.path
    empty = silent = True
    try:
        for task in unit.tasks():
            empty = False
            silent = silent and not any(turn.calls for turn in task.turns)
            yield checks.task(filled(task, options), file=path)
    except ValidationError as error:  # each count is a count, yet together they are beyond a task's bounds
        raise named(error, file=path) from None
    if empty and unit.part:
        notes["a session without an answered call was left out"] += 1
        return
    if empty:
        raise TraceError("the file holds no task", file=path, fix="an empty trace is not a trace")
    if silent:
        notes["a recording without any tool call: nothing in it can be evicted"] += 1


def _whole(tasks: Iterator[Task], path: Path, notes: Notes, checks: Checks) -> list[Task]:
    """Return all tasks of a unit, or none if one of them cannot be read."""
    whole: list[Task] = []
    before, usage, evidence = dict(notes), notes.usage.copy(), notes.evidence.copy()
    try:
        whole.extend(tasks)
    except TraceError as fault:
        for task in whole:
            checks.forget(task)
        notes.clear()
        notes.update(before)
        notes.usage, notes.evidence = usage, evidence
        notes.unreadable(path, fault)
        return []
    return whole


def _cut_off(fault: TraceError, notes: Notes) -> None:
    if notes.strict:
        raise fault
    notes[f"{fault.file}:{fault.line}: the last line is cut off; the file was read up to it"] += 1


def _nothing(paths: Sequence[Path], notes: Notes) -> TraceError:
    """Build the error for an import of several files that gives no task."""
    first = notes.left_out[0] if notes.left_out else None
    return TraceError(
        "holds nothing that can be imported" + (f" ({first.path}: {first.reason})" if first else ""),
        file=", ".join(map(str, paths)),
        fix=f"importable are {SCHEMA} and {', '.join(FORMATS)} in files named {', '.join(sorted(SUFFIXES))}",
    )


def filled(task: Task, options: Options) -> Task:
    """Draw the tool latencies and references that a task lacks, and label them so."""
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
