# SPDX-License-Identifier: Apache-2.0
"""Tell the dialects of prompts and answers apart and translate them into OpenAI chat messages."""

from __future__ import annotations

import json
from typing import Any

from sqsim.trace.formats.dialects.items import SIGNS, chat_of_items, is_item
from sqsim.trace.formats.dialects.langchain import chat_of_langchain
from sqsim.trace.formats.dialects.monocle import chat_of_monocle
from sqsim.trace.formats.dialects.parts import chat_of_parts, has_parts
from sqsim.trace.formats.messages import ROLES

_PROMPTS = ("messages", "input", "contents", "prompt", "prompts")
_SYSTEMS = ("system", "instructions", "systemInstruction", "system_instruction", "system_prompt")
_ROLE_NAMES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant"}
_DEEPEST = 8
"""Objects around a prompt; recordings have one or two."""


def parsed(value: Any) -> Any:
    """Parse a text that is a JSON object or list; any other value stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def chat_messages(value: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """Translate a prompt: messages, a request's body, or a text; None if it is none of these, or empty."""
    value = parsed(value)
    if depth > _DEEPEST or not value:
        return None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, dict):
        single = _message(value)
        if single is not None:
            return single
        for key in _PROMPTS:
            found = chat_messages(value.get(key), depth + 1)
            if found is not None:
                return [*_system(value, found), *found]
        return None
    if not isinstance(value, list):
        return None
    if len(value) == 1 and isinstance(value[0], list):  # LangChain's batches of one
        return chat_messages(value[0], depth + 1)
    if any(isinstance(item, dict) and str(item.get("type")) in SIGNS | {"reasoning"} for item in value) and all(
        is_item(item) for item in value
    ):
        return chat_of_items(value)
    translated = [_message(each) for each in value]
    if any(each is None for each in translated):
        return None
    return [message for each in translated for message in each or ()]


def chat_answer(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """Translate an answer: a response's body, a message, or a text; None if it is none of these."""
    value = parsed(value)
    if depth > _DEEPEST or not value:
        return None
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    if isinstance(value, list):
        if all(is_item(item) for item in value) and any(item.get("type") for item in value):
            return _spoken(chat_of_items(value))
        found = (chat_answer(item, depth + 1) for item in (value if depth else value[:1]) if item)
        return next((answer for answer in found if answer is not None), None)
    if not isinstance(value, dict):
        return None
    for key in ("choices", "candidates", "generations"):
        if isinstance(value.get(key), list):
            answers = (chat_answer(choice, depth + 1) for choice in value[key][:1])
            return next((answer for answer in answers if answer is not None), None)
    if isinstance(value.get("output"), list) and all(is_item(item) for item in value["output"]):
        return _spoken(chat_of_items(value["output"]))
    direct = _spoken(_message(value) or [])
    if direct is None and {"content", "parts", "tool_calls"} & value.keys() and "role" not in value:
        direct = _spoken(_message({"role": "assistant", **value}) or [])
    if direct is not None:
        return direct
    for key in ("message", "body", "output", "response", "data", "messages", "text", "completion"):
        if value.get(key):
            inner = value[key]
            if key == "messages" and isinstance(inner, list):
                return _spoken(chat_messages(inner, depth + 1) or [])
            return chat_answer(inner, depth + 1)
    return None


def _spoken(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last message of the model."""
    return next((message for message in reversed(messages) if message.get("role") == "assistant"), None)


def _message(value: Any) -> list[dict[str, Any]] | None:
    """Translate one message, which may hold the results of several tools."""
    value = parsed(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, dict):
        return None
    role = value.get("role")
    role = _ROLE_NAMES.get(role, role) if isinstance(role, str) else None
    if role in ROLES:
        if has_parts(value):
            return chat_of_parts(str(role), value)
        return [value if value["role"] == role else {**value, "role": role}]
    found = chat_of_langchain(value)
    if found is not None:
        return [found]
    if isinstance(value.get("message"), dict) and len(value) <= 4:
        return _message(value["message"])
    found = chat_of_monocle(value)
    return None if found is None else [found]


def _system(request: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the system text next to the messages of a request, unless they begin with it."""
    given = next((request[key] for key in _SYSTEMS if request.get(key)), None)
    if given is None or messages[0].get("role") in {"system", "developer"}:
        return []
    parts = given.get("parts") if isinstance(given, dict) else given
    if isinstance(parts, list):
        return chat_of_parts("system", {"parts": parts})
    return [{"role": "system", "content": given}]
