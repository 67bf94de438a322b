# SPDX-License-Identifier: Apache-2.0
"""Translate messages that are made of typed parts: OpenTelemetry GenAI, Gemini, Bedrock Converse, Vercel AI.

Sources: the JSON schemas of `gen_ai.input.messages` (OpenTelemetry semantic conventions 1.37 and later), Gemini's
`Content`, Converse's `ContentBlock`, and the message parts of the AI SDK.
"""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.dialects.values import all_texts, as_text, first_text

_CALL_TYPES = {"tool_call", "tool-call", "toolCall", "server_tool_call"}
_RESPONSE_TYPES = {"tool_call_response", "tool-result", "toolResult", "server_tool_call_response"}
_KEYED_CALLS = ("functionCall", "function_call", "toolUse")
_KEYED_RESPONSES = ("functionResponse", "function_response", "toolResult")


def has_parts(message: dict[str, Any]) -> bool:
    """Whether a message's content is made of parts of these dialects."""
    if isinstance(message.get("parts"), list):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(part, dict) and _foreign(part) for part in content)


def _foreign(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in _CALL_TYPES | _RESPONSE_TYPES
    return any(
        isinstance(part.get(key), dict) for key in (*_KEYED_CALLS, *_KEYED_RESPONSES, "reasoningContent")
    )


def chat_of_parts(role: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Translate one message: results of tools are messages of their own, before what else it holds."""
    parts = message["parts"] if isinstance(message.get("parts"), list) else message["content"]
    kept: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, dict):
            kept.append(part)
            continue
        kind = part.get("type") if isinstance(part.get("type"), str) else None
        call = part if kind in _CALL_TYPES else _keyed(part, _KEYED_CALLS)
        response = part if kind in _RESPONSE_TYPES else _keyed(part, _KEYED_RESPONSES)
        if kind in {"reasoning", "thinking"} or part.get("thought") is True:
            thoughts.append(first_text(part, "content", "text", "thinking"))
        elif isinstance(part.get("reasoningContent"), dict):
            inner = part["reasoningContent"].get("reasoningText")
            thoughts.append(first_text(inner, "text") if isinstance(inner, dict) else "")
        elif call is not None:
            calls.append(_call(call))
        elif response is not None:
            results.append(_result(response))
        elif kind == "text" or (kind is None and isinstance(part.get("text"), str)):
            kept.append({"type": "text", "text": first_text(part, "content", "text")})
        else:
            kept.append(part)
    texts = all_texts(kept)
    said: dict[str, Any] = {"role": role, "content": kept if texts is None else "".join(texts)}
    if any(thoughts):
        said["reasoning_content"] = "\n".join(filter(None, thoughts))
    if calls:
        said["tool_calls"] = calls
    if results and not kept and not calls:
        return results
    return [*results, said]


def _keyed(part: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any] | None:
    return next((part[key] for key in keys if isinstance(part.get(key), dict)), None)


def _call(part: dict[str, Any]) -> dict[str, Any]:
    name = first_text(part, "name", "toolName", "tool_name") or "tool"
    given = _first(part, "arguments", "args", "input")
    return {"id": _id(part), "type": "function", "function": {"name": name, "arguments": given}}


def _result(part: dict[str, Any]) -> dict[str, Any]:
    value = _first(part, "response", "result", "output", "content")
    failed = part.get("isError") is True or part.get("is_error") is True or part.get("status") == "error"
    return {"role": "tool", "tool_call_id": _id(part), "content": _text(value)} | (
        {"is_error": True} if failed else {}
    )


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "value" in value:  # AI SDK 5
        return _text(value["value"])
    if isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in value
    ):
        return "".join(part["text"] for part in value)
    return as_text(value)


def _id(part: dict[str, Any]) -> str:
    return first_text(part, "id", "toolCallId", "tool_call_id", "toolUseId", "call_id")


def _first(part: dict[str, Any], *keys: str) -> Any:
    return next((part[key] for key in keys if part.get(key) is not None), None)
