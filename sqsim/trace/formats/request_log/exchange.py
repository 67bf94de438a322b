# SPDX-License-Identifier: Apache-2.0
"""Read one logged model call: its messages, response, token counts and times, and the session it names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.messages import ROLES, counts

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

Prints = tuple[str, ...]
"""Prints of messages, one a message: equal prints mean equal messages."""


@dataclass
class Exchange:
    """Logged model call."""

    file: SourceFile
    row: Node
    messages: list[Node]
    prints: Prints
    response: Node | None
    name: str
    session: str
    model: str | None
    tools: str
    usage: tuple[int, int] | None
    begins_s: float | None
    ends_s: float | None


def request_messages(row: Any) -> list[Any] | None:
    """List the messages that a logged call sent; None if the value is not one."""
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
    return None


def responded(row: Any) -> bool:
    """Whether a value holds a response next to its request."""
    return isinstance(row, dict) and _response(row) is not None


def _response(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the message that answered a logged call, OpenAI's or Anthropic's."""
    for key in ("response", "output", "completion"):
        part = row.get(key)
        if isinstance(part, str) and part.lstrip().startswith("{"):
            try:
                part = json.loads(part)
            except (ValueError, RecursionError):
                continue
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
    return None


def exchange(file: SourceFile, row: Node, number: int) -> Exchange | None:
    """Read a line as a call; None if it is not one. Raises `TraceError`."""
    messages = request_messages(row.value)
    if messages is None:
        return None
    given = _response(row.value)
    response = None if given is None else Node(given, row.file, row.line, "response")
    nodes = [Node(message, row.file, row.line, f"messages[{index}]") for index, message in enumerate(messages)]
    system = _anywhere(row.value, "system")
    if system and messages[0].get("role") != "system":
        nodes.insert(0, Node({"role": "system", "content": system}, row.file, row.line, "system"))
    begins_s, ends_s = _time(row.value, _BEGINS), _time(row.value, _ENDS)
    latency = row.get("latency")
    if begins_s is None and ends_s is not None and isinstance(latency, int | float) and 0 <= latency < 1e6:
        begins_s = ends_s - latency
    session = next((str(row.get(key)) for key in _SESSIONS if isinstance(row.get(key), str | int)), "")
    model = _anywhere(row.value, "model")
    tools = [_anywhere(row.value, key) for key in ("tools", "functions")]
    return Exchange(
        file=file,
        row=row,
        messages=nodes,
        prints=tuple(print_of(node.value) for node in nodes),
        response=response,
        name=_name(row.value) or f"{file.stem}:{number}",
        session=session,
        model=model if isinstance(model, str) else None,
        tools="\n".join(json.dumps(each, ensure_ascii=False) for each in tools if each),
        usage=_usage(row),
        begins_s=begins_s,
        ends_s=ends_s,
    )


def print_of(message: dict[str, Any]) -> str:
    """Make a message's print, without what clients change when they resend it (ids, caching marks, nulls)."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) and "text" in part else part for part in content]
        content = texts[0] if len(texts) == 1 and isinstance(texts[0], str) else texts
    calls = [
        (function.get("name"), function.get("arguments"))
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(function := call.get("function", call), dict)
    ]
    return json.dumps([message.get("role"), content or "", calls], sort_keys=True)


def _anywhere(row: dict[str, Any], key: str) -> Any:
    for part in (row, *(row.get(name) for name in _WITHIN)):
        if isinstance(part, dict) and part.get(key):
            return part[key]
    return None


def _name(row: dict[str, Any]) -> str:
    response = row.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    return next((name for name in (row.get("id"), row.get("request_id"), inner) if isinstance(name, str)), "")


def _usage(row: Node) -> tuple[int, int] | None:
    for key in ("response", "output", None):
        place = row if key is None else Node(row.get(key), row.file, row.line, key)
        if isinstance(place.get("usage"), dict):
            return counts(place.node("usage"))
    return counts(row)


def _time(row: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    """Read seconds since 1970: a number, of milliseconds if it is too large for seconds, or ISO 8601."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e14:
            return value / 1e3 if value > 1e11 else float(value)
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
