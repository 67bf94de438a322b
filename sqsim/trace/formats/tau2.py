# SPDX-License-Identifier: Apache-2.0
"""Import simulations of tau2-bench: `{"simulations": [...]}`, or one simulation a file or line.

Source: tau2's data model (`message.py`, `simulation.py`). The agent's prompt holds its policy, its tools and what the
user says; calls that the user made with tools of its own (`requestor: user`) are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import TimedReader, Trajectories, is_list_of, like, moment_s
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_RUN = ("task_id", "termination_reason", "messages")
_SIMULATIONS = "simulations"


class Tau2(Trajectories):
    """tau2-bench: one task a simulation."""

    name = "tau2"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not head or not all(isinstance(value, dict) for value in head):
            return None
        if is_list_of(head[0].get(_SIMULATIONS), *_RUN):
            return f"{len(head[0][_SIMULATIONS])} simulations with messages and a termination_reason"
        if is_list_of(head, *_RUN):
            return "simulations with task_id, messages and a termination_reason"
        return None

    def rows(self, node: Node) -> list[Node]:
        if _SIMULATIONS not in (node.value if isinstance(node.value, dict) else {}):
            return [node]
        prefix = _prefix(node)
        return [
            like(row, {**row.value, "_prefix": prefix}) if isinstance(row.value, dict) else row
            for row in node.nodes(_SIMULATIONS)
        ]

    def begins_s(self, row: Node) -> float | None:
        return moment_s(row, "start_time")

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        reader = TimedReader(notes, row.optional_text("_prefix"))
        for message in row.nodes("messages"):
            _read(reader, message, notes)
        reader.finish()
        if not reader.steps:
            return []
        own, trial = row.get("task_id"), row.get("trial")
        name = f"{file.stem}:{own if isinstance(own, str | int) else number}"
        ended = row.optional_text("termination_reason")
        return [
            transcript_task(
                Transcript(
                    task_id=name if not isinstance(trial, int) else f"{name}.{trial}",
                    source=file.source(self.name),
                    prefix=reader.system,
                    question=reader.question,
                    question_other_tokens=reader.question_other_tokens,
                    steps=reader.steps,
                    timing="recorded" if reader.timed else "absent",
                    outcome=Outcome(finish=_finish(ended), correct=_correct(row.get("reward_info"))),
                    arrival_s=arrival_s,
                ),
                notes,
            )
        ]


def _prefix(node: Node) -> str:
    """Return the policy and the tools that all simulations of a file have in their prompts."""
    info = node.get("info")
    environment = info.get("environment_info") if isinstance(info, dict) else None
    if not isinstance(environment, dict):
        return ""
    policy, tools = environment.get("policy"), environment.get("tool_defs")
    return joined(
        json.dumps(tools, ensure_ascii=False) if tools else "", policy if isinstance(policy, str) else ""
    )


def _read(reader: TimedReader, message: Node, notes: Notes) -> None:
    if message.get("role") == "tool" and isinstance(message.get("tool_messages"), list):
        for each in message.nodes("tool_messages"):
            _read(reader, each, notes)
        return
    role = message.text("role")
    if role == "tool" and message.get("requestor") == "user":
        notes["a response to a user's own tool call is not in the agent's prompt"] += 1
        return
    now_s = moment_s(message, "timestamp")
    if role == "user":
        calls = message.nodes("tool_calls") if message.get("tool_calls") else []
        if calls:
            notes["a user's own tool call is not in the agent's prompt"] += len(calls)
        if not said(message, notes).text:
            return
        reader.read_at(like(message, {"role": "user", "content": message.get("content")}), now_s)
        return
    if role == "assistant" and not reader.steps and not reader.question and not message.get("usage"):
        notes["a greeting that no model wrote is part of the question"] += 1
        reader.heard(said(message, notes))
        return
    reader.read_at(message, now_s)


def _finish(ended: str) -> Any:
    if ended == "max_steps":
        return "turn_limit"
    return "answer" if ended in {"agent_stop", "user_stop"} else "unknown"


def _correct(reward: Any) -> bool | None:
    value = reward.get("reward") if isinstance(reward, dict) else None
    return value >= 1 if isinstance(value, int | float) else None
