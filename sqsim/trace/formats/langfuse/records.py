# SPDX-License-Identifier: Apache-2.0
"""Read Langfuse's records in the forms of its exports, in camelCase (API, UI) or snake_case (blob storage, Python).

Source: the schemas `Trace`, `TraceWithFullDetails` and `Observation` of Langfuse's public API, and its ingestion events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqsim.trace.formats.base import Node

TYPES = {
    "SPAN",
    "GENERATION",
    "EVENT",
    "AGENT",
    "TOOL",
    "CHAIN",
    "RETRIEVER",
    "EVALUATOR",
    "EMBEDDING",
    "GUARDRAIL",
}
_EVENTS = {"span-": "SPAN", "generation-": "GENERATION", "event-": "EVENT", "agent-": "AGENT", "tool-": "TOOL"}


def field(row: Any, name: str) -> Any:
    """Return a field by its name in camelCase, or in snake_case; None if it is missing."""
    if not isinstance(row, dict):
        return None
    if row.get(name) is not None:
        return row[name]
    return row.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def is_observation(value: Any) -> bool:
    """Whether a value is an observation."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if value["type"].upper() not in TYPES or not isinstance(value.get("id"), str):
        return False
    return field(value, "traceId") is not None or field(value, "startTime") is not None


def is_trace(value: Any) -> bool:
    """Whether a value is a trace with its observations."""
    if not isinstance(value, dict) or not isinstance(value.get("observations"), list):
        return False
    return any(map(is_observation, value["observations"])) or (
        not value["observations"] and field(value, "sessionId") is not None
    )


def is_batch(value: Any) -> bool:
    """Whether a value is a batch of ingestion events."""
    events = value.get("batch") if isinstance(value, dict) else None
    return isinstance(events, list) and any(
        isinstance(each, dict)
        and isinstance(each.get("body"), dict)
        and str(each.get("type")).endswith(("-create", "-update"))
        for each in events
    )


def rows(value: Any) -> list[Any]:
    """List the records of a value: itself, a list, or a page of the API."""
    if isinstance(value, dict) and isinstance(value.get("data"), list) and "meta" in value:
        return list(value["data"])
    return value if isinstance(value, list) else [value]


class Record:
    """Observation with its place and the session of its trace."""

    __slots__ = ("place", "session")

    def __init__(self, place: Node, session: Any) -> None:
        self.place = place
        self.session = session if isinstance(session, str) else ""


def records(node: Node) -> Iterator[Record | None]:
    """Yield the observations of a value; None for a record that is none."""
    for row in rows(node.value):
        if is_trace(row):
            trace = row.get("trace") if isinstance(row.get("trace"), dict) else row
            for observation in row["observations"]:
                own = observation if is_observation(observation) else None
                if own is not None and field(own, "traceId") is None:
                    own = {**own, "traceId": field(trace, "id")}
                yield (
                    None
                    if own is None
                    else Record(_node(node, own), field(own, "sessionId") or field(trace, "sessionId"))
                )
        elif is_batch(row):
            yield from _ingested(node, row["batch"])
        elif is_observation(row):
            yield Record(_node(node, row), field(row, "sessionId"))
        else:
            yield None


def _ingested(node: Node, events: list[Any]) -> Iterator[Record | None]:
    """Put the events of each observation together: later ones complete and correct the first."""
    whole: dict[str, dict[str, Any]] = {}
    sessions: dict[Any, Any] = {}
    for event in events:
        body = event.get("body") if isinstance(event, dict) else None
        kind = str(event.get("type")) if isinstance(event, dict) else ""
        if not isinstance(body, dict) or not isinstance(body.get("id"), str):
            yield None
        elif kind == "trace-create":
            sessions[body["id"]] = field(body, "sessionId")
        else:
            own = next((name for prefix, name in _EVENTS.items() if kind.startswith(prefix)), body.get("type"))
            known = {key: value for key, value in body.items() if value is not None}
            whole[body["id"]] = {**whole.get(body["id"], {}), **known, "type": own}
    for body in whole.values():
        yield Record(_node(node, body), sessions.get(field(body, "traceId"))) if is_observation(body) else None


def _node(node: Node, value: Any) -> Node:
    return Node(value, node.file, node.line, str(value.get("id"))[:40])
