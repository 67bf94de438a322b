# SPDX-License-Identifier: Apache-2.0
"""Base of formats with one or several whole agent runs a file; where all runs state when they began, they arrive so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, Node, SourceFile, Unit
from sqsim.trace.formats.messages import Reader
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Task


class Trajectories(Format):
    """Format whose values each hold whole runs, one task a run or an agent."""

    @abstractmethod
    def rows(self, node: Node) -> list[Node]:
        """List the runs of one JSON value of a file. Raises `TraceError`."""

    @abstractmethod
    def begins_s(self, row: Node) -> float | None:
        """Return the time at which a run began, in seconds since 1970; None if it is not stated."""

    @abstractmethod
    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        """Make the tasks of a run, a sub-agent after its parent; none if no model was called. Raises `TraceError`."""

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for unit in self.units([file], notes):
            yield from unit.tasks()

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a file; arrivals count from the first run of all files."""
        begun: list[float | None] = []
        for file in files:
            with suppress(TraceError):  # reading its tasks meets the fault again, and reports it
                begun += [self.begins_s(row) for node in file.nodes() for row in self.rows(node)]
        stated = [each for each in begun if each is not None]
        first_s = min(stated) if stated and len(stated) == len(begun) else None
        if stated and first_s is None:
            notes["a run does not state when it began: no run has an arrival"] += len(begun) - len(stated)
        used: set[str] = set()
        for file in files:
            yield Unit(file, partial(self._tasks, file, first_s, used, notes))

    def _tasks(self, file: SourceFile, first_s: float | None, used: set[str], notes: Notes) -> Iterator[Task]:
        number = 0
        for node in file.nodes():
            for row in self.rows(node):
                begins_s = None if first_s is None else self.begins_s(row)
                arrival_s = None if begins_s is None or first_s is None else round(begins_s - first_s, 3)
                tasks = self.made(file, row, number, arrival_s, notes)
                number += 1
                if not tasks:
                    notes["a run without a model call was left out"] += 1
                yield from _with_new_ids(tasks, used)


def _with_new_ids(tasks: Sequence[Task], used: set[str]) -> list[Task]:
    """Rename tasks whose id an earlier one of the import has, with the sub-agents that name them."""
    renamed: dict[str, str] = {}
    made = []
    for task in tasks:
        name, copies = task.task_id, 1
        while name in used:
            copies += 1
            name = f"{task.task_id}~{copies}"
        used.add(name)
        renamed[task.task_id] = name
        parent = task.parent
        if parent is not None:
            parent = parent.model_copy(update={"task_id": renamed.get(parent.task_id, parent.task_id)})
        made.append(task.model_copy(update={"task_id": name, "parent": parent}))
    return made


class TimedReader(Reader):
    """Reader of messages with times; `timed`: every message that a wait needs has one."""

    def __init__(self, notes: Notes, system: str = "") -> None:
        super().__init__(notes, system)
        self.timed = True
        self._said_s: float | None = None
        self._last_s: float | None = None

    def read_at(self, message: Node, now_s: float | None) -> None:
        """Read a message that was made at this time (seconds): a response, and a user's reply, end a wait."""
        role = message.get("role")
        waiting = [call for step in self.steps[-1:] for call in step.calls if call.response is None]
        self.read(message)
        if role in {"system", "developer"} or (role == "user" and not self.steps):
            return
        self.timed &= now_s is not None
        if now_s is None:
            return
        if role == "assistant":
            self._said_s = now_s
        answered = [call for call in waiting if call.response is not None]
        for call in answered:
            since_s = self._said_s if call.parallel else self._last_s
            call.latency_s = round(max(0.0, now_s - (now_s if since_s is None else since_s)), 3)
        if role == "user" and not answered and self.steps and self._last_s is not None:
            step = self.steps[-1]
            step.user_wait_s = round(step.user_wait_s + max(0.0, now_s - self._last_s), 3)
        self._last_s = now_s

    def finish(self) -> None:
        """Use the times of all messages, or of none."""
        if self.timed:
            return
        for step in self.steps:
            step.user_wait_s = 0.0
            for call in step.calls:
                call.latency_s = 0.0


def moment_s(node: Node, key: str) -> float | None:
    """Return a time in seconds since 1970, of ISO 8601 text or a number; None if it is missing. Raises `TraceError`."""
    value = node.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        return node.seconds(key)
    try:
        moment = datetime.fromisoformat(value)
        stated_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        stated_s = -1.0
    if stated_s < 0:
        raise node.wrong(f"{value[:60]!r} is not a time", key, "give ISO 8601, as in 2026-06-01T05:40:20.151Z")
    return stated_s


def is_list_of(value: Any, *keys: str) -> bool:
    """Whether a value is a non-empty list of objects that all have these keys."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and set(keys) <= each.keys() for each in value)
    )


def like(node: Node, value: Any) -> Node:
    """Put another value in a node's place, as when a message is written in another form."""
    return Node(value, node.file, node.line, node.path)
