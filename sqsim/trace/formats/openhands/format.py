# SPDX-License-Identifier: Apache-2.0
"""Importer of OpenHands histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.openhands.events import read_event
from sqsim.trace.formats.openhands.history import History
from sqsim.trace.formats.openhands.kinds import read_kind
from sqsim.trace.formats.trajectories import Trajectories, like, moment_s
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task


class OpenHands(Trajectories):
    """OpenHands: one task a run (a line of `output.jsonl`)."""

    name = "openhands"

    def evidence(self, head: Sequence[Any]) -> str | None:
        runs = head[0] if len(head) == 1 and isinstance(head[0], list) else list(head)
        events = [event for run in runs for event in _first(run)]
        good = all(
            isinstance(run, dict) and isinstance(run.get("history"), list | None) and "history" in run
            for run in runs
        )
        if not good or not events or not all(_is_event(event) for event in events):
            return None
        form = "kind" if "kind" in events[0] else "action or observation"
        return f"{len(runs)} runs whose history holds events with {form}"

    def rows(self, node: Node) -> list[Node]:
        return node.items() if isinstance(node.value, list) else [node]

    def begins_s(self, row: Node) -> float | None:
        events = _events(row)
        return moment_s(events[0], "timestamp") if events else None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        history = History(notes, _usages(row))
        for event in _events(row):
            if event.get("kind") is not None:
                read_kind(history, event)
            else:
                read_event(history, event)
        history.finish()
        if not history.steps:
            return []
        own = row.get("instance_id")
        metadata = row.get("metadata")
        config = metadata.get("llm_config") or metadata.get("llm") if isinstance(metadata, dict) else None
        model = config.get("model") if isinstance(config, dict) else None
        answered = any(call.response is not None for step in history.steps for call in step.calls)
        return [
            transcript_task(
                Transcript(
                    task_id=f"{file.stem}:{own if isinstance(own, str | int) and own != '' else number}",
                    source=file.source(self.name),
                    prefix=history.system,
                    question=history.question,
                    question_other_tokens=history.question_other_tokens,
                    steps=history.steps,
                    timing="recorded" if history.timed and answered else "absent",
                    model=model if isinstance(model, str) else None,
                    outcome=Outcome(finish="answer" if not row.get("error") else "unknown"),
                    arrival_s=arrival_s,
                ),
                notes,
            )
        ]


def _first(run: Any) -> list[Any]:
    """Return the first events of a run; the oldest form pairs an action and its observation."""
    history = run.get("history") if isinstance(run, dict) else None
    events = history[:8] if isinstance(history, list) else []
    return [event for each in events for event in (each if isinstance(each, list) else [each])]


def _is_event(event: Any) -> bool:
    return isinstance(event, dict) and (
        isinstance(event.get("action"), str)
        or isinstance(event.get("observation"), str)
        or (isinstance(event.get("kind"), str) and ("source" in event or "id" in event))
    )


def _events(row: Node) -> list[Node]:
    entries = row.nodes("history") if row.get("history") else []
    events = [event for each in entries for event in (each.items() if isinstance(each.value, list) else [each])]
    for event in events:
        if not isinstance(event.value, dict):
            raise event.wrong("is not an event", fix="an event is an object")
    return events


def _usages(row: Node) -> dict[str, Node]:
    """Return the token counts of a run's calls by response id."""
    metrics = row.node("metrics") if isinstance(row.get("metrics"), dict) else like(row, {})
    usages = metrics.nodes("token_usages") if metrics.get("token_usages") else []
    return {usage.text("response_id"): usage for usage in usages if usage.get("response_id")}
