# SPDX-License-Identifier: Apache-2.0
"""The tasks that a run replays (all of the traces, the first N, or N drawn with replacement), and their arrivals."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import log1p, pi, sin
from operator import itemgetter

from sqsim.base.random_streams import uniform
from sqsim.errors import InputError
from sqsim.scenario.load import RateLoad, RecordedLoad
from sqsim.trace.schema import Task


@dataclass(frozen=True, slots=True)
class Instance:
    """One task of a run, under its name in this run, with the sub-agents that its turns start."""

    name: str
    task: Task
    children: tuple[Instance, ...]

    def flat(self) -> Iterator[Instance]:
        """Yield this task and all sub-agents below it."""
        yield self
        for child in self.children:
            yield from child.flat()


Read = Callable[[], Iterator[Task]]
"""Reads the traces from their start; the same tasks each time."""


@dataclass(slots=True)
class Survey:
    """Facts from one reading of the traces. `held`: the tasks, unless they have more than `most` model calls."""

    most: float
    held: list[Task] | None = field(default_factory=list)
    roots: int = 0
    references: Counter[str] = field(default_factory=Counter)  # origin of the references -> number of tasks
    without_references: str | None = None  # the first task that has none
    without_arrival: tuple[int, str] | None = None  # number and name of the first root that has none
    arrivals_rise: bool = True
    complete_at: dict[str, int] = field(
        default_factory=dict
    )  # root with sub-agents -> place of the last of them
    _root_of: dict[str, str] = field(default_factory=dict)  # sub-agent -> root
    _steps: int = 0
    _latest_s: float = 0.0

    def look(self, place: int, task: Task) -> None:
        """Add the task at one place of the traces."""
        how = task.carries.references
        self.references[how] += 1
        if how == "absent" and self.without_references is None:
            self.without_references = task.task_id
        if task.parent is None:
            self._look_at_root(task)
        else:
            root = self._root_of.get(task.parent.task_id, task.parent.task_id)
            self._root_of[task.task_id] = root
            self.complete_at[root] = place
        self._steps += task.steps
        if self._steps > self.most:
            self.held = None
        if self.held is not None:
            self.held.append(task)

    def _look_at_root(self, task: Task) -> None:
        if task.arrival_s is None:
            if self.without_arrival is None:
                self.without_arrival = (self.roots, task.task_id)
        else:
            self.arrivals_rise = self.arrivals_rise and self._latest_s <= task.arrival_s
            self._latest_s = task.arrival_s
        self.roots += 1


class Stream(Collection[Instance]):
    """The first `number` root tasks with their sub-agents, read anew each time; only unfinished families are in memory."""

    def __init__(self, read: Read, survey: Survey, number: int) -> None:
        self._read, self._complete_at, self._number = read, survey.complete_at, number

    def __len__(self) -> int:
        return self._number

    def __contains__(self, instance: object) -> bool:
        return any(each == instance for each in self)

    def __iter__(self) -> Iterator[Instance]:
        return islice(self._all(), self._number)

    def _all(self) -> Iterator[Instance]:
        waiting: deque[list[Task]] = deque()  # families in the order of their roots
        family_of: dict[str, list[Task]] = {}
        for place, task in enumerate(self._read()):
            if task.parent is None:
                waiting.append([task])
                if task.task_id in self._complete_at:
                    family_of[task.task_id] = waiting[-1]
            else:
                family_of[task.task_id] = family_of[task.parent.task_id]
                family_of[task.task_id].append(task)
            while waiting and self._complete_at.get(waiting[0][0].task_id, -1) <= place:
                family = waiting.popleft()
                for member in family:
                    family_of.pop(member.task_id, None)
                yield from _families(family)


def survey(read: Read, most: float) -> Survey:
    """Read all tasks once and collect the facts."""
    found = Survey(most)
    for place, task in enumerate(read()):
        found.look(place, task)
    return found


def instances(
    read: Read, found: Survey, number: int | None, *, resample: bool, seed: int, sort: bool = False
) -> Collection[Instance]:
    """Choose root tasks with their sub-agents: all, the first `number`, or `number` draws with replacement.

    A drawn task is renamed `ID#n`; ids of shared prefixes stay, so copies share the prefixes of their originals. Tasks that
    the survey did not hold are streamed, unless they must be drawn or, with `sort`, sorted by arrival.
    InputError: more tasks are asked for than there are, without `resample`.
    """
    size = number if number is not None else found.roots
    if not resample and size > found.roots:
        raise InputError(
            f"{number} tasks are asked for, the traces hold {found.roots}; "
            "ask for fewer, or set resample: true to draw with replacement"
        )
    if found.held is None and not resample and (found.arrivals_rise or not sort):
        return Stream(read, found, size)
    families = _families(found.held if found.held is not None else list(read()))
    if not resample:
        return families[:size]
    drawn = [families[int(uniform(seed, "resample", n) * len(families))] for n in range(size)]
    return [_renamed(family, f"#{n}") for n, family in enumerate(drawn)]


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


def arrivals(
    load: RateLoad | RecordedLoad, roots: Collection[Instance], seed: int
) -> Iterable[tuple[float, Instance]]:
    """Yield the tasks of an open load with their arrival in seconds, earliest first.

    At a rate the first task arrives one gap after 0 s, so the rate is kept from 0 s on.
    """
    if isinstance(load, RateLoad):
        return zip(_at_rate(load, seed), roots, strict=False)
    recorded = ((root.task.arrival_s, root) for root in roots)
    known: Iterable[tuple[float, Instance]] = ((at_s, root) for at_s, root in recorded if at_s is not None)
    if not isinstance(roots, Stream):  # whose arrivals rise
        known = sorted(known, key=itemgetter(0))
    return _from_first(known, load.speedup)


def _from_first(known: Iterable[tuple[float, Instance]], speedup: float) -> Iterator[tuple[float, Instance]]:
    first_s = None
    for at_s, root in known:
        first_s = at_s if first_s is None else first_s
        yield (at_s - first_s) / speedup, root


def _at_rate(load: RateLoad, seed: int) -> Iterator[float]:
    gap_s = 1.0 / load.rate_per_s
    number, at_s = 0, 0.0
    size = load.burst if load.arrivals == "bursts" else 1
    while True:
        if load.arrivals == "uniform":
            at_s = gap_s * (number + 1)
        else:
            at_s -= size * gap_s * log1p(-uniform(seed, "arrival", number))
        yield from [_in_the_day(load, at_s) if load.arrivals == "daily" else at_s] * size
        number += 1


def _in_the_day(load: RateLoad, at_s: float) -> float:
    """Find the second by which the swinging rate gives as many arrivals as its mean gives by `at_s`.

    By t, rate x (t - swing x period / 2 pi x sin(2 pi t / period)) are due: it rises, so halving finds t.
    """
    turn = load.period_s / (2 * pi)
    low, high = at_s - load.swing * turn, at_s + load.swing * turn
    for _ in range(64):
        middle = (low + high) / 2
        if middle - load.swing * turn * sin(middle / turn) < at_s:
            low = middle
        else:
            high = middle
    return high
