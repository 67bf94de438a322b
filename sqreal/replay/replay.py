# SPDX-License-Identifier: Apache-2.0
"""Run a scenario on a server and return a RunRecord, the counterpart of `sqsim.simulate`."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqreal.replay.accounting import Accounting, events
from sqreal.replay.interrupts import cancelling
from sqreal.replay.live_text import LiveText, live_text
from sqreal.replay.run_context import RunContext
from sqreal.replay.runtime import RealRuntime, driven
from sqreal.replay.schedule import await_idle, write_schedule
from sqreal.replay.token_ids import TokenIds
from sqreal.replay.warm_up import warm_up
from sqreal.server.client import Client
from sqreal.server.metrics import Read, cross_check
from sqreal.server.scenario_from import unmodelled
from sqreal.server.server import Server
from sqsim import __version__
from sqsim.agent.aux_thread import TRIGGER_TOKENS
from sqsim.agent.gate import GateKeeper
from sqsim.agent.task import AgentTask, Child
from sqsim.base.code_digest import code_digest
from sqsim.errors import InputError, RunError, ScenarioError
from sqsim.models.serving.tokens import Segments
from sqsim.record.hindsight import judge_evictions
from sqsim.record.schema import RunRecord
from sqsim.record.task_rows import Tables
from sqsim.scenario.agents import Agents
from sqsim.scenario.load import ClosedLoad
from sqsim.scenario.scenario import Scenario
from sqsim.scenario.workload import Instance, arrivals

Progress = Callable[[int, int], None]
"""Called when a task ends, with the number of ended tasks and of all tasks."""


class Replay:
    """One run of a scenario on a server. `run` once; then read `record`, and `write_schedule` if there is a step log.

    `step_log`: the file in which the server's plugin writes its steps. Without one, computed and resident tokens are
    those of requests that were never retracted, and the engine table is empty. `time_scale` multiplies every wait that
    is not the server's: tools, users, arrivals. `await_aux` makes main steps wait for the aux thread that runs with them,
    so that this machine's speed does not decide whether a decision comes in time: for the laws of token accounting, not
    for timing. A ScenarioError: the scenario cannot be run as it is.
    """

    def __init__(
        self,
        scenario: Scenario,
        server: Server,
        *,
        time_scale: float = 1.0,
        step_log: Path | None = None,
        await_aux: bool = False,
    ) -> None:
        _check_cache(scenario, server)
        self.error: RunError | None = None
        """The error that ended the run early; the record holds the measurements up to then."""
        self._scenario = scenario
        self._server = server
        self._time_scale = time_scale
        self._step_log = step_log
        self._await_aux = await_aux
        self._agents = Agents(scenario)
        self._resolved = server.info.resolved(scenario)
        self._limits = self._resolved.limits
        self._segments = Segments()
        self._live: LiveText | None = live_text(server) if self._agents.live else None
        self._trigger_tokens = TRIGGER_TOKENS
        if self._live is not None:
            self._segments.shared("trigger", self._live.trigger)
            self._trigger_tokens = len(self._live.trigger)
        self._ids = TokenIds(
            self._resolved.geometry.vocabulary,
            scenario.seed,
            self._segments.recorded,
            [self._segments.shared("trigger")],
        )
        self.record = RunRecord({})
        self.interrupted = False
        self._run_context: RunContext | None = None
        self._read: tuple[Read, Read] | None = (
            None  # the server's counters before the first task and after the last
        )
        self._metrics: dict[str, Any] = {}

    def run(self, progress: Progress | None = None) -> RunRecord:
        """Drive all tasks to their end. `status` in the record's run.json is incomplete where an error prevented that.

        A RunError before the first task starts (a server that does not force tokens, or does not answer) is raised.
        """
        if self._step_log is not None and not self._step_log.is_file():
            raise InputError(f"{self._step_log}: no such step log; give the server's SQREAL_STEP_LOG")
        began = time.perf_counter()
        run_context = asyncio.run(self._run(progress))
        self._run_context = run_context
        end_s = max([0.0, *(each.end_s for each in run_context.ended)])
        accounting = Accounting(self._limits.kv_capacity, self._limits.swa_capacity, run_context.t0_s)
        if self._step_log is not None:
            accounting.read(events(self._step_log, run_context.t0_s), end_s)
            for exchange in run_context.exchanges:
                accounting.fill(exchange.rid, exchange.served)
        if self._read is not None:
            self._metrics = cross_check(
                *self._read, [(each.served, each.answer) for each in run_context.exchanges]
            )
        tables = Tables()
        for each in run_context.ended:
            each.rows.write(tables, each.start_s, each.end_s, each.outcome)
        self.record = RunRecord(
            run=self._describe(run_context),
            timing={"wall_s": time.perf_counter() - began, "host": platform.platform()},
            tasks=tables.tasks.table(),
            turns=tables.turns.table(),
            aux=tables.aux.table(),
            evictions=judge_evictions(tables.evictions.table(), self._agents.by_name),
            engine=accounting.engine.table(),
        )
        return self.record

    @property
    def complete(self) -> bool:
        """Whether all tasks ended."""
        return self._run_context is not None and self.error is None and not self.interrupted

    @property
    def has_step_log(self) -> bool:
        return self._step_log is not None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests sent."""
        return (
            0
            if self._run_context is None
            else sum(each.served.prompt_tokens for each in self._run_context.exchanges)
        )

    def write_schedule(self, directory: Path) -> None:
        """Write the run as a recorded schedule, for `sqsim lockstep`. A RunError where the run is incomplete."""
        run_context = self._run_context
        if run_context is None or self._step_log is None or not self.complete:
            raise RunError("a schedule needs a complete run on a server with a step log")
        write_schedule(
            directory,
            log=self._step_log,
            server_info=self._server.info.raw,
            requests=[each.asked(self._ids) for each in run_context.exchanges],
            responses={
                each.rid: answered
                for each in run_context.exchanges
                if (answered := each.answered(run_context.t0_s)) is not None
            },
            t0=run_context.t0_s,
            context_length=self._limits.context_length,
            window=self._limits.swa_window,
        )

    async def _run(self, progress: Progress | None) -> RunContext:
        async with Client(self._server.url, self._server.failure) as client:
            await warm_up(client, self._limits, self._resolved.geometry.vocabulary)
            before = await client.metrics()
            run_context = RunContext(
                client,
                self._ids,
                self._limits,
                self._agents.client(),
                self._time_scale,
                live_text=self._live,
                await_aux=self._await_aux,
            )
            if (gate := self._agents.gate(self._limits.kv_capacity)) is not None:
                run_context.gate = GateKeeper(gate, lambda: run_context.now, asyncio.Event)
            with cancelling():
                try:
                    async with asyncio.TaskGroup() as run_context.group:
                        for process in self._load(run_context, progress):
                            run_context.group.create_task(process)
                    if self._step_log is not None:
                        await asyncio.to_thread(await_idle, self._step_log)
                    self._read = before, await client.metrics()
                except* RunError as errors:
                    self.error = _first(errors)
                except* asyncio.CancelledError:
                    self.interrupted = True
            return run_context

    def _load(self, run_context: RunContext, progress: Progress | None) -> Iterator[Coroutine[Any, Any, None]]:
        """Start the tasks by the scenario's load."""
        load, roots = self._scenario.load, self._agents.roots
        numbers = iter(range(10**12))
        ended = 0

        async def start(root: Instance) -> None:
            nonlocal ended
            await driven(self._build(run_context, root, None, numbers), run_context)
            ended += 1
            if progress is not None:
                progress(ended, len(roots))

        async def worker(queue: Iterator[Instance]) -> None:
            for root in queue:
                await start(root)

        async def arrival(at_s: float, root: Instance) -> None:
            await run_context.wait(at_s)
            await start(root)

        if isinstance(load, ClosedLoad):
            queue = iter(roots)
            return iter([worker(queue) for _ in range(min(load.concurrency, len(roots)))])
        return iter([arrival(at_s, root) for at_s, root in arrivals(load, roots, self._scenario.seed)])

    def _build(
        self, run_context: RunContext, instance: Instance, parent: str | None, numbers: Iterator[int]
    ) -> AgentTask:
        """Make a task with its sub-agents; numbered in the order in which tasks start, as in a simulation."""
        runtime = RealRuntime(run_context, instance.name, next(numbers), parent)
        loop = self._agents.loop(
            instance,
            self._segments,
            context_length=self._resolved.context_length,
            tail_tokens=self._resolved.tail_tokens,
            trigger_tokens=self._trigger_tokens,
            kv_usage=runtime.kv_usage,
        )
        agent = AgentTask(runtime, loop)
        for child in instance.children:
            spawn = child.task.spawn
            assert spawn is not None, "the trace checks give every sub-agent its spawn"
            task = self._build(run_context, child, instance.name, numbers)
            agent.children.append(Child(task, spawn.turn, spawn.join_turn))
        return agent

    def _describe(self, run_context: RunContext) -> dict[str, Any]:
        """Write run.json: the scenario and the server."""
        info, gate = self._server.info, run_context.gate
        told = info.keys()
        asked = {name: getattr(self._scenario.engine, name) for name in told}
        return {
            **self._agents.describe(),
            "kind": "real",
            "status": "complete" if self.complete else "incomplete",
            "ended_by": "interrupt" if self.interrupted else str(self.error) if self.error else None,
            "versions": {
                "sqsim": __version__,
                "code": code_digest("sqsim", "sqreal"),
                "sglang": info.version,
                "httpx": version("httpx"),
            },
            "kv_capacity": self._resolved.kv_capacity.described(),
            "context_length": self._resolved.context_length,
            "time_scale": self._time_scale,
            "await_aux": self._await_aux,
            "server": {
                "model": info.model,
                "device": info.device,
                "dtype": info.dtype,
                "kv_dtype": info.kv_dtype,
                "load_format": info.load_format,
                "tensor_parallel": info.tensor_parallel,
                "attention_backend": info.raw.get("attention_backend"),
                "step_log": self._step_log is not None,
            },
            "unlike_the_scenario": {
                f"engine.{name}": {"scenario": asked[name], "server": value}
                for name, value in told.items()
                if asked[name] is not None and asked[name] != value
            },
            "not_modelled": unmodelled(info),
            "live": None
            if self._live is None
            else {
                "reader": self._live.reader,
                "trigger_tokens": self._trigger_tokens,
                "derived_segments": self._ids.derived,
            },
            "server_metrics": self._metrics,
            "refused": run_context.refused,
            "replaced_token_ids": self._ids.replaced,
            "out_of_range": {},
            **({} if gate is None else {"paused": {"times": gate.pauses, "s": gate.paused_s}}),
        }


def replay(
    scenario: Scenario,
    server: Server,
    *,
    time_scale: float = 1.0,
    step_log: Path | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Run a scenario on a server; see `Replay`. Raise the error that ended it early."""
    run = Replay(scenario, server, time_scale=time_scale, step_log=step_log)
    record = run.run(progress)
    if run.error is not None:
        raise run.error
    return record


def _check_cache(scenario: Scenario, server: Server) -> None:
    """Raise a ScenarioError where the server lacks the scenario's cache."""
    if scenario.engine.cache != "session":
        return
    if not server.info.in_place:
        raise ScenarioError(
            "engine.cache: session needs a server whose plugin has sessions; start one with "
            "`sqreal serve MODEL --cache session`, or set engine.cache: radix (and policy.after_eviction: reprefill)"
        )
    if scenario.apply == "turn_end":
        raise ScenarioError(
            "apply: turn_end is only simulated with engine.cache: session; on a server what is dropped goes with the "
            "next turn: set apply: boundary"
        )


def _first(errors: BaseExceptionGroup[Any]) -> RunError:
    """Find the first of the errors that ended a run; the others follow from it."""
    found = errors.exceptions[0]
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RunError)
    return found
