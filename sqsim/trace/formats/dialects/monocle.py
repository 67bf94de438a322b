# SPDX-License-Identifier: Apache-2.0
"""Translate Monocle's messages: objects of one role, `{"human": "..."}`, or of the calls of an answer.

Source: recorded traces in monocle2ai/monocle (`test_tools/tests`, `apptrace/tests`); calls are objects with `name` and `args`, a
text that is a list of them, or `{"tools": [{"tool_id", "tool_name", "tool_arguments"}]}`.
"""

from __future__ import annotations

import json
from typing import Any

from sqsim.trace.formats.dialects.values import first_text, mapping

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
}


def chat_of_monocle(value: dict[str, Any]) -> dict[str, Any] | None:
    """Translate one message; None if the value is not Monocle's."""
    if len(value) != 1:
        return None
    ((role, content),) = value.items()
    if role == "tools":
        calls = _calls(content)
        return {"role": "assistant", "content": "", "tool_calls": calls} if calls else None
    if role not in _ROLES or not isinstance(content, str | dict | list | None):
        return None
    if _ROLES[role] == "assistant":
        calls = _calls(content)
        if calls:
            return {"role": "assistant", "content": "", "tool_calls": calls}
    if isinstance(content, str | None):
        return {"role": _ROLES[role], "content": content or ""}
    return {"role": _ROLES[role], "content": json.dumps(content, ensure_ascii=False)}


def _calls(content: Any) -> list[dict[str, Any]]:
    """Return the calls that a content is; empty if it is not made of calls alone."""
    if isinstance(content, str) and content.startswith(("[{", "{")):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            return []
    given = content if isinstance(content, list) else [content]
    calls = []
    for each in given:
        name = first_text(each, "tool_name", "name")
        held = mapping(each)
        if not name or not {"args", "arguments", "tool_arguments"} & held.keys():
            return []
        arguments = held.get("tool_arguments", held.get("args", held.get("arguments")))
        calls.append(
            {
                "id": first_text(each, "tool_id", "id"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls
