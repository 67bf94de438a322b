# SPDX-License-Identifier: Apache-2.0
"""A cluster: a group of replicas on one clock, and the tasks that they serve.

With session affinity a task stays on its replica, so every replica is a cluster of its own: events on one change nothing
on another. Task n of the run starts on replica n modulo their number, and each replica has its share of the places of a
closed loop. Other routers choose a replica for every request, so all replicas form one cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import simpy

from sqsim.agent.gate import GateKeeper
from sqsim.agent.task import AgentTask, Child
from sqsim.models.serving.tokens import Segments
from sqsim.record.schema import Rows
from sqsim.record.task_rows import Tables
from sqsim.scenario.agents import Agents
from sqsim.scenario.engine import Router
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.workload import Instance
from sqsim.simulation.arrivals import Stripe, start_load
from sqsim.simulation.clock import Clock
from sqsim.simulation.engine import Engine
from sqsim.simulation.network import Network
from sqsim.simulation.replicas import Replicas, horizon
from sqsim.simulation.runtime import Identity, SimulatedRuntime, SimulatedSignal, driven
from sqsim.simulation.server import Server
from sqsim.simulation.session import AgentSession
from sqsim.simulation.step_log import StepLog


@dataclass(slots=True)
class Happened:
    """Totals of all clusters of a run, in addition to their rows."""

    ended: int = 0
    out_of_range: Counter[str] = field(default_factory=Counter)
    pauses: int | None = None  # None: the policy has no gate
    paused_s: float = 0.0


class Cluster:
    """Replicas on one clock, and the tasks that they serve. Run it once."""

    def __init__(
        self,
        resolved: Resolved,
        agents: Agents,
        rows: Mapping[str, Rows],
        replicas: range,
        router: Router,
        numbers: Iterator[int],
        *,
        step_by_step: bool,
    ) -> None:
        self._resolved, self._agents, self._numbers = resolved, agents, numbers
        clock = self._clock = Clock()
        several = "replica" in rows["engine"].schema.names
        self._logs = [
            StepLog(resolved.cost, rows["engine"], hybrid=resolved.hybrid, replica=each if several else None)
            for each in replicas
        ]
        engines: list[Engine] = []
        for replica, log in zip(replicas, self._logs, strict=True):
            until = horizon(clock, engines, replica) if len(replicas) > 1 else None
            engine = Engine(
                clock,
                resolved.limits,
                resolved.cost,
                resolved.in_place,
                log,
                step_by_step=step_by_step,
                replica=replica,
                horizon=until,
            )
            engines.append(engine)
        if len(engines) == 1:
            self._last: Engine | Replicas = engines[0]
        else:
            assert router != "session_affinity", "each of its replicas is a cluster of its own"
            self._last = Replicas(engines, router)
        delays = resolved.profile.client
        self._server: Server = self._last if delays is None else Network(clock, self._last, delays)
        self._tables = Tables(**{name: rows[name] for name in ("tasks", "turns", "aux", "evictions")})
        self._segments, self._client = Segments(), agents.client()
        self._sessions = engines[0] if self._client.sessions else None
        assert self._sessions is None or len(engines) == 1, "sessions live on one engine"
        gate = agents.gate(resolved.limits.kv_capacity * len(engines))
        self._keeper = (
            None if gate is None else GateKeeper(gate, lambda: clock.now, lambda: SimulatedSignal(clock))
        )

    def run(self, stripe: Stripe, happened: Happened, tell: Callable[[int], None]) -> None:
        """Simulate until this stripe of the run's tasks has ended and nothing runs."""
        clock, scenario = self._clock, self._agents.scenario
        end_s = 0.0

        def start(root: Instance) -> simpy.Process:
            process = clock.process(driven(self._build(root, None)))
            assert process.callbacks is not None
            process.callbacks.append(count_end)
            return process

        def count_end(_: simpy.Event) -> None:
            nonlocal end_s
            happened.ended, end_s = happened.ended + 1, clock.now
            tell(happened.ended)

        start_load(clock, scenario.load, self._agents.roots, start, scenario.seed, stripe)
        clock.run_with(self._last)  # past the last task's end: cancelled requests still cost time
        for log in self._logs:
            log.finish(end_s)
            happened.out_of_range.update(log.out_of_range)
        if self._keeper is not None:
            happened.pauses = (happened.pauses or 0) + self._keeper.pauses
            happened.paused_s += self._keeper.paused_s

    def _build(self, instance: Instance, parent: str | None) -> AgentTask:
        resolved, clock, sessions = self._resolved, self._clock, self._sessions
        identity = Identity(instance.name, next(self._numbers), parent)
        runtime = SimulatedRuntime(
            clock,
            self._server,
            None if sessions is None else AgentSession(clock, sessions, f"s{identity.number}/"),
            self._client,
            self._keeper,
            self._tables,
            identity,
            instance.task,
        )
        loop = self._agents.loop(
            instance,
            self._segments,
            context_length=resolved.context_length,
            tail_tokens=resolved.tail_tokens,
            kv_usage=runtime.kv_usage,
        )
        agent = AgentTask(runtime, loop)
        for child in instance.children:
            spawn = child.task.spawn
            assert spawn is not None, "the trace checks give every sub-agent its spawn"
            agent.children.append(Child(self._build(child, instance.name), spawn.turn, spawn.join_turn))
        return agent
