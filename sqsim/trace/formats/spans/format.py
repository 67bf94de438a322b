# SPDX-License-Identifier: Apache-2.0
"""Importer of spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects.values import first_name
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, noded, tools_of
from sqsim.trace.formats.request_log.tool_runs import ToolRun
from sqsim.trace.formats.spans.counts import usage_of_span
from sqsim.trace.formats.spans.forms import Span, attributes_of, batches, is_bare, is_dump, spans_of
from sqsim.trace.formats.spans.kinds import has_signs, kind_of, session_of
from sqsim.trace.formats.spans.observed import Observed
from sqsim.trace.formats.spans.prompts import (
    answer_of,
    arguments_of,
    entity_of,
    prompt_of,
    result_of,
    tools_of_span,
)
from sqsim.trace.formats.spans.tree import ObservedFormat

_TOOLS = (
    "gen_ai.tool.name",
    "tool.name",
    "ai.toolCall.name",
    "traceloop.entity.name",
    "mcp.tool.name",
)
_CALLS = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
_MODELS = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "ai.model.id",
    "langfuse.observation.model.name",
)


class OtelSpans(ObservedFormat):
    """OpenTelemetry spans with the attributes of model calls: OTLP JSON, or dumps of spans."""

    name = "otel_spans"
    title = "OpenTelemetry spans (OTLP JSON or a dump)"

    def evidence(self, head: Sequence[Any]) -> str | None:
        values = head[0] if len(head) == 1 and isinstance(head[0], list) else head
        documents = sum(batches(value) is not None for value in values)
        if documents and 2 * documents >= len(values):
            return f"{documents} of the first {len(values)} values are resourceSpans (OTLP JSON)"
        if len(values) == 1 and isinstance(values[0], dict) and isinstance(values[0].get("spans"), list):
            values = values[0]["spans"]
        spans = [
            value if is_dump(value) else {"attributes": value}
            for value in values
            if is_dump(value) or is_bare(value)
        ]
        signed = sum(has_signs(attributes_of(span["attributes"])) for span in spans)
        if not spans or not signed or 2 * len(spans) < len(values):
            return None
        return f"{len(spans)} of the first {len(values)} values are spans, {signed} of them with attributes of models or tools"

    def observed(self, file: SourceFile, notes: Notes) -> Iterator[Observed]:
        for node in file.nodes():
            for number, span in enumerate(spans_of(file, node)):
                seen = _observed(span, number)
                if seen.kind == "other":
                    notes[
                        "a span that is no call of a model, tool or agent holds the others together only"
                    ] += 1
                yield seen


def _observed(span: Span, number: int) -> Observed:
    kind = kind_of(span.attributes)
    name = span.name or f"{span.place.line or 0}:{number}"
    seen = Observed(
        file=span.file,
        trace=span.trace,
        name=name,
        parent=span.parent,
        kind=kind,
        begins_s=span.begins_s,
        ends_s=span.ends_s,
        session=session_of(span.attributes),
        failed=span.error is not None,
    )
    if kind == "model":
        seen.call = _call(span, name)
    elif kind == "tool":
        seen.run = ToolRun(
            name=name,
            tool=first_name(span.attributes, *_TOOLS)
            or entity_of(span.attributes, "tool")
            or span.title.removeprefix("execute_tool ")
            or "tool",
            call_id=first_name(span.attributes, *_CALLS),
            begins_s=span.begins_s,
            ends_s=span.ends_s,
            error=span.error,
            arguments=arguments_of(span),
            response=result_of(span),
        )
    return seen


def _call(span: Span, name: str) -> Exchange:
    counted = dict(span.attributes)
    for title, event in span.events:
        if title == "metadata":  # Monocle
            counted = {**event, **counted}
    messages, answer = prompt_of(span), answer_of(span)
    place = Node(
        span.attributes, span.file.path, span.place.line, f"{span.place.path}.attributes".removeprefix(".")
    )
    nodes, prints = noded(messages, place)
    return Exchange(
        file=span.file,
        row=place,
        messages=nodes,
        prints=prints,
        response=None if answer is None else Node(answer, span.file.path, span.place.line, place.path),
        name=name,
        model=first_name(span.attributes, *_MODELS) or entity_of(span.attributes, "model") or None,
        tools=tools_of(tools_of_span(span.attributes)),
        usage=usage_of_span(counted, span.place),
        begins_s=span.begins_s,
        ends_s=span.ends_s,
        answer_id=first_name(span.attributes, "gen_ai.response.id", "ai.response.id"),
    )
