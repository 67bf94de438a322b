# SPDX-License-Identifier: Apache-2.0
"""Read one logged model call: its messages, response, token counts and times, and the session it names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects import chat_answer, chat_messages, is_item, parsed
from sqsim.trace.formats.dialects.usage import Usage, usage_of
from sqsim.trace.formats.messages import ROLES

_WITHIN = ("request", "kwargs", "body", "input", "optional_params", "model_parameters", "params")
"""Keys that hold a request inside a line, if its parts are not in the line itself."""
_SESSIONS = (
    "session_id",
    "conversation_id",
    "trajectory_id",
    "litellm_session_id",
    "sessionId",
    "trace_id",
    "traceId",
)
_BEGINS, _ENDS = ("startTime", "start_time", "request_start"), ("endTime", "end_time", "timestamp")
_RESPONSES = ("response", "output", "completion")

Prints = tuple[str, ...]
"""Prints of messages, one a message: equal prints mean equal messages."""


@dataclass
class Exchange:
    """Logged model call.

    `messages` is empty where only its counts were recorded. `answer_id` is the server's name of the response, `continues`
    the one that the request goes on from by name instead of by text. `scope` names the agent that called; `alone`: it is the
    only one there, so its next prompt replaces this one if it does not continue it. `restarts`: it did so.
    """

    file: SourceFile
    row: Node
    messages: list[Node]
    prints: Prints
    response: Node | None
    name: str
    session: str = ""
    model: str | None = None
    tools: str = ""
    usage: Usage | None = None
    begins_s: float | None = None
    ends_s: float | None = None
    answer_id: str = ""
    continues: str = ""
    scope: str = ""
    alone: bool = False
    restarts: bool = False


def request_messages(row: Any) -> list[Any] | None:
    """List the chat messages that a logged call sent; None if the value is not one."""
    if not isinstance(row, dict):
        return None
    for part in (row, *(row.get(key) for key in _WITHIN)):
        found = part.get("messages") if isinstance(part, dict) else part if isinstance(part, list) else None
        if (
            isinstance(found, list)
            and found
            and all(isinstance(m, dict) and m.get("role") in ROLES for m in found)
        ):
            return found
    return _responses_request(row)


def _responses_request(row: dict[str, Any]) -> list[Any] | None:
    """List the messages of a request to OpenAI's Responses API whose response is logged; empty if only that is."""
    answer = _response_object(row)
    if answer is None:
        return None
    for part in (row, *(row.get(key) for key in _WITHIN)):
        if isinstance(part, dict) and part is not answer and isinstance(part.get("input"), str | list):
            return chat_messages({key: part[key] for key in ("input", "instructions") if key in part}) or []
    return []


def _response_object(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the Responses API's response that a value holds or is."""
    for part in (*(row.get(key) for key in _RESPONSES), row):
        body = part.get("body") if isinstance(part, dict) and isinstance(part.get("body"), dict) else part
        if isinstance(body, dict) and body.get("object") == "response" and isinstance(body.get("output"), list):
            return body
    return None


def responded(row: Any) -> bool:
    """Whether a value holds a response next to its request."""
    return isinstance(row, dict) and _response(row) is not None


def _response(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the message that answered a logged call, OpenAI's or Anthropic's."""
    own = _response_object(row)
    if own is not None:
        return chat_answer({"output": own["output"]})
    for key in _RESPONSES:
        part = parsed(row.get(key))
        if not isinstance(part, dict):
            continue
        body = part["body"] if isinstance(part.get("body"), dict) else part
        choices = body.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            message = choices[0].get("message")
            if isinstance(message, dict):
                return {"role": "assistant", **message}
        if body.get("role") == "assistant" and "content" in body:
            return body
        output = body.get("output")
        if isinstance(output, list) and output and all(map(is_item, output)):
            return chat_answer(body)
    return None


def exchange(file: SourceFile, row: Node, number: int) -> Exchange | None:
    """Read a line as a call; None if it is not one. Raises `TraceError`."""
    messages = request_messages(row.value)
    if messages is None:
        return None
    given = _response(row.value)
    begins_s, ends_s = time_s(row.value, _BEGINS), time_s(row.value, _ENDS)
    latency = row.get("latency")
    if begins_s is None and ends_s is not None and isinstance(latency, int | float) and 0 <= latency < 1e6:
        begins_s = ends_s - latency
    own = _response_object(row.value)
    if own is not None and begins_s is None:
        begins_s, ends_s = time_s(own, ("created_at",)), time_s(own, ("completed_at",))
    session = next((str(row.get(key)) for key in _SESSIONS if isinstance(row.get(key), str | int)), "")
    model = anywhere(row.value, "model")
    nodes, prints = noded(messages, row, anywhere(row.value, "system"))
    continues = anywhere(row.value, "previous_response_id") or (own or {}).get("previous_response_id")
    return Exchange(
        file=file,
        row=row,
        messages=nodes,
        prints=prints,
        response=None if given is None else Node(given, row.file, row.line, "response"),
        name=_name(row.value) or f"{file.stem}:{number}",
        session=session,
        model=model if isinstance(model, str) else (own or {}).get("model"),
        tools=tools_of(anywhere(row.value, "tools"), anywhere(row.value, "functions")),
        usage=_usage(row),
        begins_s=begins_s,
        ends_s=ends_s,
        answer_id=answer_id(row.value),
        continues=continues if isinstance(continues, str) else "",
        scope="" if nodes else file.path.name,
    )


def noded(messages: list[Any], row: Node, system: Any = None) -> tuple[list[Node], Prints]:
    """Return the messages of a prompt with their places, and their prints; `system` stands before them."""
    nodes = [Node(message, row.file, row.line, f"messages[{index}]") for index, message in enumerate(messages)]
    if system and messages and messages[0].get("role") not in {"system", "developer"}:
        nodes.insert(0, Node({"role": "system", "content": system}, row.file, row.line, "system"))
    return nodes, tuple(print_of(node.value) for node in nodes)


def tools_of(*given: Any) -> str:
    """Write tool definitions as JSON text, one list a line."""
    return "\n".join(json.dumps(parsed(each), ensure_ascii=False) for each in given if each)


def print_of(message: dict[str, Any]) -> str:
    """Make a message's print, without what clients change when they resend it (ids, caching marks, nulls)."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and "text" in part else _unmarked(part)
            for part in content
        ]
        content = texts[0] if len(texts) == 1 and isinstance(texts[0], str) else texts
    given = message.get("tool_calls")
    calls = [
        (function.get("name"), parsed(function.get("arguments")))
        for call in (given if isinstance(given, list) else ())
        if isinstance(call, dict) and isinstance(function := call.get("function", call), dict)
    ]
    return json.dumps([message.get("role"), content or "", calls], sort_keys=True)


def _unmarked(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {key: value for key, value in part.items() if key != "cache_control" and value is not None}


def anywhere(row: dict[str, Any], key: str) -> Any:
    """Return a part of a request, from the line or from what holds the request in it; None if it is empty."""
    for part in (row, *(row.get(name) for name in _WITHIN)):
        if isinstance(part, dict) and part.get(key):
            return part[key]
    return None


def _name(row: dict[str, Any]) -> str:
    named = (row.get("id"), row.get("request_id"), answer_id(row))
    return next((name for name in named if isinstance(name, str)), "")


def answer_id(row: dict[str, Any]) -> str:
    """Return the server's name of the response, empty if it has none."""
    own = _response_object(row)
    held = (own, *(row.get(key) for key in _RESPONSES))
    bodies = (
        part["body"] if isinstance(part, dict) and isinstance(part.get("body"), dict) else part for part in held
    )
    named = (body.get("id") for body in bodies if isinstance(body, dict))
    return next((name for name in named if isinstance(name, str)), "")


def _usage(row: Node) -> Usage | None:
    for key in ("response", "output", None):
        place = row if key is None else Node(parsed(row.get(key)), row.file, row.line, key)
        if isinstance(place.get("body"), dict):
            place = place.node("body")
        if isinstance(place.get("usage"), dict):
            return usage_of(place.node("usage"))
    return usage_of(row)


def time_s(row: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    """Read seconds since 1970: a number, of milliseconds if it is too large for seconds, or ISO 8601."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e14:
            return value / 1e3 if value > 1e11 else float(value)
        if isinstance(value, str):
            found = iso_s(value)
            if found is not None:
                return found
    return None


def iso_s(text: str) -> float | None:
    """Read an ISO 8601 time as seconds since 1970, UTC where it names no zone; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
