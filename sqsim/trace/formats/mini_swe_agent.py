# SPDX-License-Identifier: Apache-2.0
"""Import mini-swe-agent: lists of messages with fenced commands (version 1), or `mini-swe-agent-1.1` files (2).

A command is a call of `bash`: a fenced block of the output in version 1, a tool call or `extra.actions` in version 2.
The environment's output comes back as a user's or a tool's message, with its return code. `extra` holds usage and the
time at which a message was made; where every message has one, the time between is the tools'. A last message of the role
`exit` tells how the run ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import ROLES, Reader, counts, definitions, messages_of, row_id
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Step
from sqsim.trace.formats.trajectories import Trajectories
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_COMMAND = re.compile(r"```(?:mswea_bash_command|bash|sh)[^\n]*\n(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"\s*<returncode>\s*(-?\d+)\s*</returncode>")
_SIGNS = ("<returncode>", "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")


class MiniSweAgent(Trajectories):
    """mini-swe-agent: one task a trajectory."""

    name = "mini_swe_agent"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if len(head) != 1:
            return None
        value = head[0]
        form = value.get("trajectory_format") if isinstance(value, dict) else None
        if isinstance(form, str) and form.startswith("mini-swe-agent"):
            return f"trajectory_format is {form}"
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list) or not messages:
            return None
        if not all(isinstance(each, dict) and each.get("role") in (*ROLES, "exit") for each in messages):
            return None
        said_by = {role: [str(m.get("content")) for m in messages if m["role"] == role] for role in ROLES}
        commands = sum(_COMMAND.search(text) is not None for text in said_by["assistant"])
        signs = sum(sign in text for text in [*said_by["user"], *said_by["assistant"]] for sign in _SIGNS)
        if not commands or not signs or any("tool_calls" in message for message in messages):
            return None
        return f"{commands} assistant messages hold a command in a fence, {signs} messages a return code or the final one"

    def rows(self, node: Node) -> list[Node]:
        return [node]

    def begins_s(self, row: Node) -> float | None:
        """Return the first stated time: only outputs and their observations have one."""
        for message in messages_of(row):
            extra = message.get("extra")
            if isinstance(extra, dict) and extra.get("timestamp") is not None:
                return message.node("extra").seconds("timestamp")
        return None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        script = self._script(file, row, number, notes)
        if script is None:
            return []
        script.arrival_s = arrival_s if script.timing == "recorded" else None
        return [transcript_task(script, notes)]

    def _script(self, file: SourceFile, row: Node, number: int, notes: Notes) -> Transcript | None:
        reader = _Reader(notes, definitions(row))
        for message in messages_of(row):
            reader.read(message)
        if not reader.steps:
            return None
        info = row.get("info")
        ended = info.get("exit_status") if isinstance(info, dict) else None
        submitted = "Submitted" in (ended, reader.exit_status)
        return Transcript(
            task_id=row_id(file, row, number),
            source=file.source(self.name),
            prefix=reader.system,
            question=reader.question,
            question_other_tokens=reader.question_other_tokens,
            steps=reader.steps,
            timing="recorded" if reader.timed else "absent",
            outcome=Outcome(finish="answer" if submitted or not reader.steps[-1].calls else "unknown"),
        )


class _Reader(Reader):
    """Reader that takes commands as calls, and the environment's messages as their responses."""

    def __init__(self, notes: Notes, system: str) -> None:
        super().__init__(notes, system)
        self.exit_status = ""
        self.timed = True
        self._before_s: float | None = None

    def read(self, message: Node) -> None:
        role = message.text("role")
        extra = message.node("extra") if isinstance(message.get("extra"), dict) else None
        if role == "exit":
            self.exit_status = extra.optional_text("exit_status") if extra is not None else ""
            if message.get("content"):
                self.notes["a last message of the role exit enters no prompt"] += 1
            return
        now_s = None
        if extra is not None and extra.get("timestamp") is not None:
            now_s = extra.seconds("timestamp")
        answers = self.steps[-1].calls if self.steps and self.waits() and role in {"user", "tool"} else []
        if role == "user" and answers:
            told = said(message, self.notes)
            code = _CODE.match(told.text)
            self.answered(None, told, failed=code is not None and code.group(1) != "0")
        else:
            super().read(message)
        if answers and now_s is not None and self._before_s is not None:
            latest = max(
                (call for call in answers if call.response is not None), key=answers.index, default=None
            )
            if latest is not None:
                latest.latency_s = max(0.0, round(now_s - self._before_s, 3))
                latest.parallel = False  # one command at a time
        if answers and extra is not None and extra.get("returncode") not in (None, 0):
            for call in answers[-1:]:
                call.error = call.error or f"returncode {extra.get('returncode')}"
        if role in {"assistant", "tool"} or answers:
            self.timed &= now_s is not None
        self._before_s = now_s

    def says(self, message: Node) -> None:
        super().says(message)
        step = self.steps[-1]
        found = _COMMAND.search(step.text)
        if not step.calls and found is not None:
            self.call(step, "bash", {"command": found.group(1)}, "")
            step.calls[-1].text = found.group()
            step.text = (step.text[: found.start()] + step.text[found.end() :]).strip()

    def usage(self, step: Step, message: Node) -> None:
        extra = message.node("extra") if isinstance(message.get("extra"), dict) else None
        response = (
            extra.node("response") if extra is not None and isinstance(extra.get("response"), dict) else None
        )
        if response is not None and isinstance(response.get("usage"), dict):
            step.prompt, step.output = counts(response.node("usage")) or (None, None)
        else:
            super().usage(step, message)
