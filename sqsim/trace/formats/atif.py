# SPDX-License-Identifier: Apache-2.0
"""Import ATIF, the Agent Trajectory Interchange Format of Harbor and its converters, versions 1.0 to 1.7.

Source: Harbor's RFC 0001. A step of the source `agent` is a model call, unless `llm_call_count` is 0 (a dispatch without
a model), or it only repeats a call seen before, as converters of event logs write it for a call's result. `prompt_tokens`
include cached ones. Steps have a time but tools have no end, so no tool latency is recorded; runs arrive as stated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import Reader, joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Step
from sqsim.trace.formats.token_ids import MOST_ID, Ids, with_token_ids
from sqsim.trace.formats.trajectories import Trajectories, like, moment_s
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Parent, Spawn, Task

_VERSIONS = {f"ATIF-v1.{minor}" for minor in range(8)}
_DEEP = 50


class Atif(Trajectories):
    """ATIF: one task a trajectory; an embedded sub-agent belongs to the call whose result refers to it."""

    name = "atif"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not head or not all(isinstance(value, dict) for value in head):
            return None
        version = head[0].get("schema_version")
        if not isinstance(version, str) or not version.startswith("ATIF") or "steps" not in head[0]:
            return None
        return f"schema_version is {version[:20]}"

    def rows(self, node: Node) -> list[Node]:
        return [node]

    def begins_s(self, row: Node) -> float | None:
        return moment_s(steps[0], "timestamp") if (steps := row.nodes("steps")) else None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        named = (row.get(key) for key in ("trajectory_id", "session_id"))
        own = next((name for name in named if isinstance(name, str) and name), f"{file.stem}:{number}")
        return _Family(file, self.name, notes).tasks(row, own, arrival_s, None, 0)


class _Family:
    """Trajectory with the sub-agents in it."""

    def __init__(self, file: SourceFile, format_name: str, notes: Notes) -> None:
        self._file, self._format, self._notes = file, format_name, notes

    def tasks(
        self, row: Node, name: str, arrival_s: float | None, lineage: tuple[Parent, Spawn] | None, deep: int
    ) -> list[Task]:
        """Make the task of a trajectory and those of its sub-agents. Raises `TraceError`."""
        if deep > _DEEP:
            raise row.wrong(f"sub-agents are nested more than {_DEEP} deep", "subagent_trajectories")
        version = row.get("schema_version")
        if isinstance(version, str) and version not in _VERSIONS:
            self._notes[f"schema_version {version[:20]} is read as ATIF-v1.7"] += 1
        agent = row.node("agent") if row.get("agent") is not None else like(row, {})
        tools = agent.get("tool_definitions")
        reader = _Reader(self._notes, json.dumps(tools, ensure_ascii=False) if tools else "")
        for step in row.nodes("steps"):
            reader.step(step)
        if row.get("continued_trajectory_ref"):
            self._notes["a trajectory goes on in another file, which is a task of its own"] += 1
        inner = row.nodes("subagent_trajectories") if row.get("subagent_trajectories") else []
        made: list[Task] = []
        if reader.steps:
            parent, spawn = lineage or (None, None)
            script = Transcript(
                task_id=name,
                source=self._file.source(self._format),
                prefix=reader.system,
                question=reader.question,
                question_other_tokens=reader.question_other_tokens,
                steps=reader.steps,
                timing="absent",
                model=agent.optional_text("model_name") or reader.model or None,
                outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
                parent=parent,
                spawn=spawn,
                arrival_s=arrival_s if lineage is None else None,
            )
            task = transcript_task(script, self._notes)
            if reader.ids and all(reader.ids):
                task = with_token_ids(task, [ids for ids in reader.ids if ids], self._notes)
            made.append(task)
        for number, child in enumerate(inner):
            own = child.optional_text("trajectory_id") or child.optional_text("session_id") or str(number)
            turn = reader.refers.get(own)
            known = made and turn is not None and turn < len(made[0].turns)
            born = None
            if known and turn is not None:
                born = Parent(task_id=name, turn=turn), Spawn(turn=turn, join_turn=turn + 1)
            else:
                self._notes["a sub-agent that no call's result refers to is a task of its own"] += 1
            made += self.tasks(child, f"{name}/{own}", arrival_s, born, deep + 1)
        outside = len(reader.outside)
        if outside:
            self._notes["a sub-agent's trajectory in another file is a task of its own, if it is imported"] += (
                outside
            )
        return made


class _Reader(Reader):
    """Reader of ATIF's steps. `refers`: the step whose result refers to a sub-agent, by the sub-agent's id."""

    def __init__(self, notes: Notes, system: str) -> None:
        super().__init__(notes, system)
        self.model = ""
        self.ids: list[Ids | None] = []
        self.refers: dict[str, int] = {}
        self.outside: list[str] = []
        self._seen: set[str] = set()
        self._kept: str | None = None

    def step(self, step: Node) -> None:
        """Read the next step. Raises `TraceError`."""
        source = step.text("source")
        results = step.node("observation") if step.get("observation") is not None else None
        given = results.nodes("results") if results is not None and results.get("results") else []
        if source not in {"system", "user", "agent"}:
            raise step.wrong(f"{source[:40]!r} is no source", "source", "sources are system, user and agent")
        if step.get("is_copied_context") is True:
            self.notes["a step copied from an earlier trajectory is context, not a call"] += 1
            self._context(step, given, system=source == "system")
        elif source != "agent":
            if self.steps and _replaces(step):
                self._kept = joined(*(said(each, self.notes).text for each in given))
                return
            self._context(step, given, system=source == "system")
        elif self._no_call(step):
            self._results(given)
        elif step.get("llm_call_count") == 0:
            self.notes["a dispatch without a model call (llm_call_count 0) is context"] += 1
            self._context(step, given, system=False)
        else:
            self._agent(step)
            self._results(given)

    def _context(self, step: Node, given: list[Node], *, system: bool) -> None:
        for told in (said(step, self.notes, "message"), *(said(each, self.notes) for each in given)):
            if told.text or told.other_tokens:
                self.heard(told, system=system)

    def _no_call(self, step: Node) -> bool:
        """Whether a step repeats calls that were read before, without usage of its own."""
        calls = step.nodes("tool_calls") if step.get("tool_calls") else []
        ids = {call.optional_text("tool_call_id") for call in calls}
        if not ids or not ids <= self._seen - {""} or step.get("metrics") is not None:
            return False
        self.notes["a step that repeats a call under its id is one call"] += 1
        return True

    def _agent(self, step: Node) -> None:
        calls = step.nodes("tool_calls") if step.get("tool_calls") else []
        message = {
            "role": "assistant",
            "content": step.get("message"),
            "reasoning_content": step.get("reasoning_content"),
            "tool_calls": [
                {
                    "id": call.optional_text("tool_call_id"),
                    "name": call.text("function_name"),
                    "arguments": call.get("arguments"),
                }
                for call in calls
            ],
        }
        self.model = self.model or step.optional_text("model_name")
        self._seen |= {call.optional_text("tool_call_id") for call in calls}
        self.read(like(step, message))
        last = self.steps[-1]
        if self._kept is not None:
            last.restarted, last.kept, self._kept = True, self._kept, None
        self.ids.append(None)
        many = step.get("llm_call_count")
        if isinstance(many, int) and many > 1:
            self.notes[
                "a step of several model calls (llm_call_count) is one call; its usage is estimated"
            ] += 1
        elif step.get("metrics") is not None:
            self._metrics(last, step.node("metrics"))

    def _metrics(self, step: Step, metrics: Node) -> None:
        prompt, output = (
            metrics.count(key) if metrics.get(key) is not None else None
            for key in ("prompt_tokens", "completion_tokens")
        )
        if prompt == 0:
            self.notes["a prompt of 0 tokens was not counted: its usage is estimated"] += 1
            return
        extra = metrics.node("extra") if isinstance(metrics.get("extra"), dict) else like(metrics, {})
        thought = next(
            (key for key in ("reasoning_tokens", "reasoning_output_tokens") if extra.get(key) is not None), None
        )
        step.prompt, step.output = prompt, output
        step.reasoning_tokens = extra.count(thought) if thought is not None else None
        if metrics.get("prompt_token_ids") and metrics.get("completion_token_ids"):
            ids = Ids(*(metrics.whole_numbers(f"{part}_token_ids") for part in ("prompt", "completion")))
            if any(not 0 <= each <= MOST_ID for part in ids for each in part):
                raise metrics.wrong("a token id is negative or too large", fix="give ids from 0 to 2^31 - 1")
            self.ids[-1] = ids
            if (len(ids.prompt), len(ids.output)) != (prompt, output):
                self.notes["token counts differ from the number of token ids, which count"] += 1
                step.prompt, step.output = len(ids.prompt), len(ids.output)

    def _results(self, given: list[Node]) -> None:
        for result in given:
            refers = result.nodes("subagent_trajectory_ref") if result.get("subagent_trajectory_ref") else []
            for each in refers:
                own = each.optional_text("trajectory_id") or each.optional_text("session_id")
                if each.optional_text("trajectory_path"):
                    self.outside.append(each.text("trajectory_path"))
                elif own and self.steps:
                    self.refers[own] = len(self.steps) - 1
            told = said(result, self.notes)
            extra = result.get("extra")
            failed = isinstance(extra, dict) and (extra.get("is_error") is True or extra.get("error") is True)
            if not self.waits() and result.get("source_call_id") is None:
                self.heard(Said(told.text, told.other_tokens))
                continue
            self.read(
                like(
                    result,
                    {
                        "role": "tool",
                        "tool_call_id": result.get("source_call_id"),
                        "content": result.get("content"),
                        "is_error": failed,
                    },
                )
            )


def _replaces(step: Node) -> bool:
    """Whether a system step replaces the context by its observation (`context_management`, RFC section VII)."""
    extra = step.get("extra")
    management = extra.get("context_management") if isinstance(extra, dict) else None
    return isinstance(management, dict) and management.get("boundary") == "replace"
