# SPDX-License-Identifier: Apache-2.0
"""One agent's task: a coroutine that carries out the turn loop's actions, in simulated time or on a real server."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.agent.runtime import Reply, Running, Runtime
from sqsim.agent.turn_loop import Action, AuxThread, Await, Clear, Finish, RunMain, RunTools, Spawn, TurnLoop


class Child:
    """A sub-agent that its parent starts at one turn and awaits before another."""

    def __init__(self, task: AgentTask, turn: int, join_turn: int) -> None:
        self.task = task
        self.turn = turn
        self.join_turn = join_turn
        self.running: Running | None = None


class AgentTask:
    """One task: its loop, its sub-agents and its aux requests. Run it once."""

    def __init__(self, runtime: Runtime, loop: TurnLoop) -> None:
        self.children: list[Child] = []
        self._runtime = runtime
        self._loop = loop
        self._aux: list[tuple[AuxThread, Reply]] = []
        self._cancel: Reply | None = None
        self._start_s, self._end_s = 0.0, 0.0
        self._outcome: str | None = None

    async def run(self) -> None:
        """Run the task from its first boundary to its end, whatever the outcome."""
        runtime, loop = self._runtime, self._loop
        self._start_s = runtime.now
        if runtime.has_gate:
            await runtime.pass_gate(loop.context.tokens)
        outcome = await self._carry_out(loop.start())
        while outcome is None:
            if runtime.has_gate:
                await runtime.pass_gate(loop.context.tokens)
            outcome = await self._carry_out(loop.tools_returned(kv_kept=runtime.kv_kept))
        self._outcome, self._end_s = outcome, runtime.now
        await runtime.leave(self._cancel)
        self._over(self._start_s, self._end_s, outcome)

    def interrupted(self, reason: str) -> None:
        """Close the task when the run ended before it; the measurements up to now are kept."""
        if self._outcome is None:
            self._over(self._start_s, self._runtime.now, reason)
        else:
            self._over(self._start_s, self._end_s, self._outcome)

    def skip(self) -> None:
        """End a sub-agent that its parent never started, as `parent_ended`, and the sub-agent's own children."""
        self._over(self._runtime.now, self._runtime.now, "parent_ended")

    async def _carry_out(self, actions: Sequence[Action]) -> str | None:
        """Carry out the loop's actions up to the next boundary; returns the outcome when the task ends instead."""
        while actions:
            following: Sequence[Action] = ()
            for action in actions:
                if isinstance(action, RunMain):
                    following = await self._main(action)
                elif isinstance(action, RunTools):
                    await self._tools(action)
                elif isinstance(action, Clear):
                    self._clear(action)
                elif isinstance(action, Spawn):
                    self._spawn(action.aux)
                elif isinstance(action, Await):
                    following = await self._await(action.aux)
                else:
                    return self._finish(action)
            actions = following
        return None

    async def _main(self, step: RunMain) -> list[Action]:
        runtime, loop = self._runtime, self._loop
        reply = await runtime.main(
            step, forked=loop.announced_fork, hold_s=loop.hold_s, awaits_prefill=loop.awaits_prefill
        )
        try:
            if loop.awaits_prefill and await reply.first_token():
                for action in loop.main_prefilled():
                    assert isinstance(action, Spawn)
                    self._spawn(action.aux)
            failure = await reply.end()
        finally:
            served = reply.served
            runtime.notes.main(step, served)
        if failure is not None:
            return loop.main_failed(failure)
        return loop.main_ended(served.resident_tokens, fresh=reply.fresh)

    async def _await(self, aux: AuxThread) -> list[Action]:
        failure = await self._reply_to(aux).end()
        if failure is not None:
            return self._loop.main_failed(failure)
        self._aux_ended(aux)
        return self._loop.summarised(aux)

    async def _tools(self, action: RunTools) -> None:
        runtime = self._runtime
        for child in self.children:
            if child.turn == action.turn:
                child.running = runtime.start(child.task)
        await runtime.tools(action.tool_wait_s)
        for child in self.children:
            if child.running is not None and child.join_turn <= action.turn + 1:
                await child.running.join()
        runtime.notes.tools_returned(runtime.now)
        if action.user_wait_s:
            await runtime.sleep(action.user_wait_s)

    def _clear(self, action: Clear) -> None:
        if action.clearing.spans:
            self._runtime.drop(action.clearing.spans)
        self._runtime.notes.clear(action, self._runtime.now)

    def _spawn(self, aux: AuxThread) -> None:
        reply = self._runtime.aux(aux)
        self._aux.append((aux, reply))
        reply.when_ended(lambda: self._aux_ended(aux))

    def _aux_ended(self, aux: AuxThread) -> None:
        served = self._reply_to(aux).served
        if served.failure is None and not aux.finished:
            self._loop.aux_ended(aux, served.text)

    def _reply_to(self, aux: AuxThread) -> Reply:
        return next(reply for thread, reply in reversed(self._aux) if thread is aux)

    def _finish(self, action: Finish) -> str:
        if action.cancel is not None:
            self._cancel = self._reply_to(action.cancel)
        return action.outcome

    def _over(self, start_s: float, end_s: float, outcome: str) -> None:
        for child in self.children:
            if child.running is None:
                child.task.skip()
        self._runtime.over(start_s, end_s, outcome, self._aux)
