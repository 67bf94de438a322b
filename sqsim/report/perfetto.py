# SPDX-License-Identifier: Apache-2.0
"""Convert a record to a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

Every replica is a process with its steps and its counters, every task a thread with its main steps piece by piece, its
tools, its aux threads and evictions. Times are microseconds of the run; only differences are computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqsim.record.schema import RunRecord

Event = dict[str, Any]

TASKS_PID = 1
ENGINE_PID = 1000
"""Of the first replica; the others follow."""

_COUNTERS = {
    "KV tokens": ("kv_running", "kv_idle_sessions", "kv_aux", "kv_tree_evictable", "kv_free"),
    "requests": ("running", "waiting"),
}
_PHASES = (
    ("queue", "submit_s", "admit_s"),
    ("prefill", "admit_s", "first_token_s"),
    ("decode", "first_token_s", "end_s"),
    ("tools", "end_s", "tool_end_s"),
)
_TURN_SAYS = ("prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens", "retractions")
_AUX_SAYS = ("state", "prompt_tokens", "cached_tokens", "output_tokens", "named")
_STEP_SAYS = ("steps", "requests", "new_tokens", "context_tokens", "retracted", "reclaimed_tokens")


def perfetto(record: RunRecord) -> str:
    """Write the trace as JSON: the same record gives the same text."""
    events = [*_engine(record), *_tasks(record)]
    content = {"displayTimeUnit": "ms", "otherData": {"kind": record.run["kind"]}, "traceEvents": events}
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(pid: int, name: str, tid: int | None = None) -> Event:
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid or 0, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, start_s: float, end_s: float, says: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": _us(start_s),
        "dur": max(0.0, _us(end_s) - _us(start_s)),
        "args": says,
    }


def _engine(record: RunRecord) -> Iterator[Event]:
    replicas: set[int] = set()
    for row in record.engine.to_pylist():
        replica = row.get("replica", 0)
        pid = ENGINE_PID + replica
        if replica not in replicas:
            replicas.add(replica)
            yield _named(pid, f"engine {replica}")
            yield _named(pid, "steps", 1)
        if row["mode"] != "idle":
            yield _slice(pid, 1, row["mode"], row["t0_s"], row["t1_s"], {key: row[key] for key in _STEP_SAYS})
        for name, keys in _COUNTERS.items():
            says = {key.removeprefix("kv_"): row[key] for key in keys}
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _us(row["t1_s"]), "args": says}


def _tasks(record: RunRecord) -> Iterator[Event]:
    yield _named(TASKS_PID, "tasks")
    thread = {name: 2 * place + 1 for place, name in enumerate(record.tasks["task"].to_pylist())}
    for name, tid in thread.items():
        yield _named(TASKS_PID, name, tid)
    for row in record.turns.to_pylist():
        says = {"turn": row["turn"], **{key: row[key] for key in _TURN_SAYS}}
        for phase, start, end in _PHASES:
            if row[start] is not None and row[end] is not None:
                name = f"{phase} {row['turn']}"
                yield _slice(TASKS_PID, thread[row["task"]], name, row[start], row[end], says)
    yield from _aux(record, thread)
    for row in record.evictions.to_pylist():
        says = {key: row[key] for key in ("cursor", "tokens", "by", "age_turns", "used_later")}
        yield {
            "ph": "i", "s": "t", "name": f"evict {row['cursor']}", "pid": TASKS_PID, "tid": thread[row["task"]],
            "ts": _us(row["time_s"]), "args": says,
        }  # fmt: skip


def _aux(record: RunRecord, thread: dict[str, int]) -> Iterable[Event]:
    named: set[str] = set()
    for row in record.aux.to_pylist():
        tid = thread[row["task"]] + 1  # a thread of its own, right below its task's
        if row["task"] not in named:
            named.add(row["task"])
            yield _named(TASKS_PID, f"{row['task']} aux", tid)
        if row["end_s"] is not None:
            says = {key: row[key] for key in _AUX_SAYS}
            yield _slice(TASKS_PID, tid, f"aux {row['spawn_turn']}", row["submit_s"], row["end_s"], says)
