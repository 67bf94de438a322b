# SPDX-License-Identifier: Apache-2.0
"""Read the lines of a session log as events: their relevance, their speaker and their time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.notes import Notes

EVENTS = {"user", "assistant"}


def events(file: SourceFile, notes: Notes) -> Iterator[Node]:
    """Yield the file's objects in their order, each uuid once."""
    seen: set[str] = set()
    for line in file.nodes():
        uuid = line.get("uuid")
        if isinstance(uuid, str) and uuid in seen:
            notes["a line that stands there twice (same uuid) was left out"] += 1
            continue
        if isinstance(uuid, str):
            seen.add(uuid)
        yield line


def is_call(event: Node) -> bool:
    """Whether the event is a line of a model call; a message that the client itself wrote is none."""
    if event.get("type") != "assistant" or event.get("isApiErrorMessage") is True:
        return False
    message = event.get("message")
    return not (isinstance(message, dict) and message.get("model") == "<synthetic>")


def call_key(event: Node) -> tuple[str, str]:
    """Return the key of a model call: the ids of message and request; without an id, the line's own uuid."""
    message = event.node("message")
    name = message.optional_text("id")
    return (name or event.text("uuid"), event.optional_text("requestId") if name else "")


def time_s(event: Node) -> float:
    """Return the event's time in seconds since 1970. Raises `TraceError`."""
    text = event.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise event.wrong(
            f"{text!r} is not a time", "timestamp", "give ISO 8601, as in 2026-06-01T05:40:20.151Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
