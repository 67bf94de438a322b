# SPDX-License-Identifier: Apache-2.0
"""Importer of Inspect's logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.inspect_log.sample import Sample, Talk
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import Trajectories, moment_s
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task


class InspectLog(Trajectories):
    """Inspect: one task a sample and epoch, and one for each other conversation in its events (sub-agents, graders)."""

    name = "inspect_log"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not head or not all(isinstance(value, dict) for value in head):
            return None
        first = head[0]
        if not isinstance(first.get("eval"), dict) or not {"samples", "results", "plan"} & first.keys():
            return None
        return "one object with eval, and samples, results or plan"

    def rows(self, node: Node) -> list[Node]:
        return node.nodes("samples") if node.get("samples") else []

    def begins_s(self, row: Node) -> float | None:
        events = row.nodes("events") if row.get("events") else []
        return moment_s(events[0], "timestamp") if events else None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        sample = Sample(row, notes)
        own = row.get("id") if isinstance(row.get("id"), str | int) else number
        epoch = row.get("epoch")
        name = f"{file.stem}:{own}" + (f".{epoch}" if isinstance(epoch, int) else "")
        talks = [talk for talk in sample.talks() if talk.reader.steps]
        return [
            transcript_task(
                self._script(file, f"{name}#{n}" if n else name, talk, arrival_s if not n else None), notes
            )
            for n, talk in enumerate(talks)
        ]

    def _script(self, file: SourceFile, name: str, talk: Talk, arrival_s: float | None) -> Transcript:
        reader = talk.reader
        return Transcript(
            task_id=name,
            source=file.source(self.name),
            prefix=reader.system,
            question=reader.question,
            question_other_tokens=reader.question_other_tokens,
            steps=reader.steps,
            timing="recorded" if talk.timed else "absent",
            model=talk.model or None,
            outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
            arrival_s=arrival_s,
        )
