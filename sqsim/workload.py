"""Which tasks a run replays (the traces' own, the first N, or N drawn with replacement), and when they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sqsim.draws import generator, uniform
from sqsim.errors import InputError
from sqsim.scenario_parts import RateLoad, RecordedLoad
from sqsim.trace.schema import Task


@dataclass(frozen=True, slots=True)
class Instance:
    """One task to run, under its name in this run, with the sub-agents that its turns start."""

    name: str
    task: Task
    children: tuple[Instance, ...]


def instances(tasks: Sequence[Task], number: int | None, *, resample: bool, seed: int) -> list[Instance]:
    """Root tasks with their sub-agents: all, the first `number`, or `number` draws with replacement.

    A drawn task is renamed `ID#n`; ids of shared prefixes stay, so that copies share what the originals share.
    InputError: more tasks are asked for than there are, without `resample`.
    """
    families = _families(tasks)
    if resample:
        size = number if number is not None else len(families)
        drawn = [families[int(uniform(seed, "resample", n) * len(families))] for n in range(size)]
        return [_renamed(family, f"#{n}") for n, family in enumerate(drawn)]
    if number is not None and number > len(families):
        raise InputError(
            f"{number} tasks are asked for, the traces hold {len(families)}; "
            "ask for fewer, or set resample: true to draw with replacement"
        )
    return families if number is None else families[:number]


def _families(tasks: Sequence[Task]) -> list[Instance]:
    children: dict[str, list[Task]] = {}
    for task in tasks:
        if task.parent is not None:
            children.setdefault(task.parent.task_id, []).append(task)

    def family(task: Task) -> Instance:
        return Instance(task.task_id, task, tuple(family(child) for child in children.get(task.task_id, ())))

    return [family(task) for task in tasks if task.parent is None]


def _renamed(instance: Instance, suffix: str) -> Instance:
    return Instance(
        instance.name + suffix, instance.task, tuple(_renamed(child, suffix) for child in instance.children)
    )


def arrival_times(load: RateLoad | RecordedLoad, roots: Sequence[Instance], seed: int) -> list[float]:
    """Seconds at which the tasks of an open load arrive; at a rate the first gap counts, so that it holds from 0 on."""
    if isinstance(load, RecordedLoad):
        recorded = [root.task.arrival_s for root in roots]
        first = min(at for at in recorded if at is not None)
        return [(at - first) / load.speedup for at in recorded if at is not None]
    gap_s = 1.0 / load.rate_per_s
    if load.arrivals == "uniform":
        return [gap_s * (n + 1) for n in range(len(roots))]
    gaps = [generator(seed, "arrival", n).exponential(gap_s) for n in range(len(roots))]
    return list(itertools.accumulate(gaps))
