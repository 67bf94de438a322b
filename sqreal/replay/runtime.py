# SPDX-License-Identifier: Apache-2.0
"""Runtime of an agent on a real server: asyncio drives its task, and requests go to SGLang over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from sqreal.replay.run_context import Ended, Exchange, RunContext
from sqreal.replay.session import AgentSession
from sqsim.agent.runtime import Reply
from sqsim.agent.served import Served
from sqsim.agent.task import AgentTask
from sqsim.agent.turn_loop import AuxThread, RunMain
from sqsim.models.serving.tokens import concat
from sqsim.record.task_rows import TaskRows
from sqsim.scenario.agents import aux_rid, main_rid

_ABORT_AGAIN_S = 0.5


async def driven(task: AgentTask, run_context: RunContext) -> None:
    """Run a task; if another error ends it, its measurements are kept."""
    try:
        await task.run()
    except BaseException:
        task.interrupted(run_context.broken)
        raise


class HttpReply:
    """Exchange with the server, running in a task of its own."""

    def __init__(self, served: Served, rid: str) -> None:
        self.served, self.rid, self.fresh = served, rid, False
        self.started = asyncio.Event()
        self.sending: asyncio.Task[None]
        self._calls: list[Callable[[], None]] = []
        self._after: Callable[[], Coroutine[Any, Any, bool]] | None = None

    def begin(
        self,
        run_context: RunContext,
        send: Callable[[Callable[[], None]], Coroutine[Any, Any, object]],
        after: Callable[[], Coroutine[Any, Any, bool]] | None = None,
    ) -> None:
        """Start it. send: takes the function to call at the first token. after: awaited at the end; returns `fresh`."""
        self._after = after

        async def process() -> None:
            try:
                await send(self.started.set)
            finally:
                self.started.set()
            for call in self._calls:
                call()

        self.sending = run_context.group.create_task(process())

    async def first_token(self) -> bool:
        """Wait for the first token."""
        await self.started.wait()
        return self.served.first_token_s is not None

    async def end(self) -> str | None:
        """Wait for the end."""
        await self.sending
        if self._after is not None:
            self.fresh = await self._after()
        return self.served.failure

    def when_ended(self, call: Callable[[], None]) -> None:
        """Register a call for the end, which does not happen if the run breaks off before."""
        self._calls.append(call)


class _Process(NamedTuple):
    """Running sub-agent."""

    process: asyncio.Task[None]

    async def join(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait([self.process])


class RealRuntime:
    """One agent's `Runtime`. Its times are seconds since the run's start; its waits are multiplied by the run's scale."""

    def __init__(self, run_context: RunContext, name: str, number: int, parent: str | None) -> None:
        self.notes = TaskRows(name, parent)
        self._run_context, self._name, self._number, self._may_pause = run_context, name, number, parent is None
        self._session: AgentSession | None = run_context.session(number)
        self._aux: list[HttpReply] = []
        self._late: list[asyncio.Event] = []  # of aux threads that wait for main's drop

    @property
    def now(self) -> float:
        """Seconds since the run's start."""
        return self._run_context.now

    @property
    def kv_kept(self) -> bool:
        """Whether the session is open. A release of its KV by the server becomes known when the next turn has ended."""
        return self._session is None or self._session.is_open

    def kv_usage(self) -> float:
        """KV in use on the server, which is queried now."""
        return self._run_context.kv_usage()

    @property
    def has_gate(self) -> bool:
        """Whether the policy has a gate."""
        return self._run_context.gate is not None

    async def pass_gate(self, tokens: int) -> None:
        """Continue, or give up the session's KV and wait. Without sessions the tree keeps the KV while it has room."""
        keeper = self._run_context.gate
        assert keeper is not None, "there is no gate to pass"
        if not keeper.may_pass(self._name, tokens, may_pause=self._may_pause):
            if self._session is not None:
                await self._session.close()
            await keeper.wait(self._name)

    async def main(
        self,
        step: RunMain,
        *,
        forked: int | None,
        hold_s: float,
        awaits_prefill: bool,  # noqa: ARG002 - a server always reports its first token
    ) -> Reply:
        """Send a main step."""
        run_context, session = self._run_context, self._session
        input_ids, forced = run_context.ids.call(self._number, step.prompt, step.output)
        place = None
        if session is not None:
            place = await session.turn(
                len(input_ids),
                step.first_prompt_tokens,
                forked,
                restart=step.restart,
                content=concat(step.prompt, step.output),
                hold_s=hold_s * run_context.time_scale,
            )
        served = Served(run_context.now, len(input_ids), failure=run_context.broken)
        exchange = Exchange(
            run_context.rid(main_rid(self._number, step.turn)),
            step.prompt,
            len(forced),
            forced[-1],
            run_context.options.declares(step.output),
            served,
            place,
        )
        reply = HttpReply(served, exchange.rid)
        late, self._late = self._late, []

        async def send(started: Callable[[], None]) -> None:
            def prefilled() -> None:
                started()
                for each in late:
                    each.set()

            try:
                await run_context.send(exchange, input_ids, forced, prefilled)
            finally:
                for each in late:
                    each.set()

        reply.begin(run_context, send, lambda: self._ended(served))
        return reply

    def aux(self, thread: AuxThread) -> Reply:
        """Send an aux thread's request; after the main step's first token if that step drops spans."""
        run_context, session, live = self._run_context, self._session, thread.output is None
        input_ids, forced = run_context.ids.call(self._number, thread.prompt, thread.output or ())
        served = Served(run_context.now, len(input_ids), failure=run_context.broken)
        declared = run_context.options.aux_max_new_tokens
        exchange = Exchange(
            run_context.rid(aux_rid(self._number, thread.index)),
            thread.prompt,
            declared if live else len(forced),
            None if live else forced[-1],
            declared,
            served,
        )
        waits = None
        if session is not None and session.drops:
            waits = asyncio.Event()
            self._late.append(waits)

        async def send(started: Callable[[], None]) -> None:
            if waits is not None:
                await waits.wait()
            if session is not None:
                exchange.place = session.fork(thread.prompt, thread.fork_tokens)
            await run_context.send(exchange, input_ids, None if live else forced, started)

        reply = HttpReply(served, exchange.rid)
        self._aux.append(reply)
        reply.begin(run_context, send)
        return reply

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Request that spans are cut out of the session with its next turn."""
        if self._session is not None and self._run_context.options.in_place:
            self._session.drop(spans)

    def start(self, task: AgentTask) -> _Process:
        """Start a sub-agent."""
        return _Process(self._run_context.group.create_task(driven(task, self._run_context)))

    async def tools(self, wait_s: float) -> None:
        """Wait for tools; the previous turn told the server how long to hold the session."""
        await self._run_context.wait(wait_s)

    async def sleep(self, wait_s: float) -> None:
        """Wait for the user."""
        await self._run_context.wait(wait_s)

    async def leave(self, cancel: Reply | None) -> None:
        """End running requests, leave the gate, close the session."""
        if cancel is not None:
            assert isinstance(cancel, HttpReply)
            await self._abort(cancel)
        if self._run_context.gate is not None:
            self._run_context.gate.leave(self._name)
        if self._session is not None:
            await self._session.close()

    def over(self, start_s: float, end_s: float, outcome: str, aux: Sequence[tuple[AuxThread, Reply]]) -> None:
        """Store the notes for the run's end, where the step log completes them."""
        for thread, reply in aux:
            self.notes.aux(thread, reply.served)
        self._run_context.ended.append(Ended(self.notes, start_s, end_s, outcome))

    async def _ended(self, served: Served) -> bool:
        """Handle a main step's end: wait for its aux thread where the run requires it; returns whether it was `fresh`."""
        running = [each.sending for each in self._aux if not each.sending.done()]
        if self._run_context.await_aux and running:
            await asyncio.wait(running)
        session = self._session
        return (
            session is not None
            and served.failure is None
            and session.ended(
                served.prompt_tokens, served.output_tokens, served.cached_tokens, served.retractions
            )
        )

    async def _abort(self, reply: HttpReply) -> None:
        """Abort a request. An abort that overtakes its request is lost on the server, so it is sent again."""
        while not reply.sending.done():
            await self._run_context.client.abort(reply.rid)
            await asyncio.wait([reply.sending], timeout=_ABORT_AGAIN_S)
