"""A scenario in, a RunRecord out."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import simpy

from sqsim import __version__
from sqsim import scenario_parts as sc
from sqsim.agent.aux_thread import DecisionModel
from sqsim.agent.policies.base import Policy
from sqsim.agent.policies.keep_last import KeepLast
from sqsim.agent.policies.none import NoEviction
from sqsim.agent.policies.oracle import Oracle
from sqsim.agent.policies.sidequest import SideQuest
from sqsim.agent.turn_loop import LoopOptions, TurnLoop
from sqsim.des.engine import Engine
from sqsim.des.load import start_load
from sqsim.des.step_log import StepLog
from sqsim.des.task import AgentTask, Child, ClientOptions, Tables
from sqsim.errors import ScenarioError, TraceError
from sqsim.metrics import judge_evictions
from sqsim.models.batching import Limits, Scheduler
from sqsim.models.capacity import Capacity, kv_capacity
from sqsim.models.cost import CostModel, profile
from sqsim.models.geometry import Geometry, geometry
from sqsim.models.hardware import Hardware, hardware
from sqsim.models.profile import Profile
from sqsim.models.tokens import Segments
from sqsim.record import RunRecord
from sqsim.scenario import Scenario
from sqsim.trace.schema import Task
from sqsim.trace.store import read_tasks
from sqsim.workload import Instance, instances

Progress = Callable[[int, int], None]
"""Called as tasks end: how many have, of how many."""


def simulate(scenario: Scenario, progress: Progress | None = None) -> RunRecord:
    """Run a scenario. InputError when it cannot be run as it is; the same scenario gives the same record."""
    started = time.perf_counter()
    setup = _Setup(scenario)
    tables, log = setup.run(progress)
    tasks = {root.name: root.task for root in _flat(setup.roots)}
    record = RunRecord(
        run=setup.describe(log),
        timing={"wall_s": time.perf_counter() - started, "host": platform.platform()},
        tasks=tables.tasks.table(),
        turns=tables.turns.table(),
        aux=tables.aux.table(),
        evictions=judge_evictions(tables.evictions.table(), tasks),
        engine=log.rows.table(),
    )
    assert record.tasks.num_rows == len(tasks), "law 1: every task ends exactly once"
    return record


class _Setup:
    """A scenario with everything it names looked up."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        engine = scenario.engine
        model = str(scenario.model_path or scenario.model)
        self.geometry: Geometry = geometry(model)
        self.hardware: Hardware = hardware(engine.gpu)
        self.profile: Profile = profile(model, engine.gpu, engine.profile or "auto")
        self.capacity: Capacity = kv_capacity(
            self.geometry,
            self.hardware,
            self.geometry.weight_bytes(self.profile.weights),
            mem_fraction=engine.mem_fraction,
            kv_dtype=engine.kv_dtype,
            swa_pool=engine.swa_pool,
            swa_full_tokens_ratio=engine.swa_full_tokens_ratio,
            page_size=engine.page_size,
            tensor_parallel=engine.tensor_parallel,
            override=engine.kv_capacity,
        )
        self.cost = CostModel(
            self.profile,
            self.geometry,
            self.hardware,
            tensor_parallel=engine.tensor_parallel,
            kv_dtype=engine.kv_dtype,
        )
        self.hybrid = self.capacity.swa_tokens is not None
        self.tasks = _read(scenario.trace_paths)
        self.roots = instances(self.tasks, scenario.tasks, resample=scenario.resample, seed=scenario.seed)
        self._refuse_missing()

    def _refuse_missing(self) -> None:
        """What the policy or the load needs and the traces do not carry."""
        scenario = self.scenario
        if isinstance(scenario.policy, sc.SideQuest | sc.Oracle):
            for task in self.tasks:
                if task.carries.references == "absent":
                    raise ScenarioError(
                        f"policy.name: {scenario.policy.name} needs to know when each response is used last, and task "
                        f"{task.task_id!r} carries no references; import it again without --references none, or use none or keep_last"
                    )
        if isinstance(scenario.load, sc.RecordedLoad):
            for root in self.roots:
                if root.task.arrival_s is None:
                    raise ScenarioError(
                        f"load.as_recorded: task {root.task.task_id!r} has no arrival_s; use concurrency or rate_per_s"
                    )

    @property
    def context_length(self) -> int:
        return self.scenario.engine.context_length or self.geometry.context_length

    def run(self, progress: Progress | None) -> tuple[Tables, StepLog]:
        scenario, engine_keys = self.scenario, self.scenario.engine
        env = simpy.Environment()
        log = StepLog(self.cost, hybrid=self.hybrid)
        sessions = engine_keys.cache == "session"
        limits = Limits(
            kv_capacity=self.capacity.full_tokens,
            swa_capacity=self.capacity.swa_tokens,
            swa_window=self.geometry.window - 1 if self.geometry.window else None,
            page_size=engine_keys.page_size,
            max_running=engine_keys.max_running,
            chunked_prefill=engine_keys.chunked_prefill,
            schedule_conservativeness=engine_keys.schedule_conservativeness,
            context_length=self.context_length,
            release_idle_sessions=sessions,
        )
        engine = Engine(env, Scheduler(limits), self.cost, log)
        tables, segments = Tables(), Segments()
        numbers = iter(range(10**12))
        ended = 0

        def build(instance: Instance, parent: str | None) -> AgentTask:
            agent = AgentTask(
                env,
                engine,
                tables,
                self._client(),
                instance.name,
                next(numbers),
                self._loop(instance, segments),
                parent,
            )
            for child in instance.children:
                spawn = child.task.spawn
                assert spawn is not None, "the trace checks give every sub-agent its spawn"
                agent.children.append(Child(build(child, instance.name), spawn.turn, spawn.join_turn))
            return agent

        def start(root: Instance) -> simpy.Process:
            process = env.process(build(root, None).process())
            assert process.callbacks is not None
            process.callbacks.append(count_end)
            return process

        def count_end(_: simpy.Event) -> None:
            nonlocal ended
            ended += 1
            if progress is not None:
                progress(ended, len(self.roots))

        env.process(engine.process())
        env.run(env.all_of(start_load(env, scenario.load, self.roots, start, scenario.seed)))
        end_s = env.now
        env.run()  # what cancelled requests still cost; no task is left to take notice
        log.finish(end_s)
        return tables, log

    def _client(self) -> ClientOptions:
        policy, engine = self.scenario.policy, self.scenario.engine
        return ClientOptions(
            sessions=engine.cache == "session",
            in_place=self.scenario.after_eviction == "in_place",
            max_new_tokens=engine.max_new_tokens,
            aux_max_new_tokens=policy.aux_max_new_tokens if isinstance(policy, sc.SideQuest) else 0,
        )

    def _loop(self, instance: Instance, segments: Segments) -> TurnLoop:
        scenario, keys = self.scenario, self.scenario.policy
        decisions = None
        if isinstance(keys, sc.SideQuest):
            decisions = DecisionModel(
                instance.task,
                instance.name,
                seed=scenario.seed,
                recall=keys.recall,
                false_rate=keys.false_rate,
                aux_tokens=keys.aux_tokens,
                aux_max_new_tokens=keys.aux_max_new_tokens,
            )
        options = LoopOptions(
            in_place=scenario.after_eviction == "in_place",
            apply_at=scenario.apply,
            aux_start=keys.aux_start if isinstance(keys, sc.SideQuest) else "after_main_prefill",
            context_length=self.context_length,
            max_turns=scenario.max_turns,
            tool_wait_cap_s=scenario.tool_wait_cap_s,
            page_size=scenario.engine.page_size,
            tail_tokens=self.geometry.window or 0 if self.hybrid else 0,
        )
        return TurnLoop(instance.task, _policy(keys, instance.task), segments, options, decisions)

    def describe(self, log: StepLog) -> dict[str, Any]:
        """run.json: what was run, and on what evidence."""
        scenario = self.scenario
        references: dict[str, int] = {}
        for task in self.tasks:
            references[task.carries.references] = references.get(task.carries.references, 0) + 1
        return {
            "kind": "simulated",
            "status": "complete",
            "scenario": scenario.resolved(),
            "versions": {"sqsim": __version__, "simpy": version("simpy"), "models_sglang": "0.5.23"},
            "traces": [
                _trace(path, name) for path, name in zip(scenario.trace_paths, scenario.traces, strict=True)
            ],
            "references": references,
            "kv_capacity": {
                "tokens": self.capacity.full_tokens,
                "swa_tokens": self.capacity.swa_tokens,
                "how": self.capacity.how,
            },
            "context_length": self.context_length,
            "profile": {**_profile(self.profile), "also_derived": list(self.cost.notes)},
            "assumed": scenario.assumed(),
            "out_of_range": dict(sorted(log.out_of_range.items())),
        }


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


def _policy(keys: sc.Policy, task: Task) -> Policy:
    match keys:
        case sc.SideQuest():
            return SideQuest(keys.k, spawn_without_cursors=keys.spawn_without_cursors)
        case sc.KeepLast():
            return KeepLast(keys.n, keys.trigger_tokens)
        case sc.Oracle():
            return Oracle(task)
        case _:
            return NoEviction()


def _read(paths: Sequence[Path]) -> list[Task]:
    tasks: list[Task] = []
    seen: dict[str, Path] = {}
    for path in paths:
        for task in read_tasks(path):
            if task.task_id in seen:
                raise TraceError(
                    f"{task.task_id!r} is in {seen[task.task_id]} too",
                    file=path,
                    field="task_id",
                    fix="give every task its own id",
                )
            seen[task.task_id] = path
            tasks.append(task)
    return tasks


def _trace(path: Path, name: str) -> dict[str, Any]:
    """A trace's name as the scenario has it, and its content's sha256; a directory's covers its files and their names."""
    total = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        if path.is_dir():
            total.update(file.relative_to(path).as_posix().encode())
        total.update(file.read_bytes())
    return {"path": name, "sha256": total.hexdigest()}


def _flat(roots: Sequence[Instance]) -> list[Instance]:
    return [each for root in roots for each in (root, *_flat(root.children))]
