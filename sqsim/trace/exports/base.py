# SPDX-License-Identifier: Apache-2.0
"""Contract of an exporter, and the export itself: write, read back, and name what the format could not say.

What an export loses is not listed by hand: every task that is written is read back by sqsim's own importer of the format
and compared field by field (losses.py). So a loss is named exactly if the task that comes back differs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.exports.losses import losses
from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Task


class Export(NamedTuple):
    """Summary of an export: tasks and JSON values written, what could not be said, and what was assumed, with counts."""

    tasks: int
    lines: int
    lost: dict[str, int]
    assumed: dict[str, int]


class Written(NamedTuple):
    """JSON values that say some tasks, and these tasks in the order in which they are read back."""

    values: list[dict[str, Any]]
    tasks: list[Task]


class Exporter(ABC):
    """Writer of one format. An object writes one file; `assumed` counts what it had to make up.

    `families`: whether a task and its sub-agents are written together. `directory`: a file a family, in a directory.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    families: ClassVar[bool] = False
    directory: ClassVar[bool] = False
    block_tokens: ClassVar[int] = 512

    def __init__(self, block_tokens: int | None = None) -> None:
        self.block = self.block_tokens if block_tokens is None else block_tokens
        self.assumed: Counter[str] = Counter()

    @property
    @abstractmethod
    def reader(self) -> Format:
        """Return the importer that reads the format."""

    @abstractmethod
    def written(self, family: Sequence[Task]) -> Written:
        """Write a task, or a task with its sub-agents, as JSON values. Raises `TraceError`."""

    def lost(self, written: Written, path: Path) -> Counter[str]:
        """Read back what was written, and count what differs."""
        file = _Values(path, written.values)
        file.block_tokens = self.block
        back = list(self.reader.tasks(file, Notes()))
        assert len(back) == len(written.tasks), "each task is read back as one"
        found: Counter[str] = Counter()
        for before, after in zip(written.tasks, back, strict=True):
            found += losses(before, after)
        return found


class _Values(SourceFile):
    """Values in memory that are read as a file of theirs would be."""

    sha256 = ""

    def __init__(self, path: Path, values: Sequence[dict[str, Any]]) -> None:
        super().__init__(path)
        self._values = [json.loads(json.dumps(value)) for value in values]

    def nodes(self) -> Iterator[Node]:
        for number, value in enumerate(self._values, 1):
            yield Node(value, self.path, number)


def families_of(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Yield each root task with all of its sub-agents, in the order of the roots."""
    roots: dict[str, str] = {}
    families: dict[str, list[Task]] = {}
    for task in tasks:
        above = None if task.parent is None else task.parent.task_id
        if above is not None and above not in roots:
            raise TraceError(
                f"task {task.task_id}: no earlier task is called {above!r}", fix="write parents first"
            )
        roots[task.task_id] = task.task_id if above is None else roots[above]
        families.setdefault(roots[task.task_id], []).append(task)
    yield from families.values()
