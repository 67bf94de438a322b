# SPDX-License-Identifier: Apache-2.0
"""The agents of a scenario: its tasks, their turn loops, and the declarations of their requests.

The simulated and the real run take all of this from here, so they differ in the server alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from sqsim.agent.aux_thread import TRIGGER_TOKENS
from sqsim.agent.checked_gate import CheckedGate
from sqsim.agent.turn_loop import LoopOptions, TurnLoop
from sqsim.errors import InputError, PolicyError, TraceError
from sqsim.models.serving.tokens import Segments, Tokens, count
from sqsim.policies.base import Gate, Policy, unknown_usage
from sqsim.policies.contract.asking import asked, shown
from sqsim.policies.registry import is_built_in, source_digest
from sqsim.scenario.load import RecordedLoad
from sqsim.scenario.scenario import Scenario
from sqsim.scenario.workload import Instance, Survey, instances, survey
from sqsim.trace.files import sha256
from sqsim.trace.schema import Task
from sqsim.trace.store import read_tasks


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Declarations of an agent's requests. `sessions`: one streaming session a task (cache `session`)."""

    sessions: bool
    in_place: bool
    max_new_tokens: int = 4096
    aux_max_new_tokens: int = 256

    def declares(self, output: Tokens) -> int:
        """Return `max_new_tokens` of a main step; never less than the recorded output, which the recorded server allowed."""
        return max(self.max_new_tokens, count(output))


# SGLang aborts by prefix of the id (RULES.md, rule 42), so none of these ids is a prefix of another.
def main_rid(number: int, turn: int) -> str:
    """Name the main step `turn` of the run's task `number`."""
    return f"{number}/{turn}/"


def aux_rid(number: int, index: int) -> str:
    """Name the aux thread `index` of the run's task `number`."""
    return f"{number}/a{index}/"


def is_aux(rid: str) -> bool:
    """Tell whether a request belongs to an aux thread."""
    return "/a" in rid


class Agents:
    """A scenario's tasks, read and checked. InputError: a trace is wrong, or lacks data that policy or load need.

    Traces of more than `held_steps` model calls do not stay in memory; they are read again as their tasks start.
    """

    def __init__(self, scenario: Scenario, held_steps: float = inf) -> None:
        self.scenario = scenario

        paths = tuple(scenario.trace_paths)
        self._sums = tuple(sha256(path) for path in paths)
        self._survey = _surveyed(paths, self._sums, held_steps)

        def read() -> Iterator[Task]:
            return _read(paths)

        with scenario.blamed("tasks"):
            self.roots: Collection[Instance] = instances(
                read,
                self._survey,
                scenario.tasks,
                resample=scenario.resample,
                seed=scenario.seed,
                sort=isinstance(scenario.load, RecordedLoad),
            )
        with scenario.blamed("policy.name"):
            self._refuse_without_references()
        with scenario.blamed("load.as_recorded"):
            self._refuse_without_arrivals()

    def _refuse_without_references(self) -> None:
        policy = self.scenario.policy
        lacks = self._survey.without_references
        if policy.needs_references and lacks is not None:
            raise InputError(
                f"{policy.name} needs to know when each response is used last, and task {lacks!r} carries no "
                "references; import it again without --references none, or use none or keep_last"
            )

    def _refuse_without_arrivals(self) -> None:
        lacks = self._survey.without_arrival
        if isinstance(self.scenario.load, RecordedLoad) and lacks is not None:
            number, name = lacks
            if self.scenario.resample or number < len(self.roots):
                raise InputError(f"task {name!r} has no arrival_s; use concurrency or rate_per_s")

    @property
    def live(self) -> bool:
        """Whether the server's model writes the aux threads."""
        return self.scenario.policy.runs_live

    @property
    def by_name(self) -> dict[str, Task]:
        """Every task of the run, sub-agents included, by its name in this run."""
        return {instance.name: instance.task for root in self.roots for instance in root.flat()}

    def client(self) -> ClientOptions:
        """Return the declarations of this scenario's requests."""
        policy, engine = self.scenario.policy, self.scenario.engine
        return ClientOptions(
            sessions=engine.cache == "session",
            in_place=self.scenario.after_eviction == "in_place",
            max_new_tokens=engine.max_new_tokens,
            aux_max_new_tokens=policy.aux.max_new_tokens,
        )

    def gate(self, capacity_tokens: int) -> Gate | None:
        """Return the gate that agents pass at their boundaries; None where the policy never pauses an agent."""
        policy = self.scenario.policy
        gate = asked(policy, "gate", lambda: policy.gate(capacity_tokens))
        return None if gate is None else CheckedGate(policy, gate)

    def loop(
        self,
        instance: Instance,
        segments: Segments,
        *,
        context_length: int,
        tail_tokens: int,
        trigger_tokens: int = TRIGGER_TOKENS,
        kv_usage: Callable[[], float] = unknown_usage,
    ) -> TurnLoop:
        """Build the loop of one task. `tail_tokens`: the sliding window, where there is a pool for it.

        `kv_usage` returns the share of the server's KV slots in use when it is called, from 0 to 1.
        """
        scenario, policy = self.scenario, self.scenario.policy
        task, decisions = instance.task, None
        if not self.live and policy.overrides("spawn_aux"):
            decisions = asked(
                policy,
                f"scripted for task {instance.name!r}",
                lambda: policy.scripted(task, instance.name, scenario.seed),
            )
            if not callable(getattr(decisions, "decide", None)):
                raise PolicyError(
                    f"policy {policy.name}: scripted returns {shown(decisions)}, which decides nothing, and no real model "
                    "writes them (runs_live); return a decision model"
                )
        options = LoopOptions(
            in_place=scenario.after_eviction == "in_place",
            apply_at=scenario.apply,
            aux_start=policy.aux.start,
            context_length=context_length,
            max_turns=scenario.max_turns,
            tool_wait_cap_s=scenario.tool_wait_cap_s,
            page_size=scenario.engine.page_size,
            tail_tokens=tail_tokens,
            trigger_tokens=trigger_tokens,
        )
        return TurnLoop(task, _of_task(policy, task), segments, options, decisions, kv_usage)

    def describe(self) -> dict[str, Any]:
        """Describe the scenario and its traces for run.json."""
        scenario = self.scenario
        return {
            "scenario": scenario.resolved(),
            "traces": [
                {"path": name, "sha256": sha256}
                for name, sha256 in zip(scenario.traces, self._sums, strict=True)
            ],
            "references": dict(self._survey.references),
            "assumed": scenario.assumed(),
            **_policy_source(scenario.policy),
        }


def _policy_source(policy: Policy) -> dict[str, Any]:
    """Describe the source of a policy that is not part of sqsim."""
    if is_built_in(policy):
        return {}
    kind = type(policy)
    return {"policy_source": {"class": f"{kind.__module__}:{kind.__qualname__}", "sha256": source_digest(kind)}}


def _of_task(policy: Policy, task: Task) -> Policy:
    """Return the policy for one task, which shares no memory with other tasks."""
    if policy.needs_references:
        found: object = asked(
            policy, f"with_hindsight for task {task.task_id!r}", lambda: policy.with_hindsight(task)
        )
        if not isinstance(found, Policy) or found.name != policy.name:
            raise PolicyError(
                f"policy {policy.name}: with_hindsight for task {task.task_id!r} returns {shown(found)}; "
                "return a policy of this class, such as a changed self.model_copy()"
            )
        return found
    if not policy.__private_attributes__:
        return policy
    return asked(policy, "a copy of its private attributes for one task", lambda: policy.model_copy(deep=True))


def _read(paths: Sequence[Path]) -> Iterator[Task]:
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
            if len(paths) > 1:  # within one file the reader has checked this
                seen[task.task_id] = path
            yield task


@lru_cache(maxsize=2)
def _surveyed(paths: tuple[Path, ...], sums: tuple[str, ...], most: float) -> Survey:  # noqa: ARG001 - of this content
    """Survey the traces; cached, because scenarios of a study share their traces and tasks do not change."""
    return survey(lambda: _read(paths), most)
