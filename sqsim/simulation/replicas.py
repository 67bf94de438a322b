# SPDX-License-Identifier: Apache-2.0
"""Replicas of one engine behind a router that chooses a replica for every request.

A router with session affinity does not need this module: each of its replicas is a cluster of its own (cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from sqsim.models.serving.request import Request
from sqsim.simulation.clock import Clock
from sqsim.simulation.engine import Engine
from sqsim.simulation.server import Submission

Choice = Literal["round_robin", "least_loaded"]


class Replicas:
    """Engines that act in turn on one clock; the router chooses one for each request.

    `round_robin`: one engine after the other, for main and aux requests alike. `least_loaded`: the engine with the fewest
    unfinished requests, the first of equals. Sessions are not supported, because a router would split their turns.
    """

    def __init__(self, engines: Sequence[Engine], choice: Choice) -> None:
        self._engines, self._choice = engines, choice
        self._next = 0
        self._home: dict[Submission, Engine] = {}

    @property
    def due_s(self) -> float:
        """The second at which the first of them acts."""
        return min([engine.due_s for engine in self._engines])

    def act(self) -> None:
        """Let the first engine that is due act; of several due at once, the one with the lowest number."""
        due_s = self.due_s
        next(engine for engine in self._engines if engine.due_s == due_s).act()

    def submit(self, request: Request, *, tell_first_token: bool = False) -> Submission:
        """Hand a request to a replica."""
        engine = self._choose()
        request.match_hint = None  # it may lead into another replica's tree
        submission = engine.submit(request, tell_first_token=tell_first_token)
        if not submission.done.triggered:
            self._home[submission] = engine
            assert submission.done.callbacks is not None
            submission.done.callbacks.append(lambda _: self._forget(submission))
        return submission

    def cancel(self, submission: Submission) -> None:
        """Abort a request where it runs."""
        if submission in self._home:
            self._home[submission].cancel(submission)

    def kv_usage(self) -> float:
        """Return the KV usage of the replica that would get the next request."""
        return self._engines[self._chosen()].kv_usage()

    def _forget(self, submission: Submission) -> None:
        del self._home[submission]

    def _choose(self) -> Engine:
        chosen = self._chosen()
        self._next = (chosen + 1) % len(self._engines)
        return self._engines[chosen]

    def _chosen(self) -> int:
        """Return the number of the replica that gets the next request."""
        if self._choice == "least_loaded":
            return min(range(len(self._engines)), key=lambda number: (self._engines[number].unfinished, number))
        return self._next


def horizon(clock: Clock, engines: Sequence[Engine], replica: int) -> Callable[[], float]:
    """Return a function that gives the time of the next input to one replica: an event, or another engine's act."""

    def next_s() -> float:
        others = [engine.due_s for engine in engines if engine.replica != replica]
        return min(clock.peek(), min(others, default=inf))

    return next_s
