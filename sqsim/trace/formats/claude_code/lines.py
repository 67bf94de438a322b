# SPDX-License-Identifier: Apache-2.0
"""The lines of a session log as events: which of them count, who spoke, and when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.notes import Notes

EVENTS = {"user", "assistant"}


def events(file: SourceFile, notes: Notes) -> Iterator[Node]:
    """The file's objects in their order, each uuid once."""
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
    """Whether the event is a line of a model call; what the client itself wrote is none."""
    if event.get("type") != "assistant" or event.get("isApiErrorMessage") is True:
        return False
    message = event.get("message")
    return not (isinstance(message, dict) and message.get("model") == "<synthetic>")


def call_key(event: Node) -> tuple[str, str]:
    """What names a model call: its message's id and its request's; the line's own uuid where there is no id."""
    message = event.node("message")
    name = message.optional_text("id")
    return (name or event.text("uuid"), event.optional_text("requestId") if name else "")


def time_s(event: Node) -> float:
    """The event's time in seconds since 1970. Raises `TraceError`."""
    text = event.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise event.wrong(
            f"{text!r} is not a time", "timestamp", "give ISO 8601, as in 2026-06-01T05:40:20.151Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
