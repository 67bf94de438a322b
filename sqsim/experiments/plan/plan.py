# SPDX-License-Identifier: Apache-2.0
"""A plan: the fewest GPUs and the setting that keep an SLO under a load, and the confidence in them.

`plan.json` holds the answer and its evidence; `points/` (points.py) holds every run, so an interrupted plan continues
where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsim.base.workers import Progress, Workers
from sqsim.errors import InputError, SqsimError
from sqsim.experiments.grid import overrides
from sqsim.experiments.plan import kernels
from sqsim.experiments.plan.answer import SCHEMA, answer, name
from sqsim.experiments.plan.confidence import Confidence, confidence, draws
from sqsim.experiments.plan.search import Load, Search, find_edges
from sqsim.experiments.plan.settings import KS, Setting, settings
from sqsim.experiments.plan.slo import Slo
from sqsim.experiments.points import Found, Item, Points, write_json
from sqsim.models.cost.hardware import HARDWARE
from sqsim.models.cost.profile import Profile
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario, load_scenario

LEAST_TASKS = 24
MOST_TASKS = 10**7
RATE_TASKS = 200
"""Tasks of a run at a rate: enough to fill and empty a queue several times."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The question of a plan. `tasks_per_agent`: the tasks that each agent of a run does, one after the other."""

    file: Path
    slos: tuple[Slo, ...]
    load: Load
    gpus: tuple[str, ...] = ()
    prices: dict[str, float] | None = None  # GPU -> money an hour
    changes: tuple[str, ...] = ()
    ks: tuple[int, ...] = KS
    seeds: int = 5
    tasks_per_agent: float = 3.0


class _Planner:
    def __init__(self, ask: Ask, points: Points, workers: Workers, progress: Progress | None) -> None:
        self.ask, self.points, self.workers, self.progress = ask, points, workers, progress
        self.base = load_scenario(ask.file, ask.changes)
        self.ran = 0

    def scenario(self, setting: Setting, gpu: str, replicas: int) -> Scenario:
        """Build the scenario of one replica's share under a setting. ScenarioError: the combination does not exist."""
        share = self.ask.load.on(replicas)
        tasks = RATE_TASKS
        if self.ask.load.agents is not None:
            tasks = max(LEAST_TASKS, round(self.ask.tasks_per_agent * share))
        values = {
            "tasks": tasks,
            "resample": True,
            "replicas": 1,  # one run represents all replicas
            **self.ask.load.changes(replicas),
            **setting.changes,
        }
        if gpu != self.base.engine.gpu:
            values |= {"engine.gpu": gpu, "engine.profile": "auto", "engine.kv_capacity": "auto"}
        return load_scenario(self.ask.file, [*self.ask.changes, *overrides(values)])

    def run(self, asked: Sequence[tuple[Search, int]]) -> Iterator[Found | SqsimError]:
        """Run the numbers of replicas that searches ask for; a combination that does not exist gives its search an error."""
        made: list[Scenario | SqsimError] = []
        for search, replicas in asked:
            try:
                made.append(self.scenario(search.setting, search.gpu, replicas))
            except InputError as error:
                made.append(error)
        results = iter(self._run([each for each in made if isinstance(each, Scenario)]))
        for each in made:
            yield next(results) if isinstance(each, Scenario) else each

    def _run(self, scenarios: Sequence[Item]) -> list[Found | SqsimError]:
        def tell(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(self.ran + done, self.ran + total)

        found = self.points.run(scenarios, self.workers, tell)
        self.ran += len(scenarios)
        return found

    def assess(self, asked: Sequence[tuple[Search, int]]) -> list[Confidence | None]:
        """Compute the confidence in each of these numbers of replicas; None where a draw could not be run."""
        drawn = [
            draws(self.scenario(search.setting, search.gpu, replicas), self.ask.seeds)
            for search, replicas in asked
        ]
        found = iter(self._run([each for group in drawn for each in group]))
        results: list[Confidence | None] = []
        for group in drawn:
            got = [next(found) for _ in group]
            fine = [each for each in got if not isinstance(each, SqsimError)]
            results.append(confidence(fine, self.ask.slos) if len(fine) == len(got) else None)
        return results

    def under_other_kernels(self, shown: Sequence[Search]) -> list[dict[str, Any]]:
        """Search these settings again under each other kernel that the server may run, where the scenario names none."""
        if self.base.profile != "auto":
            return []

        def profile_of(search: Search) -> Profile:
            return Resolved.of(self.scenario(search.setting, search.gpu, search.load.first)).profile

        found = kernels.searches_under_alternatives(shown, profile_of)
        for _, _, again in found:
            self.check(again)
        if any(again.failure is None for _, _, again in found):
            find_edges([again for _, _, again in found], self.run)
        return kernels.described(found, profile_of, self.base.engine.tensor_parallel)

    def check(self, search: Search) -> None:
        """Note the error of a setting that is impossible here, before anything of it runs."""
        try:
            self.scenario(search.setting, search.gpu, self.ask.load.first)
        except InputError as error:
            search.failure = error


def run_plan(
    ask: Ask,
    directory: Path,
    *,
    overwrite: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search, write plan.json, and return its content. InputError explains why the question makes no sense."""
    _check(ask)
    points = Points(directory)
    planner = _Planner(ask, points, workers or Workers(), progress)
    base = planner.base
    if base.router != "session_affinity":
        raise InputError(
            f"plan: router {base.router!r} lets replicas share a task's requests, and a plan takes them one by one; set "
            "router: session_affinity, or sweep the scenario over `replicas`"
        )
    hybrid = Resolved.of(base).hybrid
    gpus = ask.gpus or (base.engine.gpu,)
    searches = [
        Search(setting, gpu, ask.load, ask.slos)
        for gpu in gpus
        for setting in settings(ask.ks, hybrid=hybrid, sized=base.engine.kv_capacity is None)
    ]
    for search in searches:
        planner.check(search)
    points.make_room(overwrite)
    find_edges(searches, planner.run)
    content = {
        "schema": SCHEMA,
        "scenario": {"file": ask.file.name, "changes": list(ask.changes), "resolved": base.resolved()},
        **answer(ask.slos, ask.load, searches, planner.assess, ask.prices, base.engine.tensor_parallel),
    }
    content["kernels"] = planner.under_other_kernels(
        [each for each in searches if name(each) in {content["best_free"], content["best_sidequest"]}]
    )
    content["sentences"] += kernels.sentences(content["kernels"])
    write_json(directory / "plan.json", content)
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]  # as a reader of the file finds it


def _check(ask: Ask) -> None:
    if not ask.slos:
        raise InputError("plan: no SLO; give at least one --slo, such as --slo 'ttft_s_p99<2'")
    if (ask.load.agents is None) == (ask.load.tasks_per_h is None):
        given = "both are given" if ask.load.agents is not None else "neither is given"
        raise InputError(
            f"plan: {given}; say what is to be carried by --agents N or --load TASKS_PER_HOUR, not both"
        )
    if ask.load.tasks_per_h is not None and not 0 < ask.load.tasks_per_h < 1e9:
        raise InputError(f"plan: --load {ask.load.tasks_per_h:g} must be above 0 tasks an hour, and below 1e9")
    tasks = None if ask.load.agents is None else ask.tasks_per_agent * ask.load.on(ask.load.first)
    if tasks is not None and not tasks <= MOST_TASKS:
        raise InputError(
            f"plan: --tasks-per-agent {ask.tasks_per_agent:g} makes runs of {tasks:g} tasks; give one that makes at most "
            f"{MOST_TASKS:g}"
        )
    for gpu in ask.gpus:
        if gpu not in HARDWARE:
            raise InputError(f"plan: --gpus {gpu!r} is unknown; choose some of {', '.join(HARDWARE)}")
