# SPDX-License-Identifier: Apache-2.0
"""Make sessions of a tracing tool's observations: agents with their calls, each call once, and the tools' runs."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, SourceFile, Unit
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange
from sqsim.trace.formats.request_log.sessions import Agent, in_order, tasks_of
from sqsim.trace.formats.request_log.tool_runs import ToolRuns
from sqsim.trace.formats.spans.copies import without_copies
from sqsim.trace.formats.spans.observed import Observed
from sqsim.trace.schema import Task

MOST_DEPTH = 1_000
"""Spans above a span; a circle of parents is cut there."""


class ObservedFormat(Format):
    """Format of a tracing tool, with its `title` in messages: one task a conversation of an agent."""

    title: ClassVar[str]

    @abstractmethod
    def observed(self, file: SourceFile, notes: Notes) -> Iterator[Observed]:
        """Yield the observations that a file holds. Raises `TraceError`."""

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for unit in self.units([file], notes):
            yield from unit.tasks()

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a session, or a trace without one; a trace may lie in several files."""
        found: list[Observed] = []
        for file in files:
            try:
                found.extend(self.observed(file, notes))
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
        tree = Tree(found, notes)
        calls = [each.call for each in tree.models() if each.call is not None]
        begins_s = min((call.begins_s for call in calls if call.begins_s is not None), default=0.0)
        sessions = [(agent, runs, _first_call(agent)) for agent, runs in tree.sessions()]
        for agent, runs, first in sessions:
            if first is not None:
                tasks = partial(tasks_of, agent, self.name, begins_s, notes, runs)
                yield Unit(first.file, tasks, part=len(sessions) > 1)
        if not calls:
            if len(files) == 1:
                raise self._nothing(files[0])
            for file in files:
                notes.unreadable(file.path, self._nothing(file))

    def _nothing(self, file: SourceFile) -> TraceError:
        return TraceError(
            f"looks like {self.title}, but holds no answered call of a model",
            file=file.path,
            fix="export the traces of an instrumented agent, with its model calls",
        )


def _first_call(agent: Agent) -> Exchange | None:
    if agent.calls:
        return agent.calls[0]
    return next((call for each in agent.below if (call := _first_call(each)) is not None), None)


class Tree:
    """Observations by what they are part of."""

    def __init__(self, found: Iterable[Observed], notes: Notes) -> None:
        self.notes = notes
        self.by_key: dict[tuple[str, str], Observed] = {}
        for each in found:
            if each.key in self.by_key:
                notes["a span that was recorded before (same trace and id) was left out"] += 1
            else:
                self.by_key[each.key] = each
        self._failed()
        without_copies(self, notes)

    def models(self) -> list[Observed]:
        return [each for each in self.by_key.values() if each.kind == "model"]

    def above(self, each: Observed) -> Iterator[Observed]:
        """Yield what an observation is part of, innermost first."""
        at: Observed | None = each
        for _ in range(MOST_DEPTH):
            at = self.by_key.get((at.trace, at.parent)) if at is not None and at.parent else None
            if at is None or at is each:
                return
            yield at

    def _failed(self) -> None:
        """Leave out calls that ended in an error and gave nothing."""
        for each in self.models():
            call = each.call
            if (
                each.failed
                and call is not None
                and call.response is None
                and not (call.usage and call.usage.output)
            ):
                self.notes["a request that failed was left out"] += 1
                each.kind, each.call = "other", None

    def sessions(self) -> Iterator[tuple[Agent, ToolRuns]]:
        """Yield each session's calls with their sub-agents, and the tools' runs."""
        named: dict[str, str] = {}
        for each in self.by_key.values():
            if each.session:
                named.setdefault(each.trace, each.session)
        roots: dict[str, Agent] = {}
        agents: dict[tuple[str, str], Agent] = {}
        runs: dict[str, list[Observed]] = defaultdict(list)
        calling = self._callers()
        for each in self.by_key.values():
            session = each.session or named.get(each.trace) or each.trace
            above = list(self.above(each))
            owner = next((a for a in above if a.key in calling), None)
            nested = owner is not None and self._is_nested(owner, calling)
            scope = "/".join(owner.key) if owner is not None else each.trace or session
            if each.kind == "tool" and each.run is not None:
                each.run.scope = scope
                runs[session].append(each)
            if each.kind != "model" or each.call is None:
                continue
            each.call.scope = scope or "trace"
            each.call.alone = owner is not None and owner.kind == "agent"
            each.call.session = session
            root = roots.setdefault(session, Agent(session))
            agent = self._agent(owner, agents, root, calling) if nested and owner is not None else root
            agent.calls.append(each.call)
        for session, root in roots.items():
            _all_in_order(root)
            self._inner(runs[session], session)
            yield root, ToolRuns(each.run for each in runs[session] if each.run is not None)

    def _callers(self) -> set[tuple[str, str]]:
        """Return the keys of agents and tools that call a model themselves, and not through another of them."""
        calling = set()
        for each in self.models():
            owner = next((a for a in self.above(each) if a.kind in {"agent", "tool"}), None)
            if owner is not None:
                calling.add(owner.key)
        return calling

    def _is_nested(self, owner: Observed, calling: set[tuple[str, str]]) -> bool:
        """Whether an agent was started by another one that calls a model; a tool that calls one always was."""
        return owner.kind == "tool" or any(a.key in calling for a in self.above(owner))

    def _agent(
        self, owner: Observed, agents: dict[tuple[str, str], Agent], root: Agent, calling: set[tuple[str, str]]
    ) -> Agent:
        if owner.key in agents:
            return agents[owner.key]
        above = list(self.above(owner))
        runs_in = [a.name for a in (owner, *above) if a.kind == "tool"]
        agent = agents[owner.key] = Agent(owner.name, runs_in=runs_in)
        caller = next((a for a in above if a.key in calling), None)
        nested = caller is not None and self._is_nested(caller, calling)
        parent = self._agent(caller, agents, root, calling) if nested and caller is not None else root
        parent.below.append(agent)
        return agent

    def _inner(self, runs: Sequence[Observed], session: str) -> None:
        """Note for each tool's run the sub-agents that ran in it."""
        by_key = {each.key: each for each in runs}
        for each in self.models():
            call = each.call
            if call is None or call.session != session or call.begins_s is None or call.ends_s is None:
                continue
            for a in self.above(each):
                tool = by_key.get(a.key)
                if tool is not None and tool.run is not None:
                    tool.run.inner.append((call.begins_s, call.ends_s))


def _all_in_order(agent: Agent) -> None:
    in_order(agent.calls)
    for each in agent.below:
        _all_in_order(each)
