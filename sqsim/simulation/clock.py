# SPDX-License-Identifier: Apache-2.0
"""Simulated time: SimPy's queue of events, and the engine, which acts last at every instant.

One rule for ties: at any instant all events, and the events that they cause at that instant, come before the engine. So
the engine needs no events of its own, which would be most of the queue's traffic, and the queue's next event is the next
input that can reach the engine from outside.

`Clock` uses private fields of SimPy's environment (`_queue`, `_now`, `_eid`), so pyproject.toml asks for simpy<5.
"""

from __future__ import annotations

from heapq import heappush
from math import inf
from typing import Protocol

import simpy
from simpy.events import NORMAL


class Last(Protocol):
    """The actor that acts last at an instant: at `due_s`, never before now, and not while `due_s` is infinite."""

    @property
    def due_s(self) -> float:
        """The second at which it acts next."""

    def act(self) -> None:
        """Do the work that is due now, and set `due_s` for the next."""


class Clock(simpy.Environment):
    """A SimPy environment in which one actor acts at the end of an instant."""

    def run_with(self, last: Last) -> None:
        """Run until nothing is due any more."""
        queue = self._queue
        while True:
            next_s = queue[0][0] if queue else inf
            due_s = last.due_s
            if due_s < next_s:
                assert due_s >= self._now, "time never runs back"
                self._now = due_s
                last.act()
            elif queue:
                self.step()
            else:
                return

    def at(self, when_s: float) -> simpy.Event:
        """Schedule an event at an absolute time; `timeout` would subtract now and add it again, with rounding."""
        assert when_s >= self._now, "time never runs back"
        event = _Due(self)
        heappush(self._queue, (when_s, NORMAL, next(self._eid), event))
        return event


class _Due(simpy.Event):
    """An event that has succeeded from the start."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
