# SPDX-License-Identifier: Apache-2.0
"""Import SWE-agent's `.traj` files: `history` holds the messages, `trajectory` the actions with their times.

An action is a tool call (function calling) or the command in an assistant's message (`action`, of the parsers with text).
Each agent in a history is a task. Demonstrations (`is_demo`) are in every prompt but are no calls: they are prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import Reader, joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import Trajectories, is_list_of, like
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task


class SweAgent(Trajectories):
    """SWE-agent: one task an agent of a run, and an attempt of a run that was tried again."""

    name = "swe_agent"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not head or not all(isinstance(value, dict) for value in head):
            return None
        runs = head[0]["attempts"] if is_list_of(head[0].get("attempts"), "history") else [head[0]]
        if not all(
            is_list_of(run.get("history"), "role") and isinstance(run.get("trajectory"), list) for run in runs
        ):
            return None
        return f"{len(runs[0]['history'])} messages of history beside a trajectory of {len(runs[0]['trajectory'])} actions"

    def rows(self, node: Node) -> list[Node]:
        return node.nodes("attempts") if node.get("attempts") else [node]

    def begins_s(self, row: Node) -> float | None:  # noqa: ARG002 - the format has no moments, only durations
        return None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        readers: dict[str, _Reader] = {}
        for message in row.nodes("history"):
            agent = message.optional_text("agent")
            if agent not in readers:
                readers[agent] = _Reader(notes)
            readers[agent].message(message)
        actions = row.nodes("trajectory") if row.get("trajectory") else []
        timed = len(readers) == 1 and next(iter(readers.values())).times(actions)
        info = row.get("info")
        ended = info.get("exit_status") if isinstance(info, dict) else None
        ended = ended if isinstance(ended, str) else ""
        made = []
        for agent, reader in readers.items():
            if not reader.steps:
                continue
            name = f"{file.stem}:{number}" if number else file.stem
            script = Transcript(
                task_id=f"{name}:{agent}" if len(readers) > 1 else name,
                source=file.source(self.name),
                prefix=joined(reader.system, reader.demonstrations),
                question=reader.question,
                question_other_tokens=reader.question_other_tokens,
                steps=reader.steps,
                timing="recorded" if timed else "absent",
                outcome=Outcome(finish=_finish(ended)),
                arrival_s=arrival_s,
            )
            made.append(transcript_task(script, notes))
        return made


def _finish(ended: str) -> Any:
    if "context" in ended:
        return "context_limit"
    return "answer" if ended.startswith("submitted") else "unknown"


class _Reader(Reader):
    """Reader of one agent's messages."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(notes)
        self.demonstrations = ""

    def message(self, message: Node) -> None:
        """Read the next message. Raises `TraceError`."""
        role = message.text("role")
        if message.get("is_demo") is True:
            self.notes["a message of a demonstration (is_demo) is prefix, not a call"] += 1
            self.demonstrations = joined(self.demonstrations, said(message, self.notes).text)
            return
        if role == "assistant":
            self.read(message)
            self._command(message)
            return
        calls = message.texts("tool_call_ids")
        answers = role in {"user", "tool"} and self.waits()
        if role == "tool" or answers:
            message = like(
                message, {**message.value, "role": "tool", "tool_call_id": calls[0] if calls else None}
            )
        self.read(message)

    def _command(self, message: Node) -> None:
        """Take the command of a message without tool calls as its call; its first word names the tool."""
        step = self.steps[-1]
        command = message.optional_text("action").strip()
        if step.calls or not command:
            return
        self.call(step, command.split(None, 1)[0][:80], command, "")
        step.calls[-1].text = command
        before, found, after = step.text.partition(command)
        step.text = joined(before.strip(), after.strip()) if found else step.text

    def times(self, actions: list[Node]) -> bool:
        """Give each call its action's duration; False if an action lacks it, or actions are not the calls'."""
        if len(actions) != len(self.steps):
            return False
        last = self.steps[-1] if self.steps else None
        if (
            last is not None
            and self.waits()
            and len(last.calls) == 1
            and isinstance(actions[-1].get("observation"), str)
        ):
            # The last observation enters no prompt, so a history may lack it.
            self.read(like(actions[-1], {"role": "tool", "content": actions[-1].get("observation")}))
        if any(action.get("execution_time") is None for action in actions):
            return False
        for step, action in zip(self.steps, actions, strict=True):
            for call in step.calls[
                :1
            ]:  # calls of one output run one after the other: the duration is theirs together
                call.latency_s = round(action.seconds("execution_time"), 3)
        return True
