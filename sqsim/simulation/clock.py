"""Simulated time: SimPy's queue of events, and the engine, which acts last at every instant.

One rule for ties: whatever else is due at an instant, and what it causes at that instant, comes before the engine. So the
engine needs no events of its own, which would be most of the queue's traffic, and the queue's next event is the next thing
that can come to it from outside.

`Clock` reads and moves what is private to SimPy's environment (`_queue`, `_now`, `_eid`), so pyproject.toml asks for simpy<5.
"""

from __future__ import annotations

from heapq import heappush
from math import inf
from typing import Protocol

import simpy
from simpy.events import NORMAL


class Last(Protocol):
    """What acts last: at `due_s`, not before now, and not at all while that is infinite."""

    @property
    def due_s(self) -> float:
        """When it acts next."""

    def act(self) -> None:
        """Do what is due now, and say when to act next."""


class Clock(simpy.Environment):
    """A SimPy environment that ends an instant with somebody's act."""

    def run_with(self, last: Last) -> None:
        """Until nothing is due any more."""
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
        """An event at an absolute time, where `timeout` would subtract now and add it again."""
        assert when_s >= self._now, "time never runs back"
        event = _Due(self)
        heappush(self._queue, (when_s, NORMAL, next(self._eid), event))
        return event


class _Due(simpy.Event):
    """An event that is sure to come."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
