# SPDX-License-Identifier: Apache-2.0
"""Import the oldest form of Codex rollouts: a header line, then bare items without a time or token counts.

An output is JSON text whose `metadata` has the tool's duration and exit code. The items are those of later rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.codex.rollout import Rollout
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import Trajectories, like, moment_s
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_ITEMS = {"message", "reasoning", "function_call", "function_call_output", "local_shell_call"}


class CodexBare(Trajectories):
    """Oldest Codex rollouts: one task a file."""

    name = "codex_bare"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not head or not isinstance(head[0], dict) or not {"id", "timestamp"} <= head[0].keys():
            return None
        if {"type", "payload", "role"} & head[0].keys() or not all(isinstance(value, dict) for value in head):
            return None
        items = [value for value in head[1:] if "record_type" not in value]
        if not items or not all(str(value.get("type")) in _ITEMS and "payload" not in value for value in items):
            return None
        return f"a header with id and timestamp, then {len(items)} items without payload"

    def rows(self, node: Node) -> list[Node]:
        """A rollout is its file: the header stands for it."""
        return (
            [node]
            if isinstance(node.value, dict) and "type" not in node.value and "timestamp" in node.value
            else []
        )

    def begins_s(self, row: Node) -> float | None:
        return moment_s(row, "timestamp")

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        if number:
            notes["a second header in a rollout was left out"] += 1
            return []
        rollout = Rollout(notes, counted=False, leads=False)
        for line in file.nodes():
            if isinstance(line.value, dict) and "type" not in line.value:
                continue  # the header, and `record_type` lines of state
            rollout.read(like(line, {"type": "response_item", "payload": line.value}))
        rollout.finish()
        steps = [model.step for model in rollout.models]
        if not steps:
            return []
        calls = [call for step in steps for call in step.calls if call.response is not None]
        timed = bool(calls) and all('"duration_seconds"' in (call.response or "") for call in calls)
        return [
            transcript_task(
                Transcript(
                    task_id=row.optional_text("id") or file.stem,
                    source=file.source(self.name),
                    prefix=row.optional_text("instructions"),
                    question=rollout.question,
                    question_other_tokens=rollout.question_other_tokens,
                    steps=steps,
                    timing="recorded" if timed else "absent",
                    outcome=Outcome(finish="unknown" if steps[-1].calls else "answer"),
                    arrival_s=arrival_s,
                ),
                notes,
            )
        ]
