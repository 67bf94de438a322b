"""When tasks start: a closed loop of so many at a time, arrivals at a rate, or as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator

import simpy

from sqsim.des.clock import Clock
from sqsim.scenario_parts import ClosedLoad, Load
from sqsim.workload import Instance, arrivals

Events = Generator[simpy.Event, object, None]
Start = Callable[[Instance], simpy.Process]


def start_load(clock: Clock, load: Load, roots: Collection[Instance], start: Start, seed: int) -> None:
    """Set off the tasks as the scenario's load says."""
    if isinstance(load, ClosedLoad):
        queue = iter(roots)
        for _ in range(min(load.concurrency, len(roots))):
            clock.process(_worker(queue, start))
    else:
        clock.process(_arrivals(clock, arrivals(load, roots, seed), start))


def _worker(queue: Iterator[Instance], start: Start) -> Events:
    """One place of a closed loop: the next task starts at the instant the last one ended."""
    for root in queue:
        yield start(root)


def _arrivals(clock: Clock, due: Iterable[tuple[float, Instance]], start: Start) -> Events:
    """Each task at its time, earliest first."""
    for at_s, root in due:
        yield clock.at(at_s)
        start(root)
