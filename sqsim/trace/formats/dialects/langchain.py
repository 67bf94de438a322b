# SPDX-License-Identifier: Apache-2.0
"""Translate LangChain's messages, as LangSmith and Langfuse keep them.

Forms: a serialised object (`lc`, `id: [..., "HumanMessage"]`, `kwargs`), `{"type": "human", "data": {...}}`, and the flat
`{"type": "human", "content": ...}` of `BaseMessage.model_dump()`.
"""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.dialects.values import mapping

_KINDS = {
    "human": "user",
    "HumanMessage": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessage": "system",
    "SystemMessageChunk": "system",
    "developer": "system",
    "tool": "tool",
    "ToolMessage": "tool",
    "ToolMessageChunk": "tool",
    "function": "tool",
    "FunctionMessage": "tool",
    "ChatMessage": "user",
}


def chat_of_langchain(value: dict[str, Any]) -> dict[str, Any] | None:
    """Translate one message; None if the value is not LangChain's."""
    kind: Any = value.get("type")
    body: Any = value
    if isinstance(value.get("kwargs"), dict) and isinstance(value.get("id"), list) and value["id"]:
        kind, body = value["id"][-1], value["kwargs"]
    elif isinstance(value.get("data"), dict):
        body = value["data"]
    elif "content" not in value:
        return None
    role = _KINDS.get(kind) if isinstance(kind, str) else None
    if role is None:
        return None
    extra = mapping(body, "additional_kwargs")
    said: dict[str, Any] = {"role": role, "content": body.get("content")}
    if role == "assistant":
        calls = body.get("tool_calls") or extra.get("tool_calls")
        if isinstance(calls, list) and calls:
            said["tool_calls"] = [_call(call) for call in calls]
        blocks = body.get("content")
        if calls and isinstance(blocks, list):  # Anthropic's answers repeat their calls as blocks
            said["content"] = [
                block for block in blocks if not isinstance(block, dict) or block.get("type") != "tool_use"
            ]
        for key in ("reasoning_content", "reasoning"):
            if isinstance(extra.get(key), str):
                said["reasoning_content"] = extra[key]
        if isinstance(body.get("usage_metadata"), dict):
            said["usage"] = body["usage_metadata"]
    if role == "tool":
        said["tool_call_id"] = body.get("tool_call_id") or ""
        if body.get("status") == "error":
            said["is_error"] = True
    return said


def _call(call: Any) -> Any:
    if not isinstance(call, dict) or isinstance(call.get("function"), dict):
        return call
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": call.get("name"), "arguments": call.get("args")},
    }
