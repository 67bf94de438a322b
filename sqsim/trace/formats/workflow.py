# SPDX-License-Identifier: Apache-2.0
"""Make tasks of requests that name their session, their tools and what they wait for (agentic Mooncake, Dynamo).

A format reads its lines into `Request`s, one list a session in order, and says which session started which (`Start`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqsim.trace.formats.base import Node, SourceFile, shared_out
from sqsim.trace.formats.counts import Counted, Prompt, at_least_one, grown, restarted
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import (
    Answer,
    Call,
    Carried,
    Carries,
    Outcome,
    Parent,
    Prefix,
    Question,
    Reset,
    Spawn,
    Task,
    Turn,
)


class Event(NamedTuple):
    """Tool call of a request. `span_s`: its start and end, on one clock; `tokens` of its response; None: not recorded."""

    tool: str
    latency_s: float
    span_s: tuple[float, float] | None = None
    tokens: int | None = None
    error: str | None = None


@dataclass
class Request:
    """Model call. After it its tools run, `tools_s` where no event states it; `after_s` follows the tools.

    `restarts`: whether its prompt begins a new context, as stated; None: its blocks tell.
    """

    node: Node
    prompt: Prompt
    output: int
    events: list[Event] = field(default_factory=list)
    tools_s: float = 0.0
    after_s: float = 0.0
    restarts: bool | None = None


class Start(NamedTuple):
    """Request of another session that started a session, and the one that waits for its end (None: none does)."""

    session: str
    turn: int
    join: int | None


class Workflow(NamedTuple):
    """Sessions of a file, what started them, and when they arrive (s)."""

    sessions: Mapping[str, Sequence[Request]]
    starts: Mapping[str, Start]
    arrivals: Mapping[str, float]
    block_tokens: int
    timing: Carried = "recorded"


def workflow_tasks(file: SourceFile, name: str, work: Workflow, notes: Notes) -> Iterator[Task]:
    """Yield the tasks, a sub-agent after its parent."""
    tooled = any(
        request.events or request.tools_s for requests in work.sessions.values() for request in requests
    )
    if not tooled and any(len(requests) > 1 for requests in work.sessions.values()):
        notes["no tool is recorded in a file; what a prompt grew by is taken for a tool's response"] += 1
    steps = {session: _steps(requests, work, notes) for session, requests in work.sessions.items()}
    made: dict[str, Task] = {}
    for session in _parents_first(work):
        task = _task(file, name, session, steps[session], work, tooled)
        start = work.starts.get(session)
        parent = made.get(start.session) if start is not None else None
        if start is not None and parent is not None:
            task = _started(task, parent, start, notes)
        elif start is not None:
            notes["a sub-agent whose parent waits for it to start is a task of its own"] += 1
        made[session] = task
        yield task


def _parents_first(work: Workflow) -> list[str]:
    order: dict[str, None] = {}
    for session in work.sessions:
        chain = [session]
        while (start := work.starts.get(chain[-1])) is not None and start.session not in chain:
            if start.session in order:
                break
            chain.append(start.session)
        order.update(dict.fromkeys(reversed(chain)))
    return list(order)


def _started(task: Task, parent: Task, start: Start, notes: Notes) -> Task:
    """Make a task a sub-agent, if its parent has a later step that can wait for it."""
    if start.turn >= len(parent.turns):
        notes["a sub-agent of its parent's last request is a task of its own"] += 1
        return task
    join = len(parent.turns) if start.join is None else start.join
    if start.join is None:
        notes["a sub-agent that no request waits for is joined by its parent's last one"] += 1
    spawn = Spawn(turn=start.turn, join_turn=min(max(join, start.turn + 1), len(parent.turns)))
    return task.model_copy(
        update={
            "parent": Parent(task_id=parent.task_id, turn=start.turn),
            "spawn": spawn,
            "arrival_s": None,
        }
    )


def _steps(requests: Sequence[Request], work: Workflow, notes: Notes) -> list[tuple[Request, Counted, int]]:
    steps = []
    for index, request in enumerate(requests):
        if index and request.restarts is None:
            restarts = restarted(requests[index - 1].prompt, request.prompt, work.block_tokens, notes)
        else:
            restarts = bool(index and request.restarts)
        if index and not restarts and request.prompt.tokens < requests[index - 1].prompt.tokens:
            notes["a prompt is shorter than the one before it (compaction): the context restarts"] += 1
            restarts = True
        steps.append(
            Counted(
                prompt=at_least_one(request.prompt.tokens, "a prompt", notes),
                output=at_least_one(request.output, "an output", notes),
                restarted=restarts,
            )
        )
    notes.usage["recorded"] += len(steps)
    return list(zip(requests, steps, grown(steps, notes), strict=True))


def _task(
    file: SourceFile,
    name: str,
    session: str,
    steps: Sequence[tuple[Request, Counted, int]],
    work: Workflow,
    tooled: bool,
) -> Task:
    turns: list[Turn] = []
    answer = None
    cursor = 0
    for index, (request, step, growth) in enumerate(steps):
        reset = Reset(keep_tokens=step.prompt) if step.restarted else None
        last = index + 1 == len(steps)
        if last and reset is None and not request.events:
            answer = Answer(reasoning_tokens=0, text_tokens=step.output)
            break
        unread = last or steps[index + 1][1].restarted
        turn = _turn(
            request, step.output, growth, unread, (tooled and not last) or bool(request.events), cursor
        )
        if last and not request.events:
            turn = _spoken(step.output, growth, 0.0)
        turns.append(turn.model_copy(update={"reset": reset}))
        cursor += sum(call.cursor is not None for call in turn.calls)
    first = steps[0][0].prompt
    return Task(
        task_id=session,
        source=file.source(name),
        carries=Carries(timing=work.timing, usage="recorded"),
        arrival_s=work.arrivals.get(session),
        prefix=Prefix(id="none", tokens=0),
        question=Question(
            tokens=steps[0][1].prompt,
            hash_ids=tuple(first.blocks) or None,
            block_tokens=work.block_tokens if first.blocks else None,
        ),
        turns=tuple(turns),
        answer=answer,
        outcome=Outcome(finish="unknown" if answer is None else "answer"),
    )


def _spoken(output: int, growth: int, wait_s: float) -> Turn:
    return Turn(reasoning_tokens=0, text_tokens=output, calls=(), template_tokens=growth, user_wait_s=wait_s)


def _turn(request: Request, output: int, growth: int, unread: bool, tooled: bool, cursor: int) -> Turn:
    """Make a turn; `unread`: no prompt tells what followed, so that only events do."""
    events = request.events
    if not events and tooled and not request.tools_s:
        return _spoken(output, growth, request.after_s)
    if not events:
        events = [Event("tool", request.tools_s if tooled else request.tools_s + request.after_s)]
    after_s = request.after_s if request.events or tooled else 0.0
    # How an output divides is not recorded: half of it is the calls (a guess).
    called = shared_out(output // 2, [1] * len(events))
    heard, template = _heard(events, growth, unread)
    calls = []
    for index, event in enumerate(events):
        calls.append(
            Call(
                tool=event.tool or "tool",
                call_tokens=called[index],
                cursor=cursor if event.error is None else None,
                response_tokens=heard[index],
                latency_s=event.latency_s,
                error=event.error,
                parallel=_beside(events, index),
            )
        )
        cursor += event.error is None
    return Turn(
        reasoning_tokens=0,
        text_tokens=output - sum(called),
        calls=tuple(calls),
        template_tokens=template,
        user_wait_s=after_s,
    )


def _heard(events: Sequence[Event], growth: int, unread: bool) -> tuple[list[int], int]:
    """Divide what a prompt grew by among the responses and the rest."""
    stated = [event.tokens for event in events]
    if all(tokens is None for tokens in stated):
        return shared_out(growth, [1] * len(events)), 0
    known = [tokens or 0 for tokens in stated]
    if unread:
        return known, 0
    if sum(known) > growth:
        return shared_out(growth, known), 0
    if None in stated:  # the rest belongs to those that do not state theirs
        rest = shared_out(growth - sum(known), [tokens is None for tokens in stated])
        return [a + b for a, b in zip(known, rest, strict=True)], 0
    return known, growth - sum(known)


def _beside(events: Sequence[Event], index: int) -> bool:
    """Whether a call runs at the same time as the call before or after it."""
    return any(
        _overlap(events[first], events[first + 1])
        for first in (index - 1, index)
        if first >= 0 and first + 1 < len(events)
    )


def _overlap(one: Event, other: Event) -> bool:
    if one.span_s is None or other.span_s is None:
        return False
    return max(one.span_s[0], other.span_s[0]) < min(one.span_s[1], other.span_s[1])


def waited_s(events: Sequence[Event]) -> float:
    """Compute the seconds until the last response: parallel calls wait for the longest, serial ones add up."""
    total = longest = 0.0
    for index, event in enumerate(events):
        if _beside(events, index):
            longest = max(longest, event.latency_s)
        else:
            total, longest = total + longest + event.latency_s, 0.0
    return total + longest
