# SPDX-License-Identifier: Apache-2.0
"""Importer of logs of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, SourceFile, Unit
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, exchange, request_messages, responded
from sqsim.trace.formats.request_log.sessions import Agent, in_order, tasks_of
from sqsim.trace.schema import Task


class RequestLog(Format):
    """One task a conversation: calls whose prompts go on from one another."""

    name = "request_log"

    def evidence(self, head: Sequence[Any]) -> str | None:
        values = head[0] if len(head) == 1 and isinstance(head[0], list) else head
        rows = [row for row in values if request_messages(row) is not None]
        if not rows or len(rows) < len(values) or any(map(_observed, rows)):
            return None
        answered = sum(map(responded, rows))
        if answered:
            return f"{len(rows)} values hold the messages of a request, {answered} of them a response"
        if any((request_messages(row) or [{}])[-1].get("role") == "assistant" for row in rows):
            return None  # whole conversations, and no requests
        sessions = Counter(str(row.get("session_id")) for row in rows if row.get("session_id") is not None)
        repeated = sum(times for times in sessions.values() if times > 1)
        if not repeated:
            return None
        return (
            f"{len(rows)} values hold the messages of a request, {repeated} of them of a session with several"
        )

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for unit in self.units([file], notes):
            yield from unit.tasks()

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a session, or one of all calls without a session, as a log may have a file a call."""
        found: list[Exchange] = []
        for file in files:
            try:
                found.extend(self.calls(file, notes))
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
        yield from session_units(found, self.name, notes)

    def calls(self, file: SourceFile, notes: Notes) -> Iterator[Exchange]:
        """Yield the calls that a file holds."""
        number = 0
        for node in file.nodes():
            for row in node.items() if isinstance(node.value, list) else [node]:
                call = exchange(file, row, number)
                number += 1
                if call is None:
                    notes["a line that is no request was left out"] += 1
                elif str(row.get("status")) in {"failure", "failed"} or row.get("error"):
                    notes["a request that failed was left out"] += 1
                else:
                    yield call


def session_units(calls: Sequence[Exchange], format_name: str, notes: Notes) -> Iterator[Unit]:
    """Yield one unit a session, or one of all calls without a session."""
    sessions: dict[str, list[Exchange]] = {}
    for call in calls:
        sessions.setdefault(call.session, []).append(call)
    begins_s = min((call.begins_s for call in calls if call.begins_s is not None), default=0.0)
    for name, own in sessions.items():
        in_order(own)
        tasks = partial(tasks_of, Agent(name, own), format_name, begins_s, notes)
        yield Unit(own[0].file, tasks, part=len(sessions) > 1)


def _observed(row: dict[str, Any]) -> bool:
    """Whether a value is an observation of a tracing tool (Langfuse, LangSmith), which has importers of its own."""
    return "run_type" in row or (
        "traceId" in row and isinstance(row.get("type"), str) and row["type"].isupper()
    )
