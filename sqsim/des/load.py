"""When tasks start: a closed loop of so many at a time, arrivals at a rate, or as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import simpy

from sqsim.draws import generator
from sqsim.scenario_parts import ClosedLoad, Load, RateLoad
from sqsim.workload import Instance

Events = Generator[simpy.Event, object, None]
Start = Callable[[Instance], simpy.Process]


def start_load(
    env: simpy.Environment, load: Load, roots: Sequence[Instance], start: Start, seed: int
) -> list[simpy.Process]:
    """Set off the tasks as the scenario's load says; all have ended when the returned processes have."""
    if isinstance(load, ClosedLoad):
        queue = iter(roots)
        return [env.process(_worker(queue, start)) for _ in range(min(load.concurrency, len(roots)))]
    if isinstance(load, RateLoad):
        times = _arrivals(load, len(roots), seed)
    else:
        recorded = [root.task.arrival_s for root in roots]
        first = min(at for at in recorded if at is not None)
        times = [(at - first) / load.speedup for at in recorded if at is not None]
    return [env.process(_arrival(env, at, root, start)) for at, root in zip(times, roots, strict=True)]


def _worker(queue: Iterator[Instance], start: Start) -> Events:
    """One place of a closed loop: the next task starts at the instant the last one ended."""
    for root in queue:
        yield start(root)


def _arrival(env: simpy.Environment, at_s: float, root: Instance, start: Start) -> Events:
    yield env.timeout(at_s)
    yield start(root)


def _arrivals(load: RateLoad, number: int, seed: int) -> list[float]:
    """Arrival seconds of task 0, 1, ...; the first gap counts, so that the rate holds from 0 on."""
    gap_s = 1.0 / load.rate_per_s
    if load.arrivals == "uniform":
        return [gap_s * (n + 1) for n in range(number)]
    gaps = [generator(seed, "arrival", n).exponential(gap_s) for n in range(number)]
    return list(np.cumsum(gaps).astype(float)) if gaps else []
