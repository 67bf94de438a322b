# SPDX-License-Identifier: Apache-2.0
"""Export OpenAI chat messages: a conversation a line, for traces whose texts were recorded.

A step is an assistant message with its `reasoning_content`, its text and `tool_calls`, and with `usage`, so that token
counts stay those of the trace. A task without texts is refused: a chat of empty messages would be another task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.exports.base import Exporter, Written
from sqsim.trace.exports.context import steps_of
from sqsim.trace.formats.base import Format
from sqsim.trace.formats.openai_chat import OpenAIChat
from sqsim.trace.schema import Answer, Call, Task, Turn


class OpenAIChatExport(Exporter):
    """Conversations."""

    name = "openai_chat"
    says = "OpenAI chat messages with tool calls and usage, one conversation a line (needs recorded texts)"

    @property
    def reader(self) -> Format:
        return OpenAIChat()

    def written(self, family: Sequence[Task]) -> Written:
        return Written([self._conversation(task) for task in family], list(family))

    def _conversation(self, task: Task) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for said in said_of(task):
            messages += [*said.before, said.message | {"usage": said.usage}]
        messages += said.after
        value: dict[str, Any] = {"task_id": task.task_id, "messages": messages}
        if task.model is not None:
            value["model"] = task.model
        if task.outcome.correct is not None:
            value["reward"] = float(task.outcome.correct)
        return value


class Said(NamedTuple):
    """Model call as chat messages: what is new before it, its own message, its counts, and what its tools answered."""

    before: list[dict[str, Any]]
    message: dict[str, Any]
    usage: dict[str, int]
    after: list[dict[str, Any]]
    restarted: bool


def said_of(task: Task) -> list[Said]:
    """Write a task's model calls as chat messages. Raises `TraceError` for a task without texts."""
    if task.carries.text == "absent":
        raise TraceError(
            f"task {task.task_id} has no text, and chat messages are nothing else",
            fix="export to mooncake, aiperf, agentic_mooncake or weka_trace, which need none",
        )
    found: list[Said] = []
    new = [{"role": "system", "content": task.prefix.text}] if task.prefix.text else []
    new.append({"role": "user", "content": task.question.text or ""})
    calls: list[Turn | Answer] = [*task.turns, *([] if task.answer is None else [task.answer])]
    for index, (step, call) in enumerate(zip(steps_of(task), calls, strict=True)):
        reset = step.turn.reset if step.turn is not None else None
        if reset is not None and reset.keep_text:
            new = [*new, {"role": "user", "content": reset.keep_text}]
        message: dict[str, Any] = {"role": "assistant", "content": call.text or ""}
        if call.reasoning_text:
            message["reasoning_content"] = call.reasoning_text
        after = _heard(index, step.turn, message, last=index + 1 == len(calls)) if step.turn is not None else []
        usage = {"prompt_tokens": step.prompt_tokens, "completion_tokens": step.output}
        found.append(Said(new, message, usage, after, step.restarted))
        new = after
    return found


def _heard(index: int, turn: Turn, message: dict[str, Any], *, last: bool) -> list[dict[str, Any]]:
    """Add a turn's calls to its message; return the responses and what a user wrote."""
    ids = [f"call_{index}_{number}" for number in range(len(turn.calls))]
    if ids:
        message["tool_calls"] = [
            {"id": name, "type": "function", "function": _function(each)}
            for name, each in zip(ids, turn.calls, strict=True)
        ]
    heard = [_response(name, each) for name, each in zip(ids, turn.calls, strict=True)]
    if turn.template_text or (not ids and not last):
        heard.append({"role": "user", "content": turn.template_text or ""})
    return heard


def _function(call: Call) -> dict[str, str]:
    """Write a call; its text is `tool(arguments)` as importers write it, else taken for the arguments."""
    text = call.call_text or ""
    if text.startswith(f"{call.tool}(") and text.endswith(")"):
        text = text[len(call.tool) + 1 : -1]
    return {"name": call.tool, "arguments": text or json.dumps({})}


def _response(name: str, call: Call) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": name, "content": call.response_text or ""}
    if call.error is not None:
        message["error"] = True
    return message
