# SPDX-License-Identifier: Apache-2.0
"""Known formats without an importer, so that a refusal names them and the way to import their recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Foreign(NamedTuple):
    """Format by name, and the way to make its recordings importable."""

    name: str
    fix: str


_SPANS = "export the traces of the same run, whose spans hold the calls of models and tools"
_INSTRUMENTED = (
    "instrument the agent (OpenTelemetry GenAI, OpenInference, OpenLLMetry) and export its spans again"
)
_OBSERVATIONS = (
    "export the observations (API: /api/public/v2/observations, or /api/public/traces/ID with its observations)"
)
_CHAT = 'convert it to OpenAI chat messages, one {"messages": [...]} a line'


def looks_like(head: Sequence[Any]) -> Foreign | None:
    """Guess the format of a file that begins with these JSON values; None if it resembles none."""
    return next((foreign for sees, foreign in _SIGHTS if sees(head)), None)


def _objects(head: Sequence[Any]) -> list[dict[str, Any]]:
    """List the objects among the first values, with those of a list that is the whole file."""
    values = head[0] if len(head) == 1 and isinstance(head[0], list) else head
    return [value for value in values if isinstance(value, dict)]


def _any(*keys: str) -> Callable[[Sequence[Any]], bool]:
    """Whether any object has all these keys."""
    return lambda head: any(set(keys) <= value.keys() for value in _objects(head))


def _stream_json(head: Sequence[Any]) -> bool:
    return any(
        "session_id" in value and str(value.get("type")) in {"system", "assistant", "user", "result"}
        for value in _objects(head)
    )


def _titles(head: Sequence[Any]) -> bool:
    return all(isinstance(value, dict) and str(value.get("type")) in _TITLES for value in head)


_TITLES = {
    "summary",
    "custom-title",
    "ai-title",
    "file-history-snapshot",
    "queue-operation",
    "last-prompt",
    "mode",
}

_SIGHTS: tuple[tuple[Callable[[Sequence[Any]], bool], Foreign], ...] = (
    (
        _stream_json,
        Foreign(
            "Claude Code's stream-json output",
            "import the session's own log, ~/.claude/projects/<project>/<session>.jsonl, instead",
        ),
    ),
    (
        _titles,
        Foreign(
            "a Claude Code log without an event (titles and snapshots only)",
            "leave it out: no model was called in it",
        ),
    ),
    (_any("resourceLogs"), Foreign("OpenTelemetry logs (OTLP JSON)", _SPANS)),
    (_any("resourceMetrics"), Foreign("OpenTelemetry metrics (OTLP JSON)", _SPANS)),
    (
        _any("context", "parent_id", "attributes"),
        Foreign("spans without attributes of models or tools", _INSTRUMENTED),
    ),
    (_any("spanContext", "attributes"), Foreign("spans without attributes of models or tools", _INSTRUMENTED)),
    (
        _any("traceId", "spanId", "attributes"),
        Foreign("spans without attributes of models or tools", _INSTRUMENTED),
    ),
    (_any("data", "errors", "total"), Foreign("a Jaeger trace", "export the spans as OTLP JSON")),
    (_any("traceId", "localEndpoint"), Foreign("Zipkin spans", "export the spans as OTLP JSON")),
    (
        _any("metadata", "payload", "responses"),
        Foreign(
            "AIPerf's raw records (profile_export_raw.jsonl)",
            "import profile_export.jsonl of the same run, which has the lengths and times",
        ),
    ),
    (
        _any("log"),
        Foreign("a HAR recording without a request", "record while the agent runs, and save all as HAR"),
    ),
    (
        _any("id", "sessionId", "timestamp", "userId"),
        Foreign("Langfuse traces without observations", _OBSERVATIONS),
    ),
    (_any("traceId", "startTime", "type"), Foreign("Langfuse observations of unknown types", _OBSERVATIONS)),
    (_any("input", "output", "session_id"), Foreign("an LMCache agent trace", _CHAT)),
    (
        _any("values", "checkpoint"),
        Foreign(
            "a LangGraph thread without messages under values", "export the state of the graph that holds them"
        ),
    ),
    (
        _any("trajectory", "info"),
        Foreign("a SWE-agent trajectory without its history", "import the .traj file that SWE-agent wrote"),
    ),
    (
        _any("query_id", "retrieved_docids"),
        Foreign("a BrowseComp-Plus run without items", "leave it out: no model call is in it"),
    ),
    (_any("mapping", "conversation_id"), Foreign("a ChatGPT export", _CHAT)),
)
