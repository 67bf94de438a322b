# SPDX-License-Identifier: Apache-2.0
"""Read spans in the forms of their files: OTLP JSON, and dumps of an SDK's spans.

Sources: the OTLP specification's JSON encoding (ids in hex, 64-bit numbers as texts; older exporters write snake_case), which
the collector's file exporter writes one batch a line; `ReadableSpan.to_json()` of the Python SDK; `ReadableSpan` of the
JavaScript SDK, with times as `[seconds, nanoseconds]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects.values import first_name, listing, mapping
from sqsim.trace.formats.request_log.exchange import iso_s

_CONTEXTS = ("context", "spanContext", "span_context", "_spanContext")
_NO_PARENT = {"", "0000000000000000"}


@dataclass
class Span:
    """Span with flat attributes; `events` are pairs of a name and attributes."""

    file: SourceFile
    place: Node
    trace: str
    name: str
    parent: str
    title: str
    begins_s: float | None
    ends_s: float | None
    attributes: dict[str, Any]
    error: str | None = None
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def batches(value: Any) -> list[Any] | None:
    """List the resource spans of an OTLP document, or of one wrapped by a query's answer; None if it is not one."""
    for part in (value, mapping(value, "result"), mapping(value, "data")):
        if isinstance(part, dict):
            for key in ("resourceSpans", "resource_spans", "batches"):
                if isinstance(part.get(key), list):
                    return list(part[key])
    if isinstance(value, dict) and any(
        isinstance(value.get(key), list) for key in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
    ):
        return [value]
    return None


def is_dump(value: Any) -> bool:
    """Whether a value is a span as an SDK writes it, with its attributes in one object."""
    if not isinstance(value, dict) or not isinstance(value.get("attributes"), dict | list):
        return False
    inner = bool(mapping(value, *_CONTEXTS))
    own = any(key in value for key in ("spanId", "span_id")) and any(
        key in value for key in ("traceId", "trace_id")
    )
    return inner or own


def is_bare(value: Any) -> bool:
    """Whether a value is one span's attributes, without ids and times."""
    return isinstance(value, dict) and any(
        isinstance(value.get(key), str)
        for key in ("gen_ai.operation.name", "openinference.span.kind", "ai.operationId")
    )


def spans_of(file: SourceFile, node: Node) -> Iterator[Span]:
    """Yield the spans of a value of a file. Raises `TraceError`."""
    documents = node.items() if isinstance(node.value, list) else [node]
    for document in documents:
        found = batches(document.value)
        if found is None:
            spans = document.get("spans")
            rows = (
                document.nodes("spans")
                if isinstance(spans, list) and not is_dump(document.value)
                else [document]
            )
            for each in rows:
                if is_dump(each.value):
                    yield _span(file, each, {})
                elif is_bare(each.value):
                    yield _span(file, Node({"attributes": each.value}, file.path, each.line), {})
            continue
        for batch in found:
            if not isinstance(batch, dict):
                continue
            shared = attributes_of(mapping(batch, "resource").get("attributes"))
            for key in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "ilSpans"):
                for scope in listing(batch, key):
                    for row in listing(scope, "spans"):
                        if isinstance(row, dict):
                            yield _span(file, Node(row, file.path, document.line, "span"), shared)


def _span(file: SourceFile, row: Node, shared: dict[str, Any]) -> Span:
    context = mapping(row.value, *_CONTEXTS)
    status = row.get("status")
    return Span(
        file=file,
        place=row,
        trace=first_name(row.value, "traceId", "trace_id") or first_name(context, "traceId", "trace_id"),
        name=first_name(row.value, "spanId", "span_id") or first_name(context, "spanId", "span_id"),
        parent=_parent(row.value),
        title=first_name(row.value, "name"),
        begins_s=_time(row.value, ("startTimeUnixNano", "start_time_unix_nano"), ("startTime", "start_time")),
        ends_s=_time(row.value, ("endTimeUnixNano", "end_time_unix_nano"), ("endTime", "end_time")),
        attributes={**_sessions(shared), **attributes_of(row.get("attributes"))},
        error=_error(status if isinstance(status, dict) else {"code": status}),
        events=[
            (first_name(event, "name"), attributes_of(event.get("attributes")) or mapping(event, "body"))
            for event in listing(row.value, "events")
            if isinstance(event, dict)
        ],
    )


def _sessions(shared: dict[str, Any]) -> dict[str, Any]:
    """Return what a resource says of its spans' session; its other attributes are about the program."""
    return {key: value for key, value in shared.items() if key == "session.id"}


def _parent(row: dict[str, Any]) -> str:
    named = first_name(row, "parentSpanId", "parent_span_id", "parent_id", "parentId")
    for key in ("parentSpanContext", "parent"):
        inner = row.get(key)
        if not named and isinstance(inner, dict):
            named = first_name(inner, "spanId", "span_id")
    return "" if named in _NO_PARENT else named


def _error(status: dict[str, Any]) -> str | None:
    code = status.get("code", status.get("status_code"))
    if str(code).upper() in {"2", "ERROR", "STATUS_CODE_ERROR"}:
        return (first_name(status, "message", "description") or "error").split("\n", 1)[0][:200]
    return None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return attributes as a flat object: OTLP's list of keys and typed values, or an object that may be nested."""
    if isinstance(value, list):
        pairs = (each for each in value if isinstance(each, dict) and isinstance(each.get("key"), str))
        return {pair["key"]: any_value(pair.get("value")) for pair in pairs}
    if isinstance(value, dict):
        return dict(value)
    return {}


def any_value(value: Any) -> Any:
    """Return what an OTLP `AnyValue` holds."""
    if not isinstance(value, dict):
        return value
    for key, part in value.items():
        match key:
            case (
                "stringValue"
                | "boolValue"
                | "doubleValue"
                | "bytesValue"
                | "string_value"
                | "bool_value"
                | "double_value"
            ):
                return part
            case "intValue" | "int_value":
                return (
                    int(part)
                    if isinstance(part, str) and part.lstrip("-").isdecimal() and len(part) < 25
                    else part
                )
            case "arrayValue" | "array_value":
                inner = part.get("values") if isinstance(part, dict) else part
                return [any_value(each) for each in inner] if isinstance(inner, list) else []
            case "kvlistValue" | "kvlist_value":
                return attributes_of(part.get("values") if isinstance(part, dict) else part)
            case _:
                pass
    return value or None


def _time(row: dict[str, Any], nanos: tuple[str, ...], others: tuple[str, ...]) -> float | None:
    """Read a time as seconds since 1970: nanoseconds, `[seconds, nanoseconds]`, ISO 8601, or a number by its size."""
    for key in nanos:
        number = _number(row.get(key))
        if number:
            return number / 1e9
    for key in others:
        value = row.get(key)
        if isinstance(value, list) and len(value) == 2:
            whole, part = _number(value[0]), _number(value[1])
            return None if whole is None or part is None else whole + part / 1e9
        number = _number(value)
        if number is not None:
            unit = next(
                (unit for least, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)) if number > least), 1.0
            )
            return number / unit
        if isinstance(value, str):
            return iso_s(value)
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 25:
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e20:
        return float(value)
    return None
