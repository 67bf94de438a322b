# SPDX-License-Identifier: Apache-2.0
"""Importer of Codex rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, Node, SourceFile, Unit
from sqsim.trace.formats.codex.rollout import Model, Rollout, time_s
from sqsim.trace.formats.codex.usage import Counter
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Parent, Spawn, Task

LINES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_SPOKEN = {"reasoning", "function_call", "custom_tool_call", "local_shell_call"}


class Codex(Format):
    """Codex: one task a rollout; a thread that another one spawned is its sub-agent."""

    name = "codex"

    def evidence(self, head: Sequence[Any]) -> str | None:
        lines = sum(
            isinstance(value, dict)
            and str(value.get("type")) in LINES
            and isinstance(value.get("payload"), dict)
            for value in head
        )
        if not lines or 2 * lines < len(head):
            return None
        return f"{lines} of the first {len(head)} lines are session_meta, response_item or event_msg with a payload"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for unit in self.units([file], notes):
            yield from unit.tasks()

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a rollout, a thread after the one that spawned it or from which it was forked."""
        found: list[_Thread] = []
        for file in files:
            try:
                found.append(_survey(file))
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
        begins_s = min((each.begins_s for each in found if each.begins_s is not None), default=0.0)
        family = _Family(notes, begins_s, self.name)
        for each in _parents_first(found):
            yield Unit(each.file, partial(family.tasks, each))


class _Thread(NamedTuple):
    """Summary of a rollout from its first lines: id, origin (spawned: as a sub-agent), and token counting."""

    file: SourceFile
    name: str
    comes_from: str
    spawned: bool
    begins_s: float | None
    counted: bool
    leads: bool


def _survey(file: SourceFile) -> _Thread:
    """Summarise a rollout without reading its texts. Raises `TraceError`."""
    name = comes_from = ""
    spawned = spoke = counted = leads = False
    begins_s: float | None = None
    counter = Counter()
    for line in file.nodes():
        payload = line.node("payload")
        if begins_s is None:
            begins_s = time_s(line)
        if line.get("type") == "session_meta" and not name:
            name = payload.optional_text("id") or file.stem
            comes_from, spawned = _origin(payload)
        kind = str(payload.get("type"))
        if line.get("type") == "response_item":
            spoke |= kind in _SPOKEN or (kind == "message" and payload.get("role") == "assistant")
        elif kind == "token_count" and counter.read(payload) is not None:
            counted, leads = True, not spoke
        if counted:
            break
    return _Thread(file, name or file.stem, comes_from, spawned, begins_s, counted, leads)


def _origin(meta: Node) -> tuple[str, bool]:
    """Find the thread that spawned this one, or from which it was forked; and whether it was spawned."""
    source = meta.get("source")
    if isinstance(source, dict) and isinstance(source.get("subagent"), dict):
        inner = source["subagent"].get("thread_spawn")
        parent = inner.get("parent_thread_id") if isinstance(inner, dict) else None
        if isinstance(parent, str):
            return parent, True
    forked = meta.get("forked_from_id")
    return (forked, False) if isinstance(forked, str) else ("", False)


def _parents_first(found: Sequence[_Thread]) -> list[_Thread]:
    """Sort the threads so that each follows its origin."""
    names = {each.name for each in found}
    children: defaultdict[str, list[_Thread]] = defaultdict(list)
    order: list[_Thread] = []
    for each in found:
        if each.comes_from != each.name and each.comes_from in names:
            children[each.comes_from].append(each)
        else:
            order.append(each)
    for each in order:
        order += children.pop(each.name, [])
    return order + [each for circle in children.values() for each in circle]


class _Made(NamedTuple):
    """Thread that was read: its task and its calls."""

    task: Task
    models: list[Model]
    copies: int
    ended_s: float


class _Family:
    """Threads of one import."""

    def __init__(self, notes: Notes, begins_s: float, format_name: str) -> None:
        self._notes, self._begins_s, self._format = notes, begins_s, format_name
        self._made: dict[str, _Made] = {}
        self._used: set[str] = set()

    def tasks(self, thread: _Thread) -> Iterator[Task]:
        """Make the task of a thread. Raises `TraceError`."""
        rollout = Rollout(self._notes, thread.counted, thread.leads)
        for line in thread.file.nodes():
            rollout.read(line)
        rollout.finish()
        origin = self._made.get(thread.comes_from)
        whole = list(rollout.models)
        copies = self._without_copies(rollout, origin)
        if copies:  # the fork starts with what came in after the last copy
            last = whole[copies - 1].step
            rollout.question, rollout.question_other_tokens = last.user, last.user_other_tokens
        if not rollout.models:
            reason = (
                "all of its calls are copies of another rollout's" if whole else "no model was called in it"
            )
            raise TraceError(reason, file=thread.file.path, fix="leave the file out")
        parent, spawn = self._lineage(thread, rollout, origin)
        if thread.spawned and parent is None:
            self._notes["a sub-agent without its parent's rollout is a task of its own"] += 1
        task = transcript_task(
            self._transcript(thread, rollout, origin if copies else None, parent, spawn), self._notes
        )
        self._made[thread.name] = _Made(task, whole, copies, rollout.ended_s)
        yield task

    def _transcript(
        self,
        thread: _Thread,
        rollout: Rollout,
        forked_from: _Made | None,
        parent: Parent | None,
        spawn: Spawn | None,
    ) -> Transcript:
        steps = [model.step for model in rollout.models]
        arrives = thread.begins_s is not None and parent is None
        return Transcript(
            task_id=self._new(thread),
            source=thread.file.source(self._format),
            prefix=rollout.instructions,
            prefix_tokens=forked_from.task.prefix.tokens if forked_from else None,
            question=rollout.question,
            question_other_tokens=rollout.question_other_tokens,
            steps=steps,
            timing="recorded" if rollout.timed else "absent",
            model=rollout.model or None,
            outcome=Outcome(finish="unknown" if steps[-1].calls else "answer"),
            parent=parent,
            spawn=spawn,
            arrival_s=round((thread.begins_s or 0.0) - self._begins_s, 3) if arrives else None,
        )

    def _new(self, thread: _Thread) -> str:
        """Make the thread's id, with its file's name where another file has the same id."""
        name = thread.name if thread.name not in self._used else f"{thread.name}~{thread.file.stem}"
        self._used.add(name)
        return name

    def _without_copies(self, rollout: Rollout, origin: _Made | None) -> int:
        """Leave out calls that a forked or spawned rollout repeats from its origin; returns their number."""
        copies = 0
        for own, other in zip(rollout.models, origin.models if origin else (), strict=False):
            if own.usage is None or own.usage != other.usage:
                break
            copies += 1
        if copies:
            self._notes["a call that a fork repeats from its origin was left out"] += copies
            del rollout.models[:copies]
            if rollout.models:
                rollout.models[0].step.restarted = False
        return copies

    def _lineage(
        self, thread: _Thread, rollout: Rollout, origin: _Made | None
    ) -> tuple[Parent | None, Spawn | None]:
        """Find the parent's turn that started a sub-agent, and its first step after the sub-agent's end."""
        if not thread.spawned or origin is None or thread.begins_s is None or not origin.task.turns:
            return None, None
        last = len(origin.task.turns)
        models = origin.models[origin.copies :]
        begun = [
            n for n, model in enumerate(models[:last]) if model.begun_s <= thread.begins_s and model.step.calls
        ]
        named = [
            n
            for n, model in enumerate(models[:last])
            if any(thread.name in (call.response or "") for call in model.step.calls)
        ]
        turn = named[0] if named else begun[-1] if begun else None
        if turn is None:
            return None, None
        ended_s = rollout.ended_s
        later = (n for n in range(turn + 1, last) if models[n].begun_s >= ended_s)
        join = next(later, last)
        return Parent(task_id=origin.task.task_id, turn=turn), Spawn(turn=turn, join_turn=join)
