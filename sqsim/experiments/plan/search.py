# SPDX-License-Identifier: Apache-2.0
"""A search for the fewest replicas that keep an SLO, for many settings at once, by bisection over the replicas.

With session affinity replicas are independent and alike, so R replicas for N agents are R times one replica with N / R:
one replica is simulated at its share of the load. All settings and GPUs ask for their next run together, so that the
workers are never idle. Every run has the scenario's seed, so settings are compared under the same randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqsim.errors import RunError, SqsimError
from sqsim.experiments.plan.not_run import one_line
from sqsim.experiments.plan.settings import Setting
from sqsim.experiments.plan.slo import Slo, broken
from sqsim.experiments.points import Found

FIRST_AGENTS = 8
"""Agents on one replica at which a search begins: cheap to run, and mostly a load that keeps the SLO."""
MOST_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class Load:
    """The load that all replicas together must carry: agents at a time, or tasks an hour."""

    agents: int | None = None
    tasks_per_h: float | None = None

    def on(self, replicas: int) -> float:
        """Return one replica's share: agents (of the fullest replica), or tasks an hour."""
        if self.agents is not None:
            return -(-self.agents // replicas)
        assert self.tasks_per_h is not None, "one of the two is given"
        return self.tasks_per_h / replicas

    def changes(self, replicas: int) -> dict[str, Any]:
        """Write one replica's share as scenario keys."""
        share = self.on(replicas)
        return {"load": {"concurrency": share} if self.agents is not None else {"rate_per_s": share / 3600}}

    @property
    def most(self) -> int:
        """The largest useful number of replicas."""
        return self.agents if self.agents is not None else MOST_REPLICAS

    @property
    def first(self) -> int:
        """The number of replicas to try first."""
        return -(-self.agents // FIRST_AGENTS) if self.agents is not None else 1


@dataclass(slots=True, eq=False)
class Search:
    """The search for one setting on one GPU; `runs` maps numbers of replicas to their points."""

    setting: Setting
    gpu: str
    load: Load
    slos: tuple[Slo, ...]
    runs: dict[int, Found] = field(default_factory=dict)
    failure: SqsimError | None = None

    @property
    def error(self) -> str | None:
        """The error that kept this setting from running, in one line."""
        return None if self.failure is None else one_line(self.failure)

    def serves(self, replicas: int) -> bool:
        """Tell whether the run for this number of replicas kept the SLO."""
        return not broken(self.slos, self.runs[replicas]["metrics"])

    @property
    def good(self) -> list[int]:
        return sorted(replicas for replicas in self.runs if self.serves(replicas))

    @property
    def bad(self) -> list[int]:
        return sorted(replicas for replicas in self.runs if not self.serves(replicas))

    @property
    def fewest(self) -> int | None:
        """The fewest replicas that serve, above every number that does not; None: no number serves."""
        served = [replicas for replicas in self.good if not self.bad or replicas > self.bad[-1]]
        return served[0] if served else None

    def next(self) -> int | None:
        """Return the number of replicas to run next; None: the search is finished."""
        if self.failure is not None:
            return None
        if not self.runs:
            return self.load.first
        fewest, worst = self.fewest, self.bad[-1] if self.bad else 0
        if fewest is None:
            return None if worst >= self.load.most else min(2 * worst, self.load.most)
        if fewest - worst <= 1:
            return None
        return (fewest + worst) // 2  # numbers with the same share are the same point, which runs only once


Run = Callable[[list[tuple[Search, int]]], Iterator[Found | SqsimError]]
"""Runs the numbers of replicas that searches ask for; returns one result each, in order."""


def find_edges(searches: list[Search], run: Run) -> None:
    """Run all searches to their ends. If none of them could be run, raise their common error; else a RunError with a line for each."""
    while asked := [(search, replicas) for search in searches if (replicas := search.next()) is not None]:
        for (search, replicas), found in zip(asked, run(asked), strict=True):
            if isinstance(found, SqsimError):
                search.failure = found
            else:
                search.runs[replicas] = found
    failures = [search.failure for search in searches if search.failure is not None and not search.runs]
    if len(failures) < len(searches):
        return
    if len({str(failure) for failure in failures}) == 1:  # it is the scenario's, not a setting's
        raise failures[0]
    lines = [f"{search.setting.name} on {search.gpu}: {search.error}" for search in searches]
    raise RunError("\n".join(["no setting could be run", *lines]))
