# SPDX-License-Identifier: Apache-2.0
"""Simulation of a scenario: a Scenario in, a RunRecord out."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from sqsim import __version__
from sqsim.base.code_digest import code_digest
from sqsim.errors import InputError
from sqsim.models.cost.profile import Profile
from sqsim.policies.base import Policy
from sqsim.record.recorder import recorder
from sqsim.record.schema import REPLICATED, TABLES, Rows, RunRecord
from sqsim.scenario.agents import Agents
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.arrivals import Stripe
from sqsim.simulation.cluster import Cluster, Happened

_HELD_STEPS = 10_000
"""Model calls of a trace that are kept in memory, at about 4 KB each; a longer trace is read twice."""

Progress = Callable[[int, int], None]
"""Called as tasks end, with the number that have ended and the number of all."""


def simulate(
    scenario: Scenario,
    progress: Progress | None = None,
    *,
    step_by_step: bool = False,
    profile: Profile | None = None,
    policy: Policy | None = None,
) -> RunRecord:
    """Simulate a scenario and return its record; the same scenario gives the same record. InputError: it cannot be run.

    `step_by_step` takes every engine step by itself: slow; law 7 compares macro-steps with it.
    `profile` replaces the profile that the scenario names; `policy`, an object, replaces the scenario's policy.
    """
    if not isinstance(scenario, Scenario):
        raise InputError(
            f"simulate: {scenario!r:.60} is no Scenario; make one with Scenario(...), or load_scenario(file)"
        )
    scenario = scenario if policy is None else scenario.with_(policy=policy)
    simulation = Simulation(scenario, profile)
    rows = {name: Rows(schema) for name, schema in simulation.schemas.items()}
    simulation.run(rows, progress, step_by_step=step_by_step)
    return RunRecord(
        run=simulation.describe(),
        timing=simulation.timing(),
        **{name: table.table() for name, table in rows.items()},
    )


def simulate_to(
    scenario: Scenario, directory: str | Path, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Simulate a scenario and write its record meanwhile: the same bytes as from `simulate`, in constant memory.

    InputError, RecordError and RunError as for `simulate` and `write_record`.
    """
    Simulation(scenario).write(directory, overwrite=overwrite, progress=progress)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage cycles less often: a run makes millions of objects and almost no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Simulation:
    """A scenario with its names resolved and its traces read. Run it once."""

    def __init__(self, scenario: Scenario, other_profile: Profile | None = None) -> None:
        self._started = time.perf_counter()
        self.scenario = scenario
        with scenario.blamed("policy.decisions"):
            _refuse_live(scenario)
        self.resolved = Resolved.of(scenario, other_profile).checked()
        self.agents = Agents(scenario, _HELD_STEPS)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """Schemas of the record's tables."""
        return TABLES if self.scenario.replicas == 1 else REPLICATED

    def write(
        self, directory: str | Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> None:
        """Run the simulation and write the record meanwhile."""
        with recorder(directory, overwrite, self.schemas) as found:
            self.run(found.rows, progress)
            found.finish(self.describe(), self.timing())

    def timing(self) -> dict[str, Any]:
        """Return the content of timing.json so far."""
        return {"wall_s": time.perf_counter() - self._started, "host": platform.platform()}

    def run(
        self, rows: Mapping[str, Rows], progress: Progress | None = None, *, step_by_step: bool = False
    ) -> None:
        """Simulate until all tasks have ended and nothing runs; append what happened to `rows`, by table."""
        with _rare_collections():
            self._happened = self._run(rows, progress, step_by_step=step_by_step)

    def _run(self, rows: Mapping[str, Rows], progress: Progress | None, *, step_by_step: bool) -> Happened:
        scenario, resolved = self.scenario, self.resolved
        number, total = scenario.replicas, len(self.agents.roots)
        apart = scenario.router == "session_affinity"
        groups = [range(each, each + 1) for each in range(number)] if apart else [range(number)]
        happened, numbers = Happened(), iter(range(10**12))

        def tell(ended: int) -> None:
            if progress is not None:
                progress(ended, total)

        for place, group in enumerate(groups):
            cluster = Cluster(
                resolved, self.agents, rows, group, scenario.router, numbers, step_by_step=step_by_step
            )
            cluster.run(Stripe(place, len(groups)), happened, tell)
        assert happened.ended == total, "law 1: every task ends"
        return happened

    def describe(self) -> dict[str, Any]:
        """Return the content of run.json: the run, and the evidence for it."""
        resolved, paused = self.resolved, self._happened.pauses
        return {
            **self.agents.describe(),
            "kind": "simulated",
            "status": "complete",
            "versions": {
                "sqsim": __version__,
                "code": code_digest("sqsim"),
                "simpy": version("simpy"),
                "models_sglang": "0.5.23",
            },
            "kv_capacity": resolved.kv_capacity.described(),
            "context_length": resolved.context_length,
            "profile": {**_profile(resolved.profile), "also_derived": list(resolved.cost.notes)},
            "kernel_costs": {"in_place": resolved.in_place._asdict()}
            if self.scenario.after_eviction == "in_place"
            else {},
            "out_of_range": dict(sorted(self._happened.out_of_range.items())),
            **({} if paused is None else {"paused": {"times": paused, "s": self._happened.paused_s}}),
        }


def _refuse_live(scenario: Scenario) -> None:
    if scenario.policy.runs_live:
        raise InputError(
            "live decisions are a model's own text, and a simulation has no model; set scripted, or use `sqreal run`"
        )


def _profile(found: Profile) -> dict[str, Any]:
    evidence = found.evidence()
    by_kind: dict[str, list[str]] = {}
    for term, kind in evidence.items():
        by_kind.setdefault(kind, []).append(term)
    return {
        "name": found.name,
        "engine": f"{found.engine} {found.version}",
        "weights": found.weights,
        "note": found.note,
        "chosen": found.auto,
        "evidence": evidence,
        "summary": "; ".join(f"{kind}: {', '.join(terms)}" for kind, terms in by_kind.items()),
    }
