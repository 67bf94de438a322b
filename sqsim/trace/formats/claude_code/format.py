# SPDX-License-Identifier: Apache-2.0
"""Importer of Claude Code sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, SourceFile, Unit
from sqsim.trace.formats.claude_code.families import Surveyed, families, survey
from sqsim.trace.formats.claude_code.family import Family
from sqsim.trace.formats.claude_code.lines import EVENTS
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Task


class ClaudeCode(Format):
    """Claude Code: one task a session, and one a sub-agent; files of one session are read together."""

    name = "claude_code"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not all(isinstance(value, dict) and isinstance(value.get("type"), str) for value in head):
            return None
        events = [
            value
            for value in head
            if value["type"] in EVENTS and "sessionId" in value and isinstance(value.get("message"), dict)
        ]
        if not events:
            return None
        return f"{len(events)} of the first {len(head)} lines are user or assistant events with sessionId and message"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for unit in self.units([file], notes):
            yield from unit.tasks()

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a family: a session with its sub-agents, and sessions resumed or forked from it."""
        found: list[Surveyed] = []
        for file in files:
            try:
                found.append(survey(file))
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
        begins_s = min((each.begins_s for each in found if each.begins_s is not None), default=0.0)
        used: set[str] = set()
        for group in families(found):
            yield Unit(group[0].file, partial(self._family, group, begins_s, used, notes))

    def beside(self, path: Path) -> list[Path]:
        """List the files of a session's sub-agents, which lie in a folder of its name."""
        folder = path.with_name(SourceFile(path).stem) / "subagents"
        return sorted(folder.rglob("*.jsonl")) if folder.is_dir() else []

    def _family(
        self, group: Sequence[Surveyed], begins_s: float, used: set[str], notes: Notes
    ) -> Iterator[Task]:
        family = Family(notes)
        for each in group:
            family.read(each)
        yield from family.tasks(self.name, begins_s, used)
