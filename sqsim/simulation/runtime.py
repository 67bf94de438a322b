# SPDX-License-Identifier: Apache-2.0
"""An agent's runtime in simulated time: SimPy drives its task, and the simulated server takes its requests."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import NamedTuple, cast

import simpy

from sqsim.agent.gate import GateKeeper
from sqsim.agent.runtime import Reply
from sqsim.agent.served import Served
from sqsim.agent.task import AgentTask
from sqsim.agent.turn_loop import AuxThread, RunMain
from sqsim.models.serving.radix import MatchHint
from sqsim.models.serving.request import Asked, Request
from sqsim.record.hindsight import Hindsight
from sqsim.record.task_rows import Tables, TaskRows
from sqsim.scenario.agents import ClientOptions, aux_rid, main_rid
from sqsim.simulation.server import Server, Submission
from sqsim.simulation.session import AgentSession
from sqsim.trace.schema import Task

Events = Generator[simpy.Event, object, None]


def driven(task: AgentTask) -> Events:
    """Return a task as a generator for SimPy, which calls only `send` and `throw`; a coroutine has both."""
    return cast("Events", task.run())


@types.coroutine
def until(event: simpy.Event) -> Generator[simpy.Event, object, object]:
    """Wait for a SimPy event and return its value."""
    return (yield event)


class SimulatedSignal:
    """A signal in simulated time that is set once."""

    def __init__(self, env: simpy.Environment) -> None:
        self._event = env.event()

    def set(self) -> None:
        """Set the signal."""
        self._event.succeed()

    async def wait(self) -> None:
        """Wait until the signal is set."""
        await until(self._event)


class SimulatedReply:
    """The reply to one submission."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission

    @property
    def served(self) -> Served:
        """The state of the request so far."""
        submission, request = self.submission, self.submission.request
        done = submission.done
        return Served(
            submit_s=submission.submit_s,
            prompt_tokens=request.n_in,
            admit_s=submission.admit_s,
            first_token_s=submission.first_token_s,
            end_s=submission.end_s,
            cached_tokens=request.cached_tokens,
            computed_tokens=request.computed_tokens,
            output_tokens=request.n_out,
            resident_tokens=request.kv_tokens,
            retractions=request.retractions,
            prefill_chunks=request.prefill_chunks,
            replica=submission.replica,
            failure=None if not done.triggered or done.value is None else str(done.value),
        )

    @property
    def fresh(self) -> bool:
        """Whether the server computed this session's turn from position 0."""
        return self.submission.request.asked.session is not None and self.submission.request.fresh

    async def first_token(self) -> bool:
        """Wait for the first token; `submit` must have been called with `tell_first_token`."""
        assert self.submission.first_token is not None, "submitted without tell_first_token"
        await until(self.submission.first_token)
        return self.submission.first_token_s is not None

    async def end(self) -> str | None:
        """Wait for the end; return the failure, or None."""
        done = self.submission.done
        failure = done.value if done.triggered else await until(done)
        return None if failure is None else str(failure)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call a function at the end."""
        callbacks = self.submission.done.callbacks
        assert callbacks is not None, "it has ended"
        callbacks.append(lambda _: call())


class SimulatedProcess:
    """A running sub-agent."""

    def __init__(self, process: simpy.Process) -> None:
        self._process = process

    async def join(self) -> None:
        """Wait until the sub-agent has ended."""
        if self._process.is_alive:
            await until(self._process)


class Identity(NamedTuple):
    """A task's name, its number in the order of starts, and the name of its parent."""

    name: str
    number: int
    parent: str | None


class SimulatedRuntime:
    """One agent's `Runtime` on the simulated server."""

    def __init__(
        self,
        env: simpy.Environment,
        server: Server,
        session: AgentSession | None,
        options: ClientOptions,
        gate: GateKeeper | None,
        tables: Tables,
        identity: Identity,
        task: Task,
    ) -> None:
        self.notes = TaskRows(identity.name, identity.parent)
        self._env, self._server, self._session = env, server, session
        self._options, self._gate, self._tables = options, gate, tables
        self._identity, self._task = identity, task
        self._main: Request | None = (
            None  # the last main request; its trail shows where this task is in the tree
        )
        self._hold_s = 0.0

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self._env.now

    @property
    def kv_kept(self) -> bool:
        """Whether the session holds KV; true without a session."""
        return self._session is None or self._session.has_kv

    def kv_usage(self) -> float:
        """Return the KV usage of the engine that would get the next request."""
        return self._server.kv_usage()

    @property
    def has_gate(self) -> bool:
        """Whether the policy has a gate."""
        return self._gate is not None

    async def pass_gate(self, tokens: int) -> None:
        """Pass the policy's gate, or free the session's KV and wait at it."""
        gate, identity = self._gate, self._identity
        assert gate is not None, "there is no gate to pass"
        if not gate.may_pass(identity.name, tokens, may_pause=identity.parent is None):
            if self._session is not None:
                self._session.close()
            await gate.wait(identity.name)

    async def main(self, step: RunMain, *, forked: int | None, hold_s: float, awaits_prefill: bool) -> Reply:
        """Submit a main step."""
        session = self._session
        if session is not None and step.restart:
            session.close()
        asked = Asked(
            rid=main_rid(self._identity.number, step.turn),
            prompt=step.prompt,
            output=step.output,
            max_new_tokens=self._options.declares(step.output),
            session=None if session is None else session.name,
            publish_tokens=None if session is None else step.first_prompt_tokens,
            forked=None if session is None else forked,
            n_in=step.prompt_tokens,
        )
        request = Request(asked, self._match_hint())
        self._main, self._hold_s = request, hold_s
        return SimulatedReply(self._server.submit(request, tell_first_token=awaits_prefill))

    def aux(self, thread: AuxThread) -> Reply:
        """Submit an aux thread."""
        assert thread.output is not None, "a simulation has no model, so its aux threads are scripted"
        session = self._session
        asked = Asked(
            rid=aux_rid(self._identity.number, thread.index),
            prompt=thread.prompt,
            output=thread.output,
            max_new_tokens=self._options.aux_max_new_tokens,
            role="aux",
            session=None if session is None else session.name,
            fork_tokens=None if session is None else thread.fork_tokens,
        )
        return SimulatedReply(self._server.submit(Request(asked, self._match_hint())))

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Clear spans of the session in place."""
        if self._session is not None and self._options.in_place:
            self._session.drop(spans)

    def start(self, task: AgentTask) -> SimulatedProcess:
        """Start a sub-agent."""
        return SimulatedProcess(self._env.process(driven(task)))

    def tools(self, wait_s: float) -> Awaitable[object]:
        """Pin the session as the policy asks, and wait for the tools."""
        if self._session is not None and self._hold_s:
            self._session.hold(self._hold_s)
        return until(self._env.timeout(wait_s))

    def sleep(self, wait_s: float) -> Awaitable[object]:
        """Wait for `wait_s` seconds."""
        return until(self._env.timeout(wait_s))

    async def leave(self, cancel: Reply | None) -> None:
        """Abort an aux thread, leave the gate, and close the session."""
        if cancel is not None:
            assert isinstance(cancel, SimulatedReply)
            self._server.cancel(cancel.submission)
        if self._gate is not None:
            self._gate.leave(self._identity.name)
        if self._session is not None:
            self._session.close()

    def over(self, start_s: float, end_s: float, outcome: str, aux: Sequence[tuple[AuxThread, Reply]]) -> None:
        """Write the task's rows, after the last step of a cancelled aux thread."""

        def write() -> None:
            for thread, reply in aux:
                self.notes.aux(thread, reply.served)
            self.notes.write(self._tables, start_s, end_s, outcome, Hindsight(self._task))

        for _, reply in aux:
            assert isinstance(reply, SimulatedReply)
            if not reply.submission.done.processed:
                reply.when_ended(write)
                return
        write()

    def _match_hint(self) -> MatchHint | None:
        return None if self._main is None else self._main.match_hint
