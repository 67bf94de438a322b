"""One agent on a real server: drives the turn loop with asyncio and notes what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sqreal.stage import Ended, Exchange, Stage
from sqsim.agent.turn_loop import Action, AuxThread, Await, Clear, Finish, RunMain, RunTools, Spawn, TurnLoop
from sqsim.agents import aux_rid, main_rid
from sqsim.task_rows import Served, TaskRows

_ABORT_AGAIN_S = 0.5


class Child:
    """A sub-agent that is to be started at one turn of its parent and awaited before another."""

    def __init__(self, task: AgentTask, turn: int, join_turn: int) -> None:
        self.task = task
        self.turn = turn
        self.join_turn = join_turn
        self.process: asyncio.Task[None] | None = None


class AgentTask:
    """One task: its loop, its sub-agents, and its notes. Run `process()` once."""

    def __init__(self, stage: Stage, name: str, number: int, loop: TurnLoop, parent: str | None) -> None:
        self.children: list[Child] = []
        self._stage = stage
        self._number = number
        self._loop = loop
        self._rows = TaskRows(name, parent)
        self._aux: list[tuple[AuxThread, Served, asyncio.Task[None]]] = []
        self._over = False
        self._session = stage.session(number)
        self._late: AuxThread | None = None  # an aux thread that has to wait for main to drop something

    async def process(self) -> None:
        """From the first boundary to the end, however it comes; what was noted until then is kept."""
        stage = self._stage
        start_s, end_s, outcome = stage.now, None, None
        try:
            actions = self._loop.start()
            while (outcome := await self._carry_out(actions)) is None:
                actions = self._loop.tools_returned(kv_kept=True)
            end_s = stage.now
            await self._cancelled_aux()
            if self._session is not None:
                await self._session.close()
        finally:
            self._close(start_s, stage.now if end_s is None else end_s, outcome or stage.broken)

    async def _carry_out(self, actions: Iterable[Action]) -> str | None:
        """Do what the loop says up to the next boundary; the outcome when the task ends instead."""
        for action in actions:
            if isinstance(action, Clear):
                self._rows.clear(action, self._stage.now)
                if self._session is not None:
                    self._session.drop(action.clearing.spans)
            elif isinstance(action, Spawn):
                if self._session is not None and self._session.drops:
                    self._late = action.aux
                else:
                    self._spawn(action.aux)
            elif isinstance(action, RunMain):
                return await self._carry_out(await self._main(action))
            elif isinstance(action, RunTools):
                await self._tools(action)
            else:
                assert not isinstance(action, Await), "policies that write summaries are refused before a run"
                return self._finish(action)
        return None

    async def _main(self, step: RunMain) -> list[Action]:
        stage, session = self._stage, self._session
        input_ids, forced = stage.ids.call(self._number, step.prompt, step.output)
        place = None
        if session is not None:
            forked = self._loop.announced_fork
            place = await session.turn(len(input_ids), step.first_prompt_tokens, forked, restart=step.restart)
        served = Served(stage.now, len(input_ids))
        self._rows.main(step, served)
        exchange = Exchange(
            stage.rid(main_rid(self._number, step.turn)),
            step.prompt,
            len(forced),
            forced[-1],
            stage.options.declares(step.output),
            served,
            place,
        )
        failure = await stage.send(exchange, input_ids, forced, self._prefilled)
        if stage.await_aux and (running := [process for _, _, process in self._aux if not process.done()]):
            await asyncio.wait(running)
        if failure is not None:
            return self._loop.main_failed(failure)
        fresh = session is not None and session.ended(
            served.prompt_tokens, served.output_tokens, served.cached_tokens, served.retractions
        )
        return self._loop.main_ended(served.resident_tokens, fresh=fresh)

    def _prefilled(self) -> None:
        if self._late is not None:
            late, self._late = self._late, None
            self._spawn(late)
        for action in self._loop.main_prefilled():
            assert isinstance(action, Spawn)
            self._spawn(action.aux)

    async def _tools(self, action: RunTools) -> None:
        stage = self._stage
        for child in self.children:
            if child.turn == action.turn:
                child.process = stage.group.create_task(child.task.process())
        await stage.wait(action.tool_wait_s)
        for child in self.children:
            if child.process is not None and child.join_turn <= action.turn + 1:
                await asyncio.wait([child.process])
        self._rows.tools_returned(stage.now)
        await stage.wait(action.user_wait_s)

    def _spawn(self, aux: AuxThread) -> None:
        stage, live = self._stage, aux.output is None
        input_ids, forced = stage.ids.call(self._number, aux.prompt, aux.output or ())
        served = Served(stage.now, len(input_ids))
        declared = stage.options.aux_max_new_tokens
        exchange = Exchange(
            stage.rid(aux_rid(self._number, aux.index)),
            aux.prompt,
            declared if live else len(forced),
            None if live else forced[-1],
            declared,
            served,
            None if self._session is None else self._session.fork(aux.fork_tokens),
        )

        async def process() -> None:
            failure = await stage.send(exchange, input_ids, None if live else forced)
            if failure is None and not self._over:
                self._loop.aux_ended(aux, served.text)

        self._aux.append((aux, served, stage.group.create_task(process())))

    def _finish(self, action: Finish) -> str:
        self._over = True
        return action.outcome

    async def _cancelled_aux(self) -> None:
        """End what still runs. An abort that overtakes its request is lost on the server, so it is said again."""
        for aux, _, process in self._aux:
            while not process.done():
                await self._stage.client.abort(self._stage.rid(aux_rid(self._number, aux.index)))
                await asyncio.wait([process], timeout=_ABORT_AGAIN_S)

    def _close(self, start_s: float, end_s: float, outcome: str) -> None:
        for child in self.children:
            if child.process is None:
                child.task.skip()
        for aux, served, _ in self._aux:
            self._rows.aux(aux, served)
        self._stage.ended.append(Ended(self._rows, start_s, end_s, outcome))

    def skip(self) -> None:
        """The parent ended before it came to start this sub-agent: it ends too, by name, and so do its own."""
        self._close(self._stage.now, self._stage.now, "parent_ended")
