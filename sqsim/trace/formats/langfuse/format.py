# SPDX-License-Identifier: Apache-2.0
"""Importer of Langfuse exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects import chat_answer, chat_messages, parsed
from sqsim.trace.formats.dialects.usage import Usage, usage_of
from sqsim.trace.formats.dialects.values import as_text
from sqsim.trace.formats.langfuse.records import (
    Record,
    field,
    is_batch,
    is_observation,
    is_trace,
    records,
    rows,
)
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, noded, time_s, tools_of
from sqsim.trace.formats.request_log.tool_runs import ToolRun
from sqsim.trace.formats.spans.observed import Kind, Observed
from sqsim.trace.formats.spans.tree import ObservedFormat

_KINDS: dict[str, Kind] = {"GENERATION": "model", "TOOL": "tool", "AGENT": "agent"}


class Langfuse(ObservedFormat):
    """Langfuse: one task a conversation of an agent; generations are the calls, tools (or spans named so) the runs."""

    name = "langfuse"
    title = "a Langfuse export"

    def evidence(self, head: Sequence[Any]) -> str | None:
        found = [row for value in head for row in rows(value)]
        known = [row for row in found if is_observation(row) or is_trace(row) or is_batch(row)]
        if not known or 2 * len(known) < len(found):
            return None
        return f"{len(known)} of the first {len(found)} records are Langfuse traces or observations"

    def observed(self, file: SourceFile, notes: Notes) -> Iterator[Observed]:
        found: list[tuple[Record, Observed]] = []
        for node in file.nodes():
            for record in records(node):
                if record is None:
                    notes["a record that is no observation was left out"] += 1
                else:
                    found.append((record, _observed(file, record)))
        called = {
            (seen.trace, name) for _, seen in found if seen.call is not None for name in _called(seen.call)
        }
        for record, seen in found:
            row = record.place.value
            if (
                seen.kind == "other"
                and row["type"].upper() == "SPAN"
                and (seen.trace, str(row.get("name"))) in called
            ):
                seen.kind, seen.run = "tool", _run(record.place, seen)  # older SDKs record tools as spans
            if seen.kind == "other":
                notes["an observation that is no generation, tool or agent holds the others together only"] += 1
            yield seen


def _called(call: Exchange) -> Iterator[str]:
    """Yield the names of the tools that an answer calls."""
    calls = call.response.get("tool_calls") if call.response is not None else None
    for each in calls if isinstance(calls, list) else ():
        function = each.get("function", each) if isinstance(each, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function["name"]


def _observed(file: SourceFile, record: Record) -> Observed:
    row = record.place.value
    seen = Observed(
        file=file,
        trace=str(field(row, "traceId") or ""),
        name=row["id"],
        parent=str(field(row, "parentObservationId") or ""),
        kind=_KINDS.get(row["type"].upper(), "other"),
        begins_s=time_s(row, ("startTime", "start_time")),
        ends_s=time_s(row, ("endTime", "end_time")),
        session=record.session,
        failed=row.get("level") == "ERROR",
    )
    if seen.kind == "model":
        seen.call = _call(file, record.place, seen)
    elif seen.kind == "tool":
        seen.run = _run(record.place, seen)
    return seen


def _call(file: SourceFile, place: Node, seen: Observed) -> Exchange:
    row = place.value
    given = parsed(row.get("input"))
    answer = chat_answer(row.get("output"))
    nodes, prints = noded(
        chat_messages(given) or [], Node(given, place.file, place.line, f"{place.path}.input")
    )
    model = field(row, "model") or field(row, "providedModelName")
    request = given if isinstance(given, dict) else {}
    output = parsed(row.get("output"))
    answer_id = output.get("id") if isinstance(output, dict) and "choices" in output else None
    return Exchange(
        file=file,
        row=place,
        messages=nodes,
        prints=prints,
        response=None if answer is None else Node(answer, place.file, place.line, f"{place.path}.output"),
        name=seen.name,
        model=model if isinstance(model, str) else None,
        tools=tools_of(request.get("tools"), request.get("functions")),
        usage=_usage(place),
        begins_s=seen.begins_s,
        ends_s=seen.ends_s,
        answer_id=answer_id if isinstance(answer_id, str) else "",
    )


def _run(place: Node, seen: Observed) -> ToolRun:
    row = place.value
    given, output = parsed(row.get("input")), parsed(row.get("output"))
    held = next((each for each in (output, given) if isinstance(each, dict)), {})
    call_id = field(held, "toolCallId") or held.get("call_id")
    message = held.get("content") if held.get("tool_call_id") else None
    status = field(row, "statusMessage")
    return ToolRun(
        name=seen.name,
        tool=str(row.get("name") or "tool"),
        call_id=call_id if isinstance(call_id, str) else "",
        begins_s=seen.begins_s,
        ends_s=seen.ends_s,
        error=(str(status or "error").split("\n", 1)[0][:200]) if seen.failed else None,
        response=None
        if row.get("output") is None
        else as_text(message if message is not None else row["output"]),
    )


def _usage(place: Node) -> Usage | None:
    """Read a generation's counts: parts by name (`usageDetails`), a sum of each side, or OpenAI's object."""
    row = place.value
    for key in ("usageDetails", "usage_details", "usage"):
        usage = Node(row.get(key), place.file, place.line, f"{place.path}.{key}")
        if not isinstance(usage.value, dict):
            continue
        own = usage_of(usage)
        if own is not None and "input" not in usage.value:
            return own
        found = _by_parts(usage)
        if found is not None:
            return found
    for sides in (
        ("inputUsage", "outputUsage"),
        ("input_usage", "output_usage"),
        ("promptTokens", "completionTokens"),
    ):
        if any(row.get(key) for key in sides):
            return Usage(*(place.count(key) if row.get(key) is not None else 0 for key in sides))
    return None


def _by_parts(usage: Node) -> Usage | None:
    """Add the parts of each side; where the total says so, the parts are shares of `input` and `output` and not added."""
    sides = []
    for side in ("input", "output"):
        parts = [key for key, value in usage.value.items() if side in str(key).lower() and value is not None]
        sides.append((side, {key: usage.count(key) for key in parts}))
    reasoning = next((count for key, count in sides[1][1].items() if "reasoning" in key), None)
    for first, last in (("promptTokens", "completionTokens"), ("inputTokens", "outputTokens")):
        if usage.get(first) is not None:
            return Usage(usage.count(first), usage.count(last) if usage.get(last) is not None else 0, reasoning)
    total = usage.count("total") if usage.get("total") is not None else None
    summed = [sum(counts.values()) for _, counts in sides]
    alone = [counts.get(side, 0) for side, counts in sides]
    prompt, output = alone if total is not None and total == sum(alone) != sum(summed) else summed
    return Usage(prompt, output, reasoning) if prompt or output else None
