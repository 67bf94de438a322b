# SPDX-License-Identifier: Apache-2.0
"""Find when a sub-agent of a WEKA session ran: the zero of its marker's `t` and of its requests' times.

Older corpora give the end in `t` and its requests' times from its own start; newer ones give the start, and times from
the session's start. No field of a file tells which, so the times decide: requests lie inside the run, and no run begins
before the session does. Times that fit both forms follow the file's other sub-agents, else the older form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.notes import Notes

_SLACK_S = 1.0
"""Times in these files are rounded, and a request's may be taken a moment before or after the marker's."""


class Run(NamedTuple):
    """Start and end of a sub-agent on its parent's clock, in seconds."""

    start_s: float
    end_s: float


class _Times(NamedTuple):
    """Times of a sub-agent: marker, duration if the file states it, its requests' first start and last end."""

    t_s: float
    duration_s: float | None
    first_s: float
    last_s: float

    @property
    def length_s(self) -> float:
        return self.last_s - self.first_s if self.duration_s is None else self.duration_s

    def may_end(self) -> bool:
        """Whether `t` may be the end: the run began in the session, its requests inside or from its start."""
        if self.duration_s is None:
            return False  # it was started and left running
        start_s = self.t_s - self.duration_s
        inside = start_s - _SLACK_S <= self.first_s and self.last_s <= self.t_s + _SLACK_S
        return start_s >= -_SLACK_S and (inside or self._from_own_start())

    def may_start(self) -> bool:
        """Whether `t` may be the start: requests come after it, or count from it."""
        inside = self.t_s - _SLACK_S <= self.first_s and self.last_s <= self.t_s + self.length_s + _SLACK_S
        return inside or self._from_own_start()

    def must_start(self) -> bool:
        """Whether requests come after `t` in a session's time, so that it is no end."""
        return self.may_start() and not self.may_end()

    def _from_own_start(self) -> bool:
        return self.last_s <= self.length_s + _SLACK_S


def sub_agent_runs(children: Sequence[Node], notes: Notes) -> list[Run]:
    """Find the run of each sub-agent of a file. Raises `TraceError`."""
    times = [_times(child) for child in children]
    starts = any(each.must_start() for each in times)
    runs = []
    for each in times:
        if not each.may_start() and not each.may_end():
            notes["a sub-agent's requests lie outside its run; its t is taken for its end"] += 1
        if each.duration_s is None and each.first_s >= each.t_s - _SLACK_S:
            runs.append(Run(each.t_s, each.last_s))
        elif (starts and each.may_start()) or each.duration_s is None:
            runs.append(Run(each.t_s, each.t_s + each.length_s))
        else:
            runs.append(Run(max(0.0, each.t_s - each.length_s), each.t_s))
    return runs


def _times(child: Node) -> _Times:
    duration_s = None if child.get("duration_ms") is None else child.seconds("duration_ms", 1e-3)
    starts, ends = [], []
    for request in child.nodes("requests"):
        start_s = request.seconds("t")
        starts.append(start_s)
        ends.append(start_s + (0.0 if request.get("api_time") is None else request.seconds("api_time")))
    t_s = child.seconds("t")
    return _Times(t_s, duration_s, min(starts, default=t_s), max(ends, default=t_s))
