# SPDX-License-Identifier: Apache-2.0
"""Importer of logs of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, SourceFile, Unit
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import Reader
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, exchange, request_messages, responded
from sqsim.trace.formats.request_log.threads import Thread, threads
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task


class RequestLog(Format):
    """One task a conversation: calls whose prompts go on from one another."""

    name = "request_log"

    def evidence(self, head: Sequence[Any]) -> str | None:
        values = head[0] if len(head) == 1 and isinstance(head[0], list) else head
        rows = [row for row in values if request_messages(row) is not None]
        if not rows or len(rows) < len(values):
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
        sessions: dict[str, list[Exchange]] = {}
        for file in files:
            try:
                for call in _calls(file, notes):
                    sessions.setdefault(call.session, []).append(call)
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
        begins = [call.begins_s for calls in sessions.values() for call in calls if call.begins_s is not None]
        begins_s = min(begins, default=0.0)
        for name, calls in sessions.items():
            if all(call.begins_s is not None for call in calls):
                calls.sort(key=lambda call: call.begins_s or 0.0)
            yield Unit(calls[0].file, partial(self._session, name, calls, begins_s, notes))

    def _session(self, name: str, calls: Sequence[Exchange], begins_s: float, notes: Notes) -> Iterator[Task]:
        found = threads(calls, notes)
        if name and len(found) > 1:
            notes["a request that goes on from none of its session begins a task of its own"] += len(found) - 1
        for number, thread in enumerate(found):
            first = thread.calls[0]
            own = (name if not number else f"{name}:{number}") if name else first.name
            script = _script(thread, f"{first.file.stem}:{own}", self.name, begins_s, notes)
            if script is not None:
                yield transcript_task(script, notes)


def _calls(file: SourceFile, notes: Notes) -> Iterator[Exchange]:
    number = 0
    for node in file.nodes():
        for row in node.items() if isinstance(node.value, list) else [node]:
            call = exchange(file, row, number)
            number += 1
            if call is None:
                notes["a line that is no request was left out"] += 1
            elif row.get("status") == "failure" or row.get("error"):
                notes["a request that failed was left out"] += 1
            else:
                yield call


def _script(thread: Thread, task_id: str, format_name: str, begins_s: float, notes: Notes) -> Transcript | None:
    first = thread.calls[0]
    reader = Reader(notes, first.tools)
    for message in first.messages:
        role = message.text("role")
        if role in {"system", "developer", "user"}:
            reader.hears(message, system=role != "user")
        else:
            notes["a message of a model or tool before the first logged request is part of the question"] += 1
            reader.heard(_told(message, notes))
    for call, following in zip(thread.calls, [*thread.calls[1:], None], strict=True):
        response = call.response
        if response is None and following is not None:
            response = following.messages[len(call.prints)]
        if response is None:
            notes["a last request without a response was left out"] += 1
            break
        before = len(reader.steps)
        reader.says(response)
        step = reader.steps[-1]
        step.prompt, step.output = call.usage or (None, None)
        assert len(reader.steps) == before + 1, "an answer to a prompt is a step of its own"
        if following is None:
            break
        for message in following.messages[len(call.prints) + 1 :]:
            if message.get("role") == "assistant":
                notes["a model's message that no request was logged for counts as a user's text"] += 1
                reader.heard(_told(message, notes))
            else:
                reader.read(message)
        _waits(reader, call, following)
    if not reader.steps:
        return None
    timed = all(call.begins_s is not None and call.ends_s is not None for call in thread.calls)
    return Transcript(
        task_id=task_id,
        source=first.file.source(format_name),
        prefix=reader.system,
        question=reader.question,
        question_other_tokens=reader.question_other_tokens,
        steps=reader.steps,
        timing="recorded" if timed else "absent",
        model=first.model,
        outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
        arrival_s=round(first.begins_s - begins_s, 3) if first.begins_s is not None else None,
    )


def _told(message: Any, notes: Notes) -> Said:
    """Write a message as text, its calls included, where it is read neither as a call nor as a response."""
    told = said(message, notes)
    calls = message.get("tool_calls")
    return Said(f"{told.text}{calls or ''}", told.other_tokens)


def _waits(reader: Reader, call: Exchange, following: Exchange) -> None:
    """Compute the waits between a response and the next request: the tools' time, or the user's."""
    if call.ends_s is None or following.begins_s is None:
        return
    wait_s = max(0.0, round(following.begins_s - call.ends_s, 3))
    step = reader.steps[-1]
    for invocation in step.calls:
        invocation.latency_s = wait_s
        invocation.parallel = len(step.calls) > 1
    if not step.calls:
        step.user_wait_s = wait_s
