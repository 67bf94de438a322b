"""When tasks start: a closed loop of so many at a time, arrivals at a rate, or as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import simpy

from sqsim.scenario_parts import ClosedLoad, Load
from sqsim.workload import Instance, arrival_times

Events = Generator[simpy.Event, object, None]
Start = Callable[[Instance], simpy.Process]


def start_load(
    env: simpy.Environment, load: Load, roots: Sequence[Instance], start: Start, seed: int
) -> list[simpy.Process]:
    """Set off the tasks as the scenario's load says; all have ended when the returned processes have."""
    if isinstance(load, ClosedLoad):
        queue = iter(roots)
        return [env.process(_worker(queue, start)) for _ in range(min(load.concurrency, len(roots)))]
    times = arrival_times(load, roots, seed)
    return [env.process(_arrival(env, at, root, start)) for at, root in zip(times, roots, strict=True)]


def _worker(queue: Iterator[Instance], start: Start) -> Events:
    """One place of a closed loop: the next task starts at the instant the last one ended."""
    for root in queue:
        yield start(root)


def _arrival(env: simpy.Environment, at_s: float, root: Instance, start: Start) -> Events:
    yield env.timeout(at_s)
    yield start(root)
