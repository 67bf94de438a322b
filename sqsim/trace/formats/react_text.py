# SPDX-License-Identifier: Apache-2.0
"""Import ReAct text: `<think>`, `<tool_call>`, `<tool_response>`, `<answer>` in chat messages (WebDancer).

Tool responses are user messages. Instructions up to `User: ` in the first one are the same for all tasks, so
they count as prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import conversation, messages_of, row_id
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Invocation, Step, Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_TAGS = ("<think>", "<tool_call>", "<answer>")
_BLOCK = re.compile(r"<(think|tool_call|answer)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?(?:</tool_response>|\Z)", re.DOTALL)
_ASKED = "\n\nUser: "


class ReactText(Format):
    """ReAct as text: one task a row."""

    name = "react_text"

    def evidence(self, head: Sequence[Any]) -> str | None:
        found: set[str] = set()
        for value in head:
            messages = conversation(value)
            if messages is None or any("tool_calls" in message for message in messages):
                return None
            spoken = [str(message.get("content")) for message in messages if message["role"] == "assistant"]
            found |= {tag for tag in _TAGS if any(tag in text for text in spoken)}
        if not found & {"<tool_call>", "<answer>"}:
            return None
        return f"messages whose assistant texts hold {', '.join(tag for tag in _TAGS if tag in found)}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for number, row in enumerate(file.nodes()):
            script = _script(file, row, number, notes)
            if script is None:
                notes["a conversation without an assistant message was left out"] += 1
            else:
                yield transcript_task(script, notes)


def _script(file: SourceFile, row: Node, number: int, notes: Notes) -> Transcript | None:
    prefix: list[str] = []
    question = ""
    steps: list[Step] = []
    finish = False
    for message in messages_of(row):
        role, text = message.text("role"), said(message, notes).text
        if role == "assistant":
            step, finish = _step(text)
            steps.append(step)
        elif not steps and role == "user":
            instructions, asked, rest = text.rpartition(_ASKED)
            prefix += [instructions] if asked else []
            question = f"{question}\n{rest}".strip()
        elif not steps:
            prefix.append(text)
        else:
            _hear(steps[-1], text, notes)
    if not steps:
        return None
    return Transcript(
        task_id=row_id(file, row, number),
        source=file.source(ReactText.name),
        prefix="\n".join(prefix),
        question=question,
        steps=steps,
        timing="absent",
        outcome=Outcome(finish="answer" if finish else "unparsable"),
    )


def _step(text: str) -> tuple[Step, bool]:
    """Read an output by its tags, and whether it answers; everything outside the tags is text."""
    step = Step()
    answers = False
    outside = _BLOCK.sub("", text)
    for tag, inner in _BLOCK.findall(text):
        if tag == "think":
            step.reasoning += inner.strip()
        elif tag == "tool_call":
            step.calls.append(_call(inner.strip()))
        else:
            answers = True
            step.text += inner.strip()
    step.text += outside.strip()
    return step, answers


def _call(text: str) -> Invocation:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    known = isinstance(value, dict) and isinstance(value.get("name"), str)
    return Invocation(value["name"] if known else "unparsable", text, value.get("arguments") if known else None)


def _hear(step: Step, text: str, notes: Notes) -> None:
    """Read a user message after an output: responses belong to the calls in order, the rest is the user's."""
    waiting = [call for call in step.calls if call.response is None]
    responses = _RESPONSE.findall(text)
    for call, response in zip(waiting, responses, strict=False):
        call.response = response
        call.parallel = len(step.calls) > 1
    spare = responses[len(waiting) :]
    if spare:
        notes["a tool response without a call counts as user text"] += len(spare)
    rest = _RESPONSE.sub("", text).strip()
    step.user = "\n".join(part for part in (step.user, *spare, rest) if part)
