# SPDX-License-Identifier: Apache-2.0
"""Make the tasks of the logged calls of a session: one a thread, sub-agents after the thread that started them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.conversation import Told, told
from sqsim.trace.formats.request_log.exchange import Exchange
from sqsim.trace.formats.request_log.threads import Thread, threads
from sqsim.trace.formats.request_log.tool_runs import ToolRuns
from sqsim.trace.formats.transcript import transcript_task
from sqsim.trace.schema import Parent, Spawn, Task


@dataclass
class Agent:
    """Calls of an agent, and the agents that it started. `runs_in`: ids of the tool runs around it, innermost first."""

    name: str
    calls: list[Exchange] = field(default_factory=list)
    runs_in: list[str] = field(default_factory=list)
    below: list[Agent] = field(default_factory=list)


def in_order(calls: list[Exchange]) -> None:
    """Sort calls by their begin, if all have one."""
    if all(call.begins_s is not None for call in calls):
        calls.sort(key=lambda call: call.begins_s or 0.0)


def tasks_of(
    agent: Agent, format_name: str, begins_s: float, notes: Notes, runs: ToolRuns | None = None
) -> Iterator[Task]:
    """Yield the tasks of an agent's calls and of its sub-agents. Raises `TraceError`."""
    yield from _Session(format_name, begins_s, runs or ToolRuns(), notes).tasks(agent, [])


class _Session:
    def __init__(self, format_name: str, begins_s: float, runs: ToolRuns, notes: Notes) -> None:
        self.format_name, self.begins_s, self.runs, self.notes = format_name, begins_s, runs, notes
        self._names: set[str] = set()

    def tasks(self, agent: Agent, parents: Sequence[tuple[Told, Task]]) -> Iterator[Task]:
        found = threads(agent.calls, self.notes)
        if agent.name and len(found) > 1 and not parents:
            self.notes["a request that goes on from none of its session begins a task of its own"] += (
                len(found) - 1
            )
        own: list[tuple[Told, Task]] = []
        for thread in found:
            script = told(
                thread, self._name(agent, thread), self.format_name, self.begins_s, self.runs, self.notes
            )
            if script is None:
                continue
            if parents:
                _spawned(script, agent, parents, self.notes)
            task = transcript_task(script.script, self.notes)
            own.append((script, task))
            yield task
        for each in agent.below:
            yield from self.tasks(each, own)

    def _name(self, agent: Agent, thread: Thread) -> str:
        first = thread.calls[0]
        own = f"{first.file.stem}:{agent.name or first.name}"
        name, number = own, 0
        while name in self._names:
            number += 1
            name = f"{own}:{number}"
        self._names.add(name)
        return name


def _spawned(script: Told, agent: Agent, parents: Sequence[tuple[Told, Task]], notes: Notes) -> None:
    """Name the parent of a sub-agent: the turn whose tool ran it, else the last one that had ended by its begin."""
    begins_s = script.calls[0].begins_s
    ends_s = max((call.ends_s for call in script.calls if call.ends_s is not None), default=None)
    parent = turn = None
    for candidate, task in parents:
        named = next((candidate.ran_at[name] for name in agent.runs_in if name in candidate.ran_at), None)
        if named is not None and named < len(task.turns):
            parent, turn = (candidate, task), named
            break
    if parent is None and begins_s is not None:
        best = -1.0
        for candidate, task in parents:
            for index, call in enumerate(candidate.calls[: len(task.turns)]):
                if call.ends_s is not None and best < call.ends_s <= begins_s:
                    parent, turn, best = (candidate, task), index, call.ends_s
    if parent is None or turn is None:
        notes["a sub-agent whose start is in no turn of its parent is a task of its own"] += 1
        return
    candidate, task = parent
    last = len(task.turns)
    after = (
        index
        for index in range(turn + 1, last + 1)
        if index < len(candidate.calls)
        and ends_s is not None
        and (candidate.calls[index].begins_s or 0.0) >= ends_s - 0.001
    )
    script.script.parent = Parent(task_id=task.task_id, turn=turn)
    script.script.spawn = Spawn(
        turn=turn, join_turn=min(next(after, last if ends_s is not None else turn + 1), last)
    )
    script.script.arrival_s = None
