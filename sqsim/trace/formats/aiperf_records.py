# SPDX-License-Identifier: Apache-2.0
"""Import `aiperf_records`: what AIPerf measured of each request (`profile_export.jsonl`, level `records`).

A line has `metadata` (whose session and turn, `request_start_ns`, `request_end_ns`) and `metrics` (`input_sequence_length`,
the whole prompt, and `output_sequence_length`), as in `MetricRecordInfo` of ai-dynamo/aiperf. No blocks are recorded, so
only a shorter prompt shows a new context, and sessions share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import Prompt
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.workflow import Request, Workflow, workflow_tasks
from sqsim.trace.schema import Task

_SESSIONS = ("x_correlation_id", "conversation_id", "x_request_id")
_START, _END = "request_start_ns", "request_end_ns"


class AIPerfRecords(Format):
    """One task a session; a conversation that was replayed several times is as many."""

    name = "aiperf_records"

    def evidence(self, head: Sequence[Any]) -> str | None:
        for value in head:
            metadata = value.get("metadata") if isinstance(value, dict) else None
            if not isinstance(metadata, dict) or _START not in metadata or "metrics" not in value:
                return None
        return f"every line has metrics, and metadata with {_START}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        sessions: dict[str, list[tuple[float, float, Request]]] = {}
        for number, node in enumerate(file.nodes()):
            if node.get("error") is not None:
                notes["a request that failed was left out"] += 1
                continue
            metadata, metrics = node.node("metadata"), node.node("metrics")
            named = (metadata.get(key) for key in _SESSIONS)
            session = next((name for name in named if isinstance(name, str) and name), f"{file.stem}:{number}")
            request = Request(
                node,
                Prompt(_metric(metrics, "input_sequence_length"), ()),
                _metric(metrics, "output_sequence_length"),
            )
            sessions.setdefault(session, []).append((_ns(metadata, _START), _ns(metadata, _END), request))
        for calls in sessions.values():
            calls.sort(key=lambda call: call[:2])
            for (_, end_s, request), (later_s, _, _) in pairwise(calls):
                request.after_s = max(0.0, round(later_s - end_s, 6))
        first_s = min((calls[0][0] for calls in sessions.values()), default=0.0)
        work = Workflow(
            sessions={name: [request for _, _, request in calls] for name, calls in sessions.items()},
            starts={},
            arrivals={name: round(calls[0][0] - first_s, 6) for name, calls in sessions.items()},
            block_tokens=1,
        )
        yield from workflow_tasks(file, self.name, work, notes)


def _metric(metrics: Node, key: str) -> int:
    """Read a metric's value, with its unit beside it or alone."""
    return metrics.node(key).count("value") if isinstance(metrics.get(key), dict) else metrics.count(key)


def _ns(metadata: Node, key: str) -> float:
    """Read nanoseconds since 1970 as seconds."""
    value = metadata.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e24
    return Node({key: value / 1e9 if number else value}, metadata.file, metadata.line, metadata.path).seconds(
        key
    )
