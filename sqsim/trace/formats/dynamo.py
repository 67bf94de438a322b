# SPDX-License-Identifier: Apache-2.0
"""Import `dynamo_request_trace`: the events of `dynamo.request.trace.v1` and `dynamo.agent.trace.v1` (ai-dynamo/dynamo).

A line is an event, maybe wrapped as `{timestamp, event}`. `request_end` has a request's lengths, times and 64-bit hashes
of its blocks (`request.replay`); `tool_end` and `tool_error` have a tool's. `agent_context` names the session
(`trajectory_id`, `session_id` in newer files) and its parent. As in Dynamo's own converter (lib/bench, request_trace) a
sub-agent was started by its parent's last request that ended before, and is joined by the first that started after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.agentic_mooncake import tool_event
from sqsim.trace.formats.base import Format, Node, SourceFile, Unit
from sqsim.trace.formats.counts import Prompt
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.workflow import Event, Request, Start, Workflow, waited_s, workflow_tasks
from sqsim.trace.schema import Task

_ENDS = {"tool_end", "tool_error"}
_EVENTS = {"request_end", "tool_start", *_ENDS}


@dataclass
class _Timed:
    """Request with its times in seconds since 1970, and its tool calls' names by their ids."""

    name: str
    request: Request
    start_s: float
    end_s: float
    tools: dict[str, str]


@dataclass
class _Trace:
    """What the files' events say."""

    sessions: dict[str, list[_Timed]]
    parents: dict[str, str]
    tools: dict[str, list[tuple[Node, str]]]
    block_tokens: int | None = None


class DynamoTrace(Format):
    """One task a session."""

    name = "dynamo_request_trace"

    def evidence(self, head: Sequence[Any]) -> str | None:
        events = [_event(value) for value in head]
        known = [event for event in events if event is not None and event.get("event_type") in _EVENTS]
        if not known or len(known) < len(head):
            return None
        schemas = sorted({str(event.get("schema")) for event in known if event.get("schema") is not None})
        return f"{len(known)} values are events of {', '.join(schemas) or 'a request trace'}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        yield from self._tasks([file], notes)

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit: Dynamo starts a new file after so many bytes, in the middle of sessions."""
        yield Unit(files[0], lambda: self._tasks(files, notes))

    def _tasks(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Task]:
        trace = _read(files, notes)
        for requests in trace.sessions.values():
            requests.sort(key=lambda timed: (timed.start_s, timed.end_s))
        for session, events in trace.tools.items():
            _attribute(trace.sessions.get(session, []), events, notes)
        starts = _starts(trace, notes)
        ends = _joined_ends(trace, starts)
        for session, requests in trace.sessions.items():
            for index, (timed, later) in enumerate(pairwise(requests)):
                _wait(timed, later, ends.get((session, index + 1)))
        first_s = min((requests[0].start_s for requests in trace.sessions.values()), default=0.0)
        work = Workflow(
            sessions={name: [each.request for each in requests] for name, requests in trace.sessions.items()},
            starts=starts,
            arrivals={
                name: round(requests[0].start_s - first_s, 6)
                for name, requests in trace.sessions.items()
                if name not in starts
            },
            block_tokens=trace.block_tokens or 1,
        )
        yield from workflow_tasks(files[0], self.name, work, notes)


def _event(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict) and isinstance(value.get("event"), dict):
        value = value["event"]
    if not isinstance(value, dict) or not isinstance(value.get("event_type"), str):
        return None
    return value if "event_time_unix_ms" in value else None


def _read(files: Sequence[SourceFile], notes: Notes) -> _Trace:
    """Read the events of all files; of several, one that cannot be read is left out."""
    trace = _Trace({}, {}, {})
    for file in files:
        part = _Trace({}, {}, {}, block_tokens=trace.block_tokens)
        try:
            _read_file(file, part, notes)
        except TraceError as fault:
            if len(files) == 1:
                raise
            notes.unreadable(file.path, fault)
            continue
        for name, requests in part.sessions.items():
            trace.sessions.setdefault(name, []).extend(requests)
        for name, events in part.tools.items():
            trace.tools.setdefault(name, []).extend(events)
        trace.parents |= part.parents
        trace.block_tokens = part.block_tokens
    for name, requests in trace.sessions.items():
        copies = len(requests) - len({timed.name for timed in requests})
        if copies:
            notes["a request that an earlier line has was left out"] += copies
            trace.sessions[name] = list({timed.name: timed for timed in reversed(requests)}.values())
    return trace


def _read_file(file: SourceFile, trace: _Trace, notes: Notes) -> None:
    for line in file.nodes():
        node = line.node("event") if isinstance(line.get("event"), dict) else line
        kind = node.text("event_type")
        session, parent = _context(node)
        if kind == "request_end":
            timed = _request(node, trace, notes)
            if timed is None:
                continue
            session = session or timed.name
            trace.sessions.setdefault(session, []).append(timed)
            if parent is not None and parent != session:
                trace.parents.setdefault(session, parent)
        elif kind in _ENDS and session is not None:
            trace.tools.setdefault(session, []).append((node, kind))
        elif kind != "tool_start":
            notes["an event of unknown type or without a session was left out"] += 1


def _context(node: Node) -> tuple[str | None, str | None]:
    """Return the session of an event and its parent, by older or newer names."""
    if not isinstance(node.get("agent_context"), dict):
        return None, None
    context = node.node("agent_context")
    own, parent = (
        next((context.text(key) for key in keys if context.get(key) is not None), None)
        for keys in (("trajectory_id", "session_id"), ("parent_trajectory_id", "parent_session_id"))
    )
    return own, parent


def _request(node: Node, trace: _Trace, notes: Notes) -> _Timed | None:
    request = node.node("request")
    replay = request.node("replay") if request.get("replay") is not None else None
    if (replay is None and request.get("input_tokens") is None) or request.get("output_tokens") is None:
        notes["a request without its lengths was left out"] += 1
        return None
    if replay is None:
        prompt = Prompt(request.count("input_tokens"), ())
        notes["a request without replay metrics has no blocks; nothing is shared by them"] += 1
    else:
        prompt = _prompt(replay, trace)
    event_s = node.seconds("event_time_unix_ms", 1e-3)
    lasts_s = request.seconds("total_time_ms", 1e-3) if request.get("total_time_ms") is not None else None
    if request.get("request_received_ms") is not None:
        start_s = request.seconds("request_received_ms", 1e-3)
    else:
        start_s = max(0.0, event_s - (lasts_s or 0.0))
    end_s = start_s + lasts_s if lasts_s is not None else max(start_s, event_s)
    finish = request.get("finish_reason_metadata")
    tools = {}
    if isinstance(finish, dict) and finish.get("tool_calls"):
        calls = request.node("finish_reason_metadata").nodes("tool_calls")
        tools = {
            call.optional_text("id") or f"#{i}": call.optional_text("name") for i, call in enumerate(calls)
        }
    return _Timed(
        request.text("request_id"), Request(node, prompt, request.count("output_tokens")), start_s, end_s, tools
    )


def _prompt(replay: Node, trace: _Trace) -> Prompt:
    size = replay.count("trace_block_size")
    if not size or trace.block_tokens not in {None, size}:
        raise replay.wrong(
            f"{size} is not the size of the file's blocks ({trace.block_tokens or 'it is 0'})",
            "trace_block_size",
            "give files of one block size",
        )
    trace.block_tokens = size
    tokens, blocks = replay.count("input_length"), replay.whole_numbers("input_sequence_hashes")
    if not tokens // size <= len(blocks) <= -(-tokens // size):
        raise replay.wrong(
            f"{len(blocks)} hashes of {size} tokens do not make {tokens} tokens",
            "input_sequence_hashes",
            "give one hash a block",
        )
    return Prompt(tokens, blocks)


def _attribute(requests: Sequence[_Timed], events: Sequence[tuple[Node, str]], notes: Notes) -> None:
    """Give each tool event to the request that called it: by the call's id, else the last one that ended before."""
    by_id = {name: timed for timed in requests for name in timed.tools}
    answered: Counter[str] = Counter()
    for node, kind in events:
        tool = node.node("tool")
        name = tool.optional_text("tool_call_id")
        if tool.get("ended_at_unix_ms") is None:
            known = tool.value | {"ended_at_unix_ms": node.get("event_time_unix_ms")}
            tool = Node(known, node.file, node.line, tool.path)
        event = tool_event(tool, failed=kind == "tool_error")
        begins_s = event.span_s[0] if event.span_s is not None else 0.0
        timed = by_id.get(name) or next(
            (each for each in reversed(requests) if each.end_s <= begins_s + _SLACK_S), None
        )
        if timed is None:
            notes["a tool event of no request was left out"] += 1
            continue
        answered[name] += 1
        if event.tool == "tool" and timed.tools.get(name):
            event = event._replace(tool=timed.tools[name])
        timed.request.events.append(event)
    for timed in requests:
        timed.request.events.sort(key=lambda event: event.span_s or (0.0, 0.0))
        if timed.request.events:
            missing = [name for name in timed.tools if not answered[name]]
            if missing:
                notes["a tool call without an event is left to those that have one"] += len(missing)


_SLACK_S = 0.002
"""Times are whole milliseconds of two clocks' readings."""


def _starts(trace: _Trace, notes: Notes) -> dict[str, Start]:
    starts: dict[str, Start] = {}
    for session, parent in trace.parents.items():
        above = trace.sessions.get(parent)
        if above is None:
            notes["a sub-agent whose parent is not in the file is a task of its own"] += 1
            continue
        begins_s, ends_s = trace.sessions[session][0].start_s, max(t.end_s for t in trace.sessions[session])
        before = [index for index, timed in enumerate(above) if timed.end_s <= begins_s + _SLACK_S]
        if not before:
            notes["a sub-agent that began before its parent's first request ended is a task of its own"] += 1
            continue
        turn = max(before)
        after = (i for i in range(turn + 1, len(above)) if above[i].start_s >= ends_s - _SLACK_S)
        starts[session] = Start(parent, turn, next(after, None))
    return starts


def _joined_ends(trace: _Trace, starts: Mapping[str, Start]) -> dict[tuple[str, int], float]:
    """Find when the last sub-agent ended that a request waits for."""
    ends: dict[tuple[str, int], float] = {}
    for session, start in starts.items():
        if start.join is not None:
            end_s = max(timed.end_s for timed in trace.sessions[session])
            place = (start.session, start.join)
            ends[place] = max(end_s, ends.get(place, 0.0))
    return ends


def _wait(timed: _Timed, later: _Timed, joined_s: float | None) -> None:
    """Set what passes after a request's tools, and without events the tools that it called."""
    request = timed.request
    gap_s = max(0.0, later.start_s - timed.end_s)
    if timed.tools and not request.events:
        span_s = (timed.end_s, max(later.start_s, timed.end_s))
        request.events = [Event(name or "tool", gap_s, span_s) for name in timed.tools.values()]
    tools_s = waited_s(request.events)
    began_s = timed.end_s + tools_s
    if joined_s is not None:
        began_s = max(began_s, joined_s)
    request.after_s = max(0.0, round(later.start_s - began_s, 6))
