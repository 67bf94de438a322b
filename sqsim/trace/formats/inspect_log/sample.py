# SPDX-License-Identifier: Apache-2.0
"""Read one sample of an Inspect log: its messages, with usage and times of its events.

A model event is the call that wrote an assistant's message: its output has the message's id (in older logs, its
content). Events whose message is in no conversation so far (a sub-agent's, a grader's) give conversations of their own:
the last one's input is the whole of it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.messages import Reader
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Invocation, Step
from sqsim.trace.formats.trajectories import like, moment_s

_ATTACHED = "attachment://"
_DEEP = 60


@dataclass
class Talk:
    """Conversation: its steps; `timed`: each tool call has a duration."""

    reader: Reader
    model: str = ""
    timed: bool = True
    calls: list[tuple[str, Invocation]] = field(default_factory=list)


@dataclass(frozen=True)
class _Tool:
    """Tool event: start and end in seconds since 1970 where stated, and the duration."""

    begun_s: float | None
    duration_s: float | None


class Sample:
    """Sample with its attachments in place."""

    def __init__(self, row: Node, notes: Notes) -> None:
        self._notes = notes
        self._attachments = row.node("attachments").value if row.get("attachments") else {}
        self._row = row
        self._models: list[Node] = []
        self._tools: dict[str, _Tool] = {}
        for event in row.nodes("events") if row.get("events") else []:
            kind = event.get("event")
            if kind == "model":
                self._models.append(event)
            elif kind == "tool" and event.optional_text("id"):
                self._tools[event.text("id")] = _tool(event)

    def talks(self) -> list[Talk]:
        """Read the sample's conversation and those of the events that are not in it. Raises `TraceError`."""
        messages = (
            [self._whole(message) for message in self._row.nodes("messages")]
            if self._row.get("messages")
            else []
        )
        left = [event for event in self._models if self._written(event) is not None]
        failed = len(self._models) - len(left)
        if failed:
            self._notes["a model event without an output was left out"] += failed
        talks = []
        if messages:
            talk, left = self._talk(messages, left)
            talks.append(talk)
        others = 0
        while left:
            event = left[-1]
            inputs = [self._whole(each) for each in event.nodes("input")] if event.get("input") else []
            written = self._written(event)
            talk, rest = self._talk([*inputs, *([written] if written is not None else [])], left)
            left = rest if len(rest) < len(left) else left[:-1]
            others += 1
            talks.append(talk)
        if others and messages:
            self._notes[
                "model calls outside a sample's messages (sub-agents, graders) are tasks of their own"
            ] += others
        return talks

    def _talk(self, messages: list[Node], events: list[Node]) -> tuple[Talk, list[Node]]:
        """Read a conversation with the events that wrote its messages; returns the other events too."""
        wrote: defaultdict[str, list[Node]] = defaultdict(list)
        for event in events:
            written = self._written(event)
            if written is not None:
                wrote[_key(written)].append(event)
        used: list[Node] = []
        found: list[Node | None] = []
        for message in messages:
            same = wrote.get(_key(message)) if message.get("role") == "assistant" else None
            found.append(same.pop(0) if same else None)
            used += [event for event in found[-1:] if event is not None]
        tools = next((json.dumps(e.get("tools"), ensure_ascii=False) for e in used if e.get("tools")), "")
        talk = Talk(Reader(self._notes, tools))
        for message, wrote_it in zip(messages, found, strict=True):
            self._read(talk, message, wrote_it)
        talk.timed = bool(talk.calls)
        for name, _ in talk.calls:
            tool = self._tools.get(name)
            talk.timed &= tool is not None and tool.duration_s is not None
        if talk.timed:
            for name, call in talk.calls:
                call.latency_s = round(self._tools[name].duration_s or 0.0, 3)
            self._overlaps(talk)
        taken = {id(event) for event in used}
        return talk, [event for event in events if id(event) not in taken]

    def _overlaps(self, talk: Talk) -> None:
        """Mark calls of one output as parallel only if they ran at one time."""
        for (name, call), (after, other) in zip(talk.calls, talk.calls[1:], strict=False):
            if call.parallel and other.parallel:
                first, second = self._tools[name], self._tools[after]
                if first.begun_s is None or second.begun_s is None:
                    continue
                if second.begun_s >= first.begun_s + (first.duration_s or 0.0):
                    call.parallel = other.parallel = False

    def _read(self, talk: Talk, message: Node, event: Node | None) -> None:
        value: dict[str, Any] = {**message.value, "content": _content(message.get("content"))}
        calls = message.nodes("tool_calls") if message.get("tool_calls") else []
        if calls:
            value["tool_calls"] = [
                {"id": call.get("id"), "name": call.text("function"), "arguments": call.get("arguments")}
                for call in calls
            ]
        if message.get("role") == "tool":
            value["is_error"] = message.get("error") is not None
        talk.reader.read(like(message, value))
        if message.get("role") != "assistant":
            return
        step = talk.reader.steps[-1]
        talk.calls += [(call.optional_text("id"), made) for call, made in zip(calls, step.calls, strict=False)]
        if event is None:
            return
        output = event.node("output")
        talk.model = talk.model or event.optional_text("model")
        if isinstance(output.get("usage"), dict):
            _use(step, output.node("usage"))

    def _written(self, event: Node) -> Node | None:
        """Return the message that a model event wrote; None if it failed, or has not ended."""
        output = event.get("output")
        choices = output.get("choices") if isinstance(output, dict) else None
        if not isinstance(choices, list) or not choices or event.get("pending") is True:
            return None
        first = event.node("output").nodes("choices")[0]
        message = self._whole(first.node("message"))
        return message if message.get("role") == "assistant" else None

    def _whole(self, node: Node) -> Node:
        """Put the attachments in a value's place."""
        if not isinstance(node.value, dict):
            raise node.wrong("is not an object")
        return like(node, self._resolved(node.value, 0))

    def _resolved(self, value: Any, deep: int) -> Any:
        if isinstance(value, str) and value.startswith(_ATTACHED):
            found = self._attachments.get(value.removeprefix(_ATTACHED))
            if isinstance(found, str):
                return found
            self._notes["an attachment that the log lacks counts as its name"] += 1
        elif isinstance(value, list) and deep < _DEEP:
            return [self._resolved(each, deep + 1) for each in value]
        elif isinstance(value, dict) and deep < _DEEP:
            return {key: self._resolved(each, deep + 1) for key, each in value.items()}
        return value


def _tool(event: Node) -> _Tool:
    begun_s, ended_s = moment_s(event, "timestamp"), moment_s(event, "completed")
    if begun_s is not None and ended_s is not None:
        return _Tool(begun_s, max(0.0, ended_s - begun_s))
    return _Tool(begun_s, event.seconds("working_time") if event.get("working_time") is not None else None)


def _use(step: Step, usage: Node) -> None:
    """Note the usage: the prompt is what the total has beyond the output, as providers differ in `input_tokens`."""
    sizes = {
        key: usage.count(key) if usage.get(key) is not None else 0
        for key in (
            "input_tokens",
            "output_tokens",
            "total_tokens",
            "input_tokens_cache_read",
            "input_tokens_cache_write",
        )
    }
    everything = sizes["input_tokens"] + sizes["input_tokens_cache_read"] + sizes["input_tokens_cache_write"]
    beyond = sizes["total_tokens"] - sizes["output_tokens"]
    step.prompt = beyond if sizes["input_tokens"] <= beyond <= everything else everything
    step.output = sizes["output_tokens"]
    if usage.get("reasoning_tokens"):
        step.reasoning_tokens = usage.count("reasoning_tokens")


def _key(message: Node) -> str:
    """Identify a message: its id, or its content and calls in logs without ids."""
    own = message.get("id")
    if isinstance(own, str) and own:
        return own
    return json.dumps([message.get("content"), message.get("tool_calls")], sort_keys=True, default=str)


def _content(content: Any) -> Any:
    """Write Inspect's reasoning parts as thinking blocks."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "thinking", "thinking": part.get("reasoning") or part.get("summary")}
        if isinstance(part, dict) and part.get("type") == "reasoning"
        else part
        for part in content
    ]
