# SPDX-License-Identifier: Apache-2.0
"""Read a session, its sub-agents, and the sessions resumed from it into tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.claude_code.chain import Chain
from sqsim.trace.formats.claude_code.compactions import is_compaction, put_before_reset
from sqsim.trace.formats.claude_code.copies import leave_out_copies
from sqsim.trace.formats.claude_code.families import Surveyed, copy_key
from sqsim.trace.formats.claude_code.lines import events
from sqsim.trace.formats.claude_code.sub_agents import Started, leave_own_wait, started
from sqsim.trace.formats.claude_code.usage import mend
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Parent, Spawn, Task


@dataclass
class _Log:
    """Chain of one agent, the first file that holds it, and its session."""

    chain: Chain
    file: SourceFile
    session: str
    version: str = ""
    copies: int = 0


class Family:
    """Reader of one family's files, the longest log first, which makes their tasks."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._mains: list[_Log] = []
        self._sides: dict[str, _Log] = {}
        self._roots: dict[str, str] = {}  # a sidechain event's uuid -> the name of its sub-agent
        self._read: set[str] = set()  # uuids of sidechain events

    def read(self, found: Surveyed) -> None:
        """Read one file. Raises `TraceError`."""
        main = _Log(Chain(self._notes), found.file, found.session)
        for event in events(found.file, self._notes):
            if event.get("isSidechain") is True:
                log = self._side(event, found)
                if log is None:
                    continue
            else:
                log = main
            log.version = log.version or event.optional_text("version")
            log.chain.read(event)
        if not found.sides_only:
            self._mains.append(main)

    def _side(self, event: Node, found: Surveyed) -> _Log | None:
        """Return the sub-agent of a sidechain event; None if the event was read in another file."""
        uuid = event.optional_text("uuid")
        if uuid and uuid in self._read:
            return None
        self._read.add(uuid)
        begun = self._roots.get(event.optional_text("parentUuid"))
        own = found.file.stem.removeprefix("agent-") if found.sides_only else ""
        name = event.optional_text("agentId") or begun or own or f"agent-{len(self._sides)}"
        self._roots[uuid] = name
        return self._sides.setdefault(name, _Log(Chain(self._notes), found.file, found.session))

    def tasks(self, format_name: str, begins_s: float, used: set[str]) -> Iterator[Task]:
        """Return the tasks, parents before their sub-agents; `used` are ids of tasks that exist already."""
        self._without_copies()
        sides = {name: log.chain for name, log in self._sides.items() if log.chain.models}
        mains = {str(number): log.chain for number, log in enumerate(self._mains)}
        found = started(mains, sides)
        for name in [name for name in sides if name not in found and is_compaction(name, sides[name])]:
            if put_before_reset(sides[name], mains.values(), self._notes):
                del sides[name]
        leave_own_wait(found, sides, [*mains.values(), *sides.values()])
        logs = {**dict(zip(mains, self._mains, strict=True)), **{name: self._sides[name] for name in sides}}
        made: dict[str, Task] = {}
        order = [*mains, *_parents_first(sides, found)]
        for name in order:
            log = logs[name]
            if not log.chain.models:
                continue
            parent, spawn = self._lineage(found.get(name), log, logs, made)
            if parent is None and name in sides:
                self._notes[
                    "a sub-agent that no call of its session started is a task of its own"
                    if self._mains
                    else "sub-agents without their parent's session are tasks of their own"
                ] += 1
            home = made[found[name].parent].task_id.split("/")[0] if parent else log.session
            task_id = _new(log.session if name in mains else f"{home}/{name}", log.file.stem, used)
            arrival_s = None if parent else round((log.chain.started_s or begins_s) - begins_s, 3)
            made[name] = self._task(log, task_id, format_name, arrival_s, parent, spawn)
            yield made[name]
        self._name_the_empty(bool(made))

    def _without_copies(self) -> None:
        """Leave out calls that another log of the family holds, and note what a first look could not know."""
        seen: set[tuple[str, str]] = set()
        sides = sorted(self._sides.values(), key=lambda log: log.chain.started_s or 0.0)
        for log in [*self._mains, *sides]:
            log.chain.finish()
            for model in log.chain.models:
                model.key = copy_key(model.key, model.begun_s)
            log.copies = leave_out_copies(log.chain, seen, self._notes)
            seen.update(model.key for model in log.chain.models)
        for log in [*self._mains, *sides]:
            uses = log.chain.uses
            for use in uses:
                use.call.parallel = any(use.overlaps(other) for other in uses if other.step is use.step)

    def _lineage(
        self, begun: Started | None, log: _Log, logs: dict[str, _Log], made: dict[str, Task]
    ) -> tuple[Parent | None, Spawn | None]:
        """Find the parent's turn that started a sub-agent, and the first step after its end; None: no turn."""
        task = None if begun is None else made.get(begun.parent)
        if begun is None or task is None:
            return None, None
        models = logs[begun.parent].chain.models
        turn = next(index for index, model in enumerate(models) if model.step is begun.use.step)
        if turn >= len(task.turns):  # its call was never answered, so it is no turn
            return None, None
        last = len(task.turns)
        later = (index for index in range(turn + 1, task.steps) if models[index].begun_s >= log.chain.ended_s)
        return Parent(task_id=task.task_id, turn=turn), Spawn(turn=turn, join_turn=min(last, next(later, last)))

    def _task(
        self,
        log: _Log,
        task_id: str,
        format_name: str,
        arrival_s: float | None,
        parent: Parent | None,
        spawn: Spawn | None,
    ) -> Task:
        chain, steps = log.chain, log.chain.steps
        mend(steps, self._notes)
        answered = not steps[-1].calls
        cached = chain.cached
        return transcript_task(
            Transcript(
                task_id=task_id,
                source=log.file.source(format_name),
                prefix="",
                question=chain.question,
                question_other_tokens=chain.question_other_tokens,
                steps=steps,
                timing="recorded",
                model=chain.model or None,
                # Tokens that were in the server's cache before the session's first call are what sessions share.
                prefix_id=f"{log.version}:{chain.model}:{cached}" if cached and not log.copies else task_id,
                prefix_tokens=cached or None,
                outcome=Outcome(finish="answer" if answered else "unknown"),
                parent=parent,
                spawn=spawn,
                arrival_s=arrival_s,
            ),
            self._notes,
        )

    def _name_the_empty(self, others: bool) -> None:
        """Name the files without a task of their own. Raises `TraceError` if no file has one."""
        for log in self._mains:
            if log.chain.models:
                continue
            reason = (
                "all of its calls are copies of another session's"
                if log.copies
                else "no model was called in it"
            )
            if not others:
                raise TraceError(reason, file=log.file.path, fix="an empty trace is not a trace")
            self._notes.leave_out(log.file.path, reason)


def _parents_first(sides: dict[str, Chain], found: dict[str, Started]) -> list[str]:
    """Sort sub-agents so that each follows the one that started it."""
    order = [name for name in sides if name not in found or found[name].parent not in sides]
    for name in order:
        order += [inner for inner, each in found.items() if each.parent == name and inner in sides]
    return order


def _new(task_id: str, stem: str, used: set[str]) -> str:
    """Make an id that no task has: the given one, else with its file's name, else with a number."""
    names = [task_id, f"{task_id}~{stem}", *(f"{task_id}~{stem}~{n}" for n in range(2, len(used) + 3))]
    name = next(name for name in names if name not in used)
    used.add(name)
    return name
