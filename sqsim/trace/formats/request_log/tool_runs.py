# SPDX-License-Identifier: Apache-2.0
"""Find the recorded run of each tool call, by its id, else by its name and time, and compute a step's waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqsim.trace.formats.request_log.exchange import Exchange
from sqsim.trace.formats.steps import Invocation, Step

_SLACK_S = 0.05
"""Clocks of two spans may differ by so much (assumed)."""


@dataclass
class ToolRun:
    """Recorded run of a tool, under its span's id; `inner`: begin and end of the sub-agents that ran in it."""

    name: str
    tool: str
    call_id: str = ""
    scope: str = ""
    begins_s: float | None = None
    ends_s: float | None = None
    error: str | None = None
    arguments: Any = None
    response: str | None = None
    inner: list[tuple[float, float]] = field(default_factory=list)
    used: bool = False


Found = list[tuple[Invocation, ToolRun]]


class ToolRuns:
    """Runs of a session; each belongs to at most one call."""

    def __init__(self, runs: Iterable[ToolRun] = ()) -> None:
        self.runs = sorted(runs, key=lambda run: run.begins_s if run.begins_s is not None else 0.0)

    def of(self, calls: Sequence[Invocation], call: Exchange, until_s: float | None) -> Found:
        """Find the runs of the calls of one answer, which began before the next request at `until_s`."""
        found: Found = []
        if not self.runs:
            return found
        names = call_ids(call)
        for number, invocation in enumerate(calls):
            name = names[number] if number < len(names) else ""
            run = next((r for r in self.runs if not r.used and name and r.call_id == name), None)
            if run is None:
                run = next(
                    (
                        r
                        for r in self.runs
                        if not r.used
                        and r.tool == invocation.tool
                        and not (name and r.call_id)
                        and _within(r, call, until_s)
                    ),
                    None,
                )
            if run is not None:
                run.used = True
                found.append((invocation, run))
        return found

    def between(self, call: Exchange, until_s: float | None) -> list[ToolRun]:
        """Return the runs of an agent between one of its answers and its next request."""
        own = [r for r in self.runs if not r.used and r.scope == call.scope and _within(r, call, until_s)]
        for run in own:
            run.used = True
        return own

    def waits(self, step: Step, call: Exchange, following: Exchange | None, found: Found) -> None:
        """Set a step's latencies and waits: those of its runs, else the time up to the next request."""
        total_s = None
        if following is not None and call.ends_s is not None and following.begins_s is not None:
            total_s = max(0.0, round(following.begins_s - call.ends_s, 3))
        timed = [(i, r) for i, r in found if r.begins_s is not None and r.ends_s is not None]
        if not timed:
            for invocation in step.calls:
                invocation.latency_s = total_s or 0.0
                invocation.parallel = len(step.calls) > 1
            if not step.calls:
                step.user_wait_s = total_s or 0.0
            return
        tools_s = 0.0
        reached: float | None = None
        for invocation, run in timed:
            begins_s, ends_s = run.begins_s or 0.0, run.ends_s or 0.0
            last_s = max((end for _, end in run.inner), default=None)
            first_s = min((begin for begin, _ in run.inner), default=ends_s)
            invocation.latency_s = max(0.0, round(first_s - begins_s, 3))
            invocation.parallel = False
            tools_s += max(0.0, ends_s - max(begins_s, reached if reached is not None else begins_s))
            reached = max(ends_s, reached or ends_s)
            if last_s is not None:
                step.user_wait_s += max(0.0, round(ends_s - last_s, 3))
        for (one, first), (two, second) in pairwise(timed):
            if (second.begins_s or 0.0) < (first.ends_s or 0.0):
                one.parallel = two.parallel = True
        if total_s is not None:
            step.user_wait_s += max(0.0, round(total_s - tools_s, 3))


def _within(run: ToolRun, call: Exchange, until_s: float | None) -> bool:
    if run.begins_s is None:
        return True
    after = call.begins_s is None or run.begins_s >= call.begins_s - _SLACK_S
    return after and (until_s is None or run.begins_s <= until_s + _SLACK_S)


def call_ids(call: Exchange) -> list[str]:
    """List the ids of an answer's tool calls in their order; empty texts where they have none."""
    if call.response is None:
        return []
    content = call.response.get("content")
    blocks = (
        [b for b in content if isinstance(b, dict) and b.get("type") == "tool_use"]
        if isinstance(content, list)
        else []
    )
    given = call.response.get("tool_calls")
    calls = [*blocks, *(c for c in (given if isinstance(given, list) else ()) if isinstance(c, dict))]
    return [name if isinstance(name := each.get("id"), str) else "" for each in calls]
