# SPDX-License-Identifier: Apache-2.0
"""Translate OpenAI Responses items: reasoning, messages, calls and their outputs.

Source: the item types of the public API reference (POST /v1/responses, `input` and `output`); the Agents SDK for JavaScript
writes `function_call_result` and `callId`. Items of one model call follow each other; its calls' outputs come after them.
"""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.dialects.values import all_texts, as_text, first_text

CALLS = {"function_call", "custom_tool_call"}
OUTPUTS = {
    "function_call_output",
    "function_call_result",
    "custom_tool_call_output",
    "computer_call_output",
    "computer_call_result",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
}
CLIENT_CALLS = {"computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
"""Calls that the client runs, which have an action in place of name and arguments."""
HOSTED = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "tool_search_call",
    "tool_search_output",
}
"""Calls that ran on the server: their results are part of the output."""
SIGNS = CALLS | OUTPUTS | CLIENT_CALLS | HOSTED
_ROLES = {"system", "developer", "user", "assistant"}


def is_item(value: Any) -> bool:
    """Whether a value can be a Responses item."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind is None or kind == "message":
        return str(value.get("role")) in _ROLES and "tool_calls" not in value
    return isinstance(kind, str) and (
        kind in SIGNS or kind in {"reasoning", "item_reference", "compaction", "context_compaction"}
    )


def chat_of_items(items: list[Any]) -> list[dict[str, Any]]:
    """Translate items in order; a type that is not known stays a content part, which counts as its JSON text."""
    messages: list[dict[str, Any]] = []
    spoken: dict[str, Any] | None = None

    def output() -> dict[str, Any]:
        nonlocal spoken
        if spoken is None:
            spoken = {"role": "assistant", "content": []}
            messages.append(spoken)
        return spoken

    for item in items:
        if not isinstance(item, dict):
            spoken = None
            messages.append({"role": "user", "content": item if isinstance(item, str) else [item]})
            continue
        kind = item.get("type") if isinstance(item.get("type"), str) else None
        if kind == "reasoning":
            said = output()
            said["reasoning_content"] = "\n".join(filter(None, [said.get("reasoning_content"), _thought(item)]))
        elif kind in CALLS:
            given = item.get("arguments", item.get("input"))
            _add_call(output(), item, str(item.get("name") or kind), given)
        elif kind in CLIENT_CALLS:
            given = {key: part for key, part in item.items() if key in {"action", "actions", "operation"}}
            _add_call(output(), item, str(kind).removesuffix("_call"), given)
        elif kind in HOSTED or (kind in {None, "message"} and item.get("role") == "assistant"):
            said = output()
            content = item.get("content") if kind not in HOSTED else [item]
            parts = content if isinstance(content, list) else [] if content is None else [content]
            said["content"] = [*said["content"], *parts]
        elif kind in OUTPUTS:
            spoken = None
            messages.append(
                {"role": "tool", "tool_call_id": _call_id(item), "content": _content(item.get("output"))}
                | ({"is_error": True} if item.get("status") == "failed" else {})
            )
        else:
            spoken = None
            role = item.get("role")
            content = item.get("content") if kind in {None, "message"} else [item]
            messages.append({"role": role if role in _ROLES else "user", "content": _content(content)})
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = _plain(message["content"])
    return messages


def _add_call(message: dict[str, Any], item: dict[str, Any], name: str, given: Any) -> None:
    message.setdefault("tool_calls", []).append(
        {"id": _call_id(item), "type": "function", "function": {"name": name, "arguments": given}}
    )


def _call_id(item: dict[str, Any]) -> str:
    return first_text(item, "call_id", "callId", "id")


def _thought(item: dict[str, Any]) -> str:
    """Return the visible text of a reasoning item; what is encrypted has none."""
    parts = [
        part for key in ("summary", "content") if isinstance(item.get(key), list) for part in item[key] or ()
    ]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(value: Any) -> Any:
    """Return an output as content: text, or a list of parts; other JSON as its text."""
    if value is None or isinstance(value, str | list):
        return value
    if isinstance(value, dict) and "type" in value:
        return [value]
    return as_text(value)


def _plain(parts: list[Any]) -> Any:
    """Join parts that are all text, so that one text prints alike in every form."""
    texts = all_texts(parts)
    return parts if texts is None else "".join(texts)
