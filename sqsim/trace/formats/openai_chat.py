"""OpenAI chat messages with tool calls: tau-bench's array, `{"messages": [...]}` a line, or a bare list of messages.

gpt-oss logs are read too: an assistant message with a `recipient` is a call, the tool message behind it the
response, and a message on the channel `analysis` is reasoning of the same output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Invocation, Step, Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_LISTS = ("messages", "traj", "conversation")
_ERROR = re.compile(r"\s*(error|exception|traceback|tool error)\b", re.IGNORECASE)


def conversation(value: Any) -> list[Any] | None:
    """The list of messages that a JSON value is or holds; None if it is no conversation."""
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    if not isinstance(value, list) or not value:
        return None
    good = all(isinstance(message, dict) and message.get("role") in ROLES for message in value)
    return value if good else None


class OpenAIChat(Format):
    """One task a conversation; every run of assistant messages without a user or tool between is its own call."""

    name = "openai_chat"

    def evidence(self, head: Sequence[Any]) -> str | None:
        values = (
            head[0] if len(head) == 1 and isinstance(head[0], list) and conversation(head[0]) is None else head
        )
        found = [messages for value in values if (messages := conversation(value)) is not None]
        if not found or len(found) < len(values):
            return None
        calls = sum(
            "tool_calls" in message or "recipient" in message for messages in found for message in messages
        )
        return (
            f"{len(found)} of {len(values)} values hold messages with role and content, {calls} with tool calls"
        )

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        number = 0
        for node in file.nodes():
            rows = node.items() if isinstance(node.value, list) and conversation(node.value) is None else [node]
            for row in rows:
                script = _script(file, row, number)
                number += 1
                if script is None:
                    notes["a conversation without an assistant message was left out"] += 1
                else:
                    yield transcript_task(script, notes)


def messages_of(row: Node) -> list[Node]:
    """The messages of a conversation, each with its place."""
    if isinstance(row.value, list):
        return row.items()
    key = (
        next((key for key in _LISTS if key in row.value), _LISTS[0])
        if isinstance(row.value, dict)
        else _LISTS[0]
    )
    return row.nodes(key)


def row_id(file: SourceFile, row: Node, number: int) -> str:
    """A row's own id, with its trial if it has one; its index where it has none."""
    named = (row.get(key) for key in ("task_id", "id", "conversation_id"))
    own = next((name for name in named if isinstance(name, str | int)), number)
    trial = row.get("trial")
    return f"{file.stem}:{own}" if trial is None else f"{file.stem}:{own}.{trial}"


def content_text(message: Node) -> str:
    """A message's text: a string, null, or a list of parts of which the text parts count."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise message.wrong(f"{type(content).__name__} is neither text nor a list of parts", "content")
    return "".join(
        part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def _script(file: SourceFile, row: Node, number: int) -> Transcript | None:
    reader = _Reader()
    for message in messages_of(row):
        reader.read(message)
    if not reader.steps:
        return None
    reward = row.get("reward")
    answered = not reader.steps[-1].calls
    return Transcript(
        task_id=row_id(file, row, number),
        source=file.source(OpenAIChat.name),
        prefix=reader.system,
        question=reader.question,
        steps=reader.steps,
        timing="absent",
        model=row.get("model") if isinstance(row.get("model"), str) else None,
        outcome=Outcome(
            finish="answer" if answered else "unknown",
            correct=reward >= 1 if isinstance(reward, int | float) else None,
        ),
    )


class _Reader:
    """Reads messages in order into steps."""

    def __init__(self) -> None:
        self.system = ""
        self.question = ""
        self.steps: list[Step] = []
        self._open: dict[str, Invocation] = {}  # calls without a response yet
        self._harmony = False
        self._calls = 0

    def read(self, message: Node) -> None:
        role, text = message.text("role"), content_text(message)
        if role in {"system", "developer"} and not self.steps:
            self.system = _joined(self.system, text)
        elif role in {"user", "system", "developer"}:
            if self.steps:
                self.steps[-1].user = _joined(self.steps[-1].user, text)
            else:
                self.question = _joined(self.question, text)
        elif role == "assistant":
            self._assistant(message, text)
        elif role in {"tool", "function"}:
            self._response(message, text)
        else:
            raise message.wrong(f"{role!r} is no role", "role", f"roles are {', '.join(ROLES)}")

    def _assistant(self, message: Node, text: str) -> None:
        harmony = message.get("recipient") is not None or message.get("channel") is not None
        last = self.steps[-1] if self.steps else None
        if last is None or last.calls or last.user or not (harmony and self._harmony):
            last = Step()
            self.steps.append(last)
        self._harmony = harmony
        usage = message.get("usage")
        if isinstance(usage, dict) and "prompt_tokens" in usage:
            recorded = message.node("usage")
            last.prompt, last.output = recorded.count("prompt_tokens"), recorded.count("completion_tokens")
        hidden = [message.optional_text(key) for key in ("reasoning_content", "reasoning", "thinking")]
        last.reasoning = _joined(last.reasoning, *hidden)
        recipient = message.optional_text("recipient")
        if recipient not in {"", "all", "user", "assistant"}:
            self._call(last, message, recipient, text, "")
        elif message.get("channel") == "analysis":
            last.reasoning = _joined(last.reasoning, text)
        else:
            last.text = _joined(last.text, text)
        for call in message.nodes("tool_calls") if message.get("tool_calls") else ():
            function = call.node("function") if call.get("function") is not None else call
            self._call(
                last, function, function.text("name"), function.get("arguments"), call.optional_text("id")
            )
        if message.get("function_call"):
            function = message.node("function_call")
            self._call(last, function, function.text("name"), function.get("arguments"), "")

    def _call(self, step: Step, place: Node, tool: str, arguments: Any, call_id: str) -> None:
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call = Invocation(tool, f"{tool}({written})", _parsed(arguments))
        self._calls += 1
        key = call_id or f"#{self._calls}"
        if key in self._open:
            raise place.wrong(f"call id {key!r} is open already", fix="give each call its own id")
        self._open[key] = call
        step.calls.append(call)

    def _response(self, message: Node, text: str) -> None:
        own = message.optional_text("tool_call_id") or message.optional_text("id")
        key = own if own in self._open else None
        if key is None and (not own or all(name.startswith("#") for name in self._open)):
            key = next(iter(self._open), None)  # without ids, responses come in the order of the calls
        if key is None:
            raise message.wrong(
                f"no call waits for the response {own!r}", "tool_call_id", "put the call before it"
            )
        call = self._open.pop(key)
        call.response = text
        call.parallel = sum(len(step.calls) for step in self.steps[-1:]) > 1
        if message.get("error") is True or message.get("status") == "error" or _ERROR.match(text):
            call.error = text.strip().split("\n", 1)[0][:200] or "error"


def _parsed(arguments: Any) -> Any:
    """Arguments as an object, where they are one; a model may write what is no JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def _joined(*texts: str) -> str:
    return "\n".join(text for text in texts if text)
