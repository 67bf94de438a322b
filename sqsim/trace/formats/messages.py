# SPDX-License-Identifier: Apache-2.0
"""Read chat messages, OpenAI's or Anthropic's, into steps: the part that all formats of messages share.

Calls are `tool_calls` of an assistant message, its `tool_use` blocks, or a gpt-oss `recipient`; responses are messages
of the role `tool`, or `tool_result` blocks of a user's. A message on the channel `analysis` and a `thinking` block are
reasoning.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import Said, part, said
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Invocation, Step

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_LISTS = ("messages", "traj", "conversation")
_THOUGHTS = {"thinking", "redacted_thinking", "reasoning"}
_ERROR = re.compile(
    r"\s*(?:(?:tool |unexpected |fatal )?(?:error|exception)[ \t]*(?::|-|$)|traceback \(most recent call last\)"
    r"|[A-Za-z_.]*(?:Error|Exception): |\{\s*\"error\"\s*:(?!\s*(?:null|false|0|\"\"|\[\]|\{\})\s*[,}]))",
    re.IGNORECASE | re.MULTILINE,
)
"""Beginning of a failed call's response: a title, not a word in a sentence."""


def conversation(value: Any) -> list[Any] | None:
    """Find the message list that a value is or holds, empty if a run failed; None if it is no conversation."""
    if isinstance(value, dict):
        key = next((key for key in _LISTS if isinstance(value.get(key), list) or key in value), None)
        if key is None:
            return None
        value = value[key] if value[key] is not None else []
    elif not value:
        return None
    if not isinstance(value, list):
        return None
    good = all(isinstance(message, dict) and message.get("role") in ROLES for message in value)
    return value if good else None


def rows_of(node: Node) -> list[Node]:
    """List the conversations of a value: itself, or the elements of a list of them."""
    return node.items() if isinstance(node.value, list) and conversation(node.value) is None else [node]


def conversations(head: list[Any]) -> list[list[Any]] | None:
    """List a file's first conversations; None if some value is not one, or none holds a message."""
    values = head[0] if len(head) == 1 and isinstance(head[0], list) and conversation(head[0]) is None else head
    found = [messages for value in values if (messages := conversation(value)) is not None]
    return found if any(found) and len(found) == len(values) else None


def messages_of(row: Node) -> list[Node]:
    """List the messages of a conversation, each with its place."""
    if isinstance(row.value, list):
        return row.items()
    keys = row.value if isinstance(row.value, dict) else {}
    key = next((key for key in _LISTS if key in keys), _LISTS[0])
    return [] if key in keys and row.get(key) is None else row.nodes(key)


def row_id(file: SourceFile, row: Node, number: int) -> str:
    """Return a row's own id, with its trial if it has one; its index where it has none."""
    named = (row.get(key) for key in ("task_id", "id", "conversation_id"))
    own = next((name for name in named if isinstance(name, str | int)), number)
    trial = row.get("trial")
    return f"{file.stem}:{own}" if trial is None else f"{file.stem}:{own}.{trial}"


def definitions(row: Node) -> str:
    """Write as JSON text the tool definitions next to the messages, which are in every prompt."""
    found = (row.get(key) for key in ("tools", "functions"))
    return "\n".join(json.dumps(tools, ensure_ascii=False) for tools in found if tools)


def holds_blocks(messages: list[Any]) -> bool:
    """Whether messages hold Anthropic's content blocks."""
    kinds = {"tool_use", "tool_result", "thinking", "redacted_thinking"}
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    return any(
        isinstance(block, dict) and str(block.get("type")) in kinds
        for content in contents
        if isinstance(content, list)
        for block in content
    )


class _Open(NamedTuple):
    """Call without a response yet."""

    key: str
    step: Step
    call: Invocation


class Reader:
    """Reader of messages, in order, into steps."""

    def __init__(self, notes: Notes, system: str = "") -> None:
        self.system = system
        self.question = ""
        self.question_other_tokens = 0
        self.steps: list[Step] = []
        self.notes = notes
        self._open: list[_Open] = []
        self._harmony = False
        self._calls = 0

    def read(self, message: Node) -> None:
        """Read the next message. Raises `TraceError`."""
        role = message.text("role")
        if role in {"system", "developer", "user"}:
            self.hears(message, system=role != "user")
        elif role == "assistant":
            self.says(message)
        elif role in {"tool", "function"}:
            self._response(message, said(message, self.notes))
        else:
            raise message.wrong(f"{role!r} is no role", "role", f"roles are {', '.join(ROLES)}")

    def hears(self, message: Node, *, system: bool = False) -> None:
        """Read a message not from the model: instructions, a user's words, or the results of tools."""
        content = message.get("content")
        results = isinstance(content, list) and holds_blocks([message.value])
        if not results:
            self.heard(said(message, self.notes), system=system)
            return
        for block in message.nodes("content"):
            if block.get("type") == "tool_result":
                self._response(block, said(block, self.notes))
            else:
                self.heard(part(block.value, self.notes), system=system)

    def heard(self, told: Said, *, system: bool = False) -> None:
        """Add a text to the context that belongs to no call."""
        if self.steps:
            last = self.steps[-1]
            last.user = joined(last.user, told.text)
            last.user_other_tokens += told.other_tokens
        elif system:
            self.system = joined(self.system, told.text)
        else:
            self.question = joined(self.question, told.text)
            self.question_other_tokens += told.other_tokens

    def says(self, message: Node) -> None:
        """Read a model call's output, or a part of one (gpt-oss writes a message a channel)."""
        harmony = message.get("recipient") is not None or message.get("channel") is not None
        last = self.steps[-1] if self.steps else None
        if last is None or last.calls or last.user or not (harmony and self._harmony):
            last = Step()
            self.steps.append(last)
        self._harmony = harmony
        self.usage(last, message)
        hidden = [said(message, self.notes, key).text for key in ("reasoning_content", "reasoning", "thinking")]
        last.reasoning = joined(last.reasoning, *hidden)
        text = self._blocks(last, message)
        recipient = message.optional_text("recipient")
        if recipient not in {"", "all", "user", "assistant"}:
            self.call(last, recipient, text, "")
        elif message.get("channel") == "analysis":
            last.reasoning = joined(last.reasoning, text)
        else:
            last.text = joined(last.text, text)
        for call in message.nodes("tool_calls") if message.get("tool_calls") else ():
            function = call.node("function") if call.get("function") is not None else call
            self.call(last, function.text("name"), function.get("arguments"), call.optional_text("id"))
        if message.get("function_call"):
            function = message.node("function_call")
            self.call(last, function.text("name"), function.get("arguments"), "")

    def usage(self, step: Step, message: Node) -> None:
        """Note the token counts of a message, if it has any."""
        if isinstance(message.get("usage"), dict):
            step.prompt, step.output = counts(message.node("usage")) or (step.prompt, step.output)

    def _blocks(self, step: Step, message: Node) -> str:
        """Return the text of an output; its thoughts and calls are added to the step."""
        if not isinstance(message.get("content"), list):
            return said(message, self.notes).text
        texts = []
        for block in message.nodes("content"):
            kind = block.get("type")
            if kind == "tool_use":
                self.call(step, block.text("name"), block.get("input"), block.optional_text("id"))
            elif isinstance(kind, str) and kind in _THOUGHTS:
                step.thinks = True
                step.reasoning = joined(step.reasoning, block.optional_text("thinking"))
            else:
                texts.append(part(block.value, self.notes).text)
        return "".join(texts)

    def call(self, step: Step, tool: str, arguments: Any, call_id: str) -> None:
        """Note a call of an output; an older one that still waits under its id will not be answered."""
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call = Invocation(tool, f"{tool}({written})", _parsed(arguments))
        self._calls += 1
        key = call_id or f"#{self._calls}"
        self._open = [each for each in self._open if each.key != key or each.step is step]
        self._open.append(_Open(key, step, call))
        step.calls.append(call)

    def waits(self) -> bool:
        """Whether a call has no response yet."""
        return bool(self._open)

    def _response(self, message: Node, told: Said) -> None:
        own = next(
            (name for key in ("tool_call_id", "tool_use_id", "id") if (name := message.optional_text(key))), ""
        )
        found = next((each for each in self._open if each.key == own), None)
        if found is None and (not own or all(each.key.startswith("#") for each in self._open)):
            found = next(iter(self._open), None)  # without ids, responses come in the order of the calls
        if found is None:
            self.notes["a tool response whose call is not in the recording counts as a user's text"] += 1
            self.heard(told)
            return
        failed = (
            any(message.get(key) is True for key in ("error", "is_error")) or message.get("status") == "error"
        )
        self.answered(found, told, failed=failed or _ERROR.match(told.text) is not None)

    def answered(self, found: _Open | None, told: Said, *, failed: bool) -> None:
        """Give a call its response; without a named call, the longest open one gets it."""
        found = found or self._open[0]
        self._open.remove(found)
        call = found.call
        call.response, call.other_tokens = told
        call.parallel = len(found.step.calls) > 1
        if failed:
            call.error = told.text.strip().split("\n", 1)[0][:200] or "error"


def counts(usage: Node) -> tuple[int, int] | None:
    """Read prompt and output tokens of a usage object, OpenAI's or Anthropic's; None if it holds neither."""
    if usage.get("prompt_tokens") is not None:
        return usage.count("prompt_tokens"), _count(usage, "completion_tokens")
    if usage.get("input_tokens") is not None:
        cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
        return usage.count("input_tokens") + sum(_count(usage, key) for key in cached), _count(
            usage, "output_tokens"
        )
    return None


def _count(usage: Node, key: str) -> int:
    return 0 if usage.get(key) is None else usage.count(key)


def _parsed(arguments: Any) -> Any:
    """Parse arguments into an object where they are one; a model may write invalid JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def joined(*texts: str) -> str:
    """Join the non-empty texts, one a line."""
    return "\n".join(text for text in texts if text)
