# SPDX-License-Identifier: Apache-2.0
"""Import `agentic_mooncake`: Mooncake lines that name what they wait for and which tools ran (ai-dynamo/dynamo).

A line is a request with its whole prompt. It starts when all of `wait_for` are done and `delay` and `tool_wait_ms` have
passed (Dynamo's docs/dynosim: "Agentic Mooncake traces"). `tool_events` are the calls that ran before it. A session
whose first line waits for another session's is its sub-agent; `branches` says the same from the other side.
`prefix_reset` marks a new context; Dynamo's own converter sets it on first lines only, so blocks tell of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.block_size import block_size
from sqsim.trace.formats.mooncake import BLOCK_TOKENS, TOKEN_S, prompt_of
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.workflow import Event, Request, Start, Workflow, waited_s, workflow_tasks
from sqsim.trace.schema import Task

_KEYS = ("request_id", "input_length", "output_length")
_OWN = ("wait_for", "branches", "prefix_reset", "tool_wait_ms", "tool_events")


class AgenticMooncake(Format):
    """One task a session."""

    name = "agentic_mooncake"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not all(isinstance(value, dict) and all(key in value for key in _KEYS) for value in head):
            return None
        own = [key for key in _OWN if any(key in value for value in head)]
        return f"every line has {', '.join(_KEYS)}, some {', '.join(own)}" if own else None

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        block = block_size(file, BLOCK_TOKENS, notes).tokens
        sessions: dict[str, list[Node]] = {}
        seen: set[str] = set()
        for node in file.nodes():
            name = _name(node, "request_id")
            if name in seen:
                raise node.wrong(f"{name!r} is an earlier line's", "request_id", "give every line its own id")
            seen.add(name)
            session = name if node.get("session_id") is None else _name(node, "session_id")
            sessions.setdefault(session, []).append(node)
        for nodes in sessions.values():
            if all(node.get("timestamp") is not None for node in nodes):
                nodes.sort(key=lambda node: node.seconds("timestamp"))
        starts = _starts(sessions, notes)
        derived: list[Node] = []
        work = Workflow(
            sessions={name: _requests(nodes, derived, notes) for name, nodes in sessions.items()},
            starts=starts,
            arrivals={
                name: nodes[0].seconds("timestamp", 1e-3)
                for name, nodes in sessions.items()
                if name not in starts and nodes[0].get("timestamp") is not None
            },
            block_tokens=block,
            timing="derived" if derived else "recorded",
        )
        yield from workflow_tasks(file, self.name, work, notes)


def _name(node: Node, key: str) -> str:
    value = node.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return node.text(key)


class _Place(NamedTuple):
    """Session of a request, and its index there."""

    session: str
    step: int


def _starts(sessions: Mapping[str, Sequence[Node]], notes: Notes) -> dict[str, Start]:
    places = {
        _name(node, "request_id"): _Place(session, index)
        for session, nodes in sessions.items()
        for index, node in enumerate(nodes)
    }
    waits: dict[_Place, list[_Place]] = {}
    for own in places.values():
        node = sessions[own.session][own.step]
        for name in node.texts("wait_for"):
            if name in places:
                waits.setdefault(own, []).append(places[name])
            else:
                notes["a line waits for a request that is not in the file"] += 1
    for own in places.values():
        for name in sessions[own.session][own.step].texts("branches"):
            if name in places:
                waits.setdefault(places[name], []).append(own)
    awaiting: dict[str, list[_Place]] = {}
    for place, awaited in waits.items():
        for session in {each.session for each in awaited}:
            awaiting.setdefault(session, []).append(place)
    starts: dict[str, Start] = {}
    for session in sessions:
        parent = next((each for each in waits.get(_Place(session, 0), ()) if each.session != session), None)
        if parent is None:
            continue
        joins = [
            place.step
            for place in awaiting.get(session, ())
            if place.session == parent.session and place.step > parent.step
        ]
        starts[session] = Start(parent.session, parent.step, min(joins, default=None))
    return starts


def _requests(nodes: Sequence[Node], derived: list[Node], notes: Notes) -> list[Request]:
    requests = [
        Request(
            node,
            prompt_of(node),
            node.count("output_length"),
            restarts=True if node.get("prefix_reset") is True else None,
        )
        for node in nodes
    ]
    if nodes[0].get("tool_events"):
        notes["tool events before a session's first request were left out"] += len(
            nodes[0].nodes("tool_events")
        )
    for request, (before, node) in zip(requests, pairwise(nodes), strict=False):
        request.events = _events(node)
        given = [key for key in ("delay", "delay_ms", "tool_wait_ms") if node.get(key) is not None]
        tools_s = node.seconds("tool_wait_ms", 1e-3) if "tool_wait_ms" in given else None
        after_s = sum(node.seconds(key, 1e-3) for key in given if key != "tool_wait_ms")
        if not given and not request.events and None not in (before.get("timestamp"), node.get("timestamp")):
            gap_s = node.seconds("timestamp", 1e-3) - before.seconds("timestamp", 1e-3)
            after_s = max(0.0, round(gap_s - TOKEN_S * request.output, 3))
            notes[
                f"a wait is what lies between two timestamps, less {TOKEN_S} s a generated token (assumed)"
            ] += 1
            derived.append(node)
        if request.events and tools_s is not None:
            after_s = max(0.0, round(after_s + tools_s - waited_s(request.events), 9))
        request.tools_s, request.after_s = tools_s or 0.0, after_s
    return requests


def _events(node: Node) -> list[Event]:
    return [tool_event(event) for event in node.nodes("tool_events")] if node.get("tool_events") else []


def tool_event(node: Node, *, failed: bool = False) -> Event:
    """Read a tool's event, Dynamo's: `tool_class`, `status`, times and tokens. Raises `TraceError`."""
    times = [
        node.seconds(key, 1e-3) if node.get(key) is not None else None
        for key in ("started_at_unix_ms", "ended_at_unix_ms", "duration_ms")
    ]
    starts_s, ends_s, lasts_s = times
    if lasts_s is None:
        lasts_s = 0.0 if starts_s is None or ends_s is None else max(0.0, round(ends_s - starts_s, 6))
    if starts_s is None and ends_s is not None:
        starts_s = max(0.0, ends_s - lasts_s)
    status = node.optional_text("status")
    failed = failed or (bool(status) and status not in _GOOD)
    return Event(
        tool=node.optional_text("tool_class") or "tool",
        latency_s=lasts_s,
        # Times are whole milliseconds; a duration may be finer, and says where the call ends.
        span_s=None if starts_s is None else (starts_s, starts_s + lasts_s),
        tokens=None if node.get("output_tokens") is None else node.count("output_tokens"),
        error=(node.optional_text("error_type") or status or "error") if failed else None,
    )


_GOOD = {"succeeded", "success", "ok", "completed"}
