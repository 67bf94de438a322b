# SPDX-License-Identifier: Apache-2.0
"""Starts of tasks: in a closed loop, at a rate, or as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import simpy

from sqsim.scenario.load import ClosedLoad, Load
from sqsim.scenario.workload import Instance, arrivals
from sqsim.simulation.clock import Clock

Events = Generator[simpy.Event, object, None]
Start = Callable[[Instance], simpy.Process]


class Stripe(NamedTuple):
    """Every `of`-th task, from number `place` on."""

    place: int
    of: int


def start_load(
    clock: Clock, load: Load, roots: Collection[Instance], start: Start, seed: int, stripe: Stripe
) -> None:
    """Start the tasks of a stripe as the scenario's load states.

    A closed loop's places are dealt out evenly, and the first stripes get one more; a stripe without a place gets no task.
    """
    place, of = stripe
    if isinstance(load, ClosedLoad):
        of = min(of, load.concurrency)
        if place >= of:
            return
        queue = islice(iter(roots), place, None, of)
        places = load.concurrency // of + (place < load.concurrency % of)
        for _ in range(min(places, len(roots))):
            clock.process(_worker(queue, start))
    else:
        clock.process(_arrivals(clock, islice(arrivals(load, roots, seed), place, None, of), start))


def _worker(queue: Iterator[Instance], start: Start) -> Events:
    """Run one place of a closed loop: the next task starts at the instant the last one ended."""
    for root in queue:
        yield start(root)


def _arrivals(clock: Clock, due: Iterable[tuple[float, Instance]], start: Start) -> Events:
    """Start each task at its time, earliest first."""
    for at_s, root in due:
        yield clock.at(at_s)
        start(root)
