# SPDX-License-Identifier: Apache-2.0
"""Import LangGraph threads: a state with `values.messages`, or a thread's history of states, of which the longest counts.

LangChain's messages come plain, as `{"type", "data"}`, or serialised (`lc`, `kwargs`). Threads state no times of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.messages import Reader
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import Trajectories, like
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_NAMES = {f"{name.capitalize()}Message{end}": name for name in _ROLES for end in ("", "Chunk")} | {
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
}


class LangGraph(Trajectories):
    """LangGraph: one task a thread."""

    name = "langgraph"

    def evidence(self, head: Sequence[Any]) -> str | None:
        states = head[0] if len(head) == 1 and isinstance(head[0], list) else head
        found = [_messages(state) for state in states]
        if not found or None in found or not any(found):
            return None
        return f"{len(found)} states with values.messages of the types human, ai and tool"

    def rows(self, node: Node) -> list[Node]:
        if not isinstance(node.value, list):
            return [node]
        threads: dict[str, Node] = {}
        for state in node.items():
            own = _thread(state.value)
            before = threads.get(own)
            if before is None or len(_messages(state.value) or ()) > len(_messages(before.value) or ()):
                threads[own] = state
        return list(threads.values())

    def begins_s(self, row: Node) -> float | None:  # noqa: ARG002 - `created_at` is the time of the last state
        return None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        reader = Reader(notes)
        values = row.node("values")
        for message in values.nodes("messages"):
            _read(reader, message, notes)
        if not reader.steps:
            return []
        metadata = row.get("metadata")
        model = metadata.get("model_name") if isinstance(metadata, dict) else None
        return [
            transcript_task(
                Transcript(
                    task_id=_thread(row.value) or f"{file.stem}:{number}",
                    source=file.source(self.name),
                    prefix=reader.system,
                    question=reader.question,
                    question_other_tokens=reader.question_other_tokens,
                    steps=reader.steps,
                    timing="absent",
                    model=model if isinstance(model, str) else None,
                    outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
                    arrival_s=arrival_s,
                ),
                notes,
            )
        ]


def _messages(state: Any) -> list[Any] | None:
    """Return the messages of a state; None if it is no state."""
    values = state.get("values") if isinstance(state, dict) else None
    messages = values.get("messages") if isinstance(values, dict) else None
    if not isinstance(messages, list):
        return [] if values in ({}, []) else None
    return (
        messages
        if all(isinstance(each, dict) and _kind(each) in {*_ROLES, "remove"} for each in messages)
        else None
    )


def _thread(state: Any) -> str:
    for part in ("checkpoint", "metadata", "config"):
        inner = state.get(part) if isinstance(state, dict) else None
        inner = inner.get("configurable") if isinstance(inner, dict) and part == "config" else inner
        if isinstance(inner, dict) and isinstance(inner.get("thread_id"), str):
            return str(inner["thread_id"])
    return ""


def _kind(message: dict[str, Any]) -> str:
    if isinstance(message.get("id"), list) and message.get("lc") is not None:
        return _NAMES.get(str(message["id"][-1:][0]) if message["id"] else "", "")
    kind = message.get("type")
    return _NAMES.get(kind, kind) if isinstance(kind, str) else ""


def _read(reader: Reader, message: Node, notes: Notes) -> None:
    if not isinstance(message.value, dict):
        raise message.wrong("is not an object")
    kind = _kind(message.value)
    for inner in ("kwargs", "data"):
        if isinstance(message.get(inner), dict):
            message = message.node(inner)
    if kind == "remove":
        notes["a message that removes another one was left out"] += 1
        return
    if kind not in _ROLES:
        raise message.wrong(f"{kind[:40]!r} is no type of message", "type", f"types are {', '.join(_ROLES)}")
    value: dict[str, Any] = {"role": _ROLES[kind], "content": message.get("content")}
    if kind == "ai":
        value |= _output(message, notes)
    elif value["role"] == "tool":
        value |= {"tool_call_id": message.get("tool_call_id"), "status": message.get("status")}
    reader.read(like(message, value))
    if kind == "ai" and isinstance(message.get("usage_metadata"), dict):
        usage, step = message.node("usage_metadata"), reader.steps[-1]
        if usage.get("input_tokens") is not None:  # LangChain's counts include the cached part
            step.prompt = usage.count("input_tokens")
            step.output = usage.count("output_tokens") if usage.get("output_tokens") is not None else None
        details = usage.get("output_token_details")
        if isinstance(details, dict) and details.get("reasoning") is not None:
            step.reasoning_tokens = usage.node("output_token_details").count("reasoning")


def _output(message: Node, notes: Notes) -> dict[str, Any]:
    """Write an `ai` message as an assistant's; calls stand both in `tool_calls` and, with some models, in blocks."""
    more = (
        message.node("additional_kwargs")
        if isinstance(message.get("additional_kwargs"), dict)
        else like(message, {})
    )
    given = message.nodes("tool_calls") if message.get("tool_calls") else []
    calls = [{"id": call.get("id"), "name": call.text("name"), "arguments": call.get("args")} for call in given]
    if not calls and isinstance(more.get("tool_calls"), list):
        calls = more.get("tool_calls")
    invalid = message.nodes("invalid_tool_calls") if message.get("invalid_tool_calls") else []
    for call in invalid:
        notes["an invalid tool call is a call"] += 1
        calls.append(
            {
                "id": call.get("id"),
                "name": call.optional_text("name") or "invalid",
                "arguments": call.get("args"),
            }
        )
    content = message.get("content")
    if isinstance(content, list):
        content = [
            _block(block)
            for block in content
            if not (calls and _is(block, "tool_use", "function_call", "tool_call"))
        ]
    return {"content": content, "tool_calls": calls, "reasoning_content": more.get("reasoning_content")}


def _is(block: Any, *kinds: str) -> bool:
    return isinstance(block, dict) and block.get("type") in kinds


def _block(block: Any) -> Any:
    return {"type": "thinking", "thinking": block.get("reasoning")} if _is(block, "reasoning") else block
