"""One agent's process: drives the turn loop against the engine and writes down what happened."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import simpy

from sqsim.agent.turn_loop import Action, AuxThread, Await, Clear, Finish, RunMain, RunTools, Spawn, TurnLoop
from sqsim.agents import ClientOptions, aux_rid, main_rid
from sqsim.des.engine import Engine, Submission
from sqsim.des.fleet import Fleet
from sqsim.des.gate import GateKeeper
from sqsim.des.wire import Wire
from sqsim.metrics import Hindsight
from sqsim.models.radix import Trail
from sqsim.models.request import Asked, Request
from sqsim.task_rows import Served, Tables, TaskRows

Events = Generator[simpy.Event, object, None]


class Child:
    """A sub-agent that is to be started at one turn of its parent and awaited before another."""

    def __init__(self, task: AgentTask, turn: int, join_turn: int) -> None:
        self.task = task
        self.turn = turn
        self.join_turn = join_turn
        self.process: simpy.Process | None = None


class AgentTask:
    """One task: its loop, its sub-agents, and its rows. Run `process()` once."""

    def __init__(
        self,
        env: simpy.Environment,
        engine: Engine | Fleet | Wire,
        tables: Tables,
        options: ClientOptions,
        name: str,
        number: int,
        loop: TurnLoop,
        parent: str | None,
        gate: GateKeeper | None = None,
    ) -> None:
        self.children: list[Child] = []
        self._name, self._parent, self._gate = name, parent, gate
        self._env = env
        self._engine = engine
        self._tables = tables
        self._options = options
        self._number = number
        self._loop = loop
        self._rows = TaskRows(name, parent)
        self._session = f"s{number}/" if options.sessions else None
        self._aux: list[tuple[AuxThread, Submission]] = []
        self._main_request: Request | None = None  # the last one; it knows where the tree met this task
        self._held = -1  # the turn behind which the session was last pinned

    def process(self) -> Events:
        """From the first boundary to the end, however it comes."""
        start_s = self._env.now
        yield from self._pass_gate()
        actions = self._loop.start()
        while True:
            outcome = yield from self._carry_out(actions)
            if outcome is not None:
                break
            yield from self._pass_gate()
            actions = self._loop.tools_returned(kv_kept=self._kv_kept())
        self._close(start_s, outcome)

    def _pass_gate(self) -> Events:
        """A boundary is near: where the policy pauses this agent, it gives up its KV and waits.

        A sub-agent never pauses: its parent holds on to its own KV until it is done.
        """
        gate = self._gate
        if gate is not None and not gate.may_pass(
            self._name, self._loop.context.tokens, may_pause=self._parent is None
        ):
            if self._session is not None:
                self._engine.close_session(self._session)
            yield from gate.wait(self._name)

    def _trail(self) -> Trail | None:
        return None if self._main_request is None else self._main_request.trail

    def _kv_kept(self) -> bool:
        return self._session is None or self._engine.has_session(self._session)

    def _carry_out(self, actions: Iterable[Action]) -> Generator[simpy.Event, object, str | None]:
        """Do what the loop says up to the next boundary; the outcome when the task ends instead."""
        for action in actions:
            if isinstance(action, Clear):
                self._clear(action)
            elif isinstance(action, Spawn):
                self._spawn(action.aux)
            elif isinstance(action, Await):
                return (yield from self._carry_out((yield from self._await(action.aux))))
            elif isinstance(action, RunMain):
                return (yield from self._carry_out((yield from self._main(action))))
            elif isinstance(action, RunTools):
                yield from self._tools(action)
            else:
                return self._finish(action)
        return None

    def _main(self, step: RunMain) -> Generator[simpy.Event, object, list[Action]]:
        if step.restart and self._session is not None:
            self._engine.close_session(self._session)
        asked = Asked(
            rid=main_rid(self._number, step.turn),
            prompt=step.prompt,
            output=step.output,
            max_new_tokens=self._options.declares(step.output),
            session=self._session,
            publish_tokens=step.first_prompt_tokens if self._session else None,
            forked=self._loop.announced_fork if self._session else None,
            n_in=step.prompt_tokens,
        )
        request = self._main_request = Request(asked, self._trail())
        submission = self._engine.submit(request, tell_first_token=self._loop.awaits_prefill)
        if submission.first_token is not None:
            yield submission.first_token
        if submission.first_token_s is not None:
            for action in self._loop.main_prefilled():
                assert isinstance(action, Spawn)
                self._spawn(action.aux)
        failure = submission.done.value if submission.done.triggered else (yield submission.done)
        self._rows.main(step, _served(submission))
        if failure is not None:
            return self._loop.main_failed(str(failure))
        return self._loop.main_ended(request.kv_tokens, fresh=self._session is not None and request.fresh)

    def _await(self, aux: AuxThread) -> Generator[simpy.Event, object, list[Action]]:
        submission = next(sent for thread, sent in self._aux if thread is aux)
        done = submission.done
        failure = done.value if done.triggered else (yield done)
        if failure is not None:
            return self._loop.main_failed(str(failure))
        if not aux.finished:
            self._loop.aux_ended(aux)
        return self._loop.summarised(aux)

    def _hold(self, turn: int) -> None:
        """Have the server keep the session for a while, as the policy asks."""
        session, hold_s = self._session, self._loop.hold_s
        if session is None or not hold_s:
            return
        self._engine.pin(session, pinned=True)

        def expire(_: simpy.Event) -> None:
            if self._held == turn:
                self._engine.pin(session, pinned=False)

        self._held = turn
        event = self._env.timeout(hold_s)
        assert event.callbacks is not None
        event.callbacks.append(expire)

    def _tools(self, action: RunTools) -> Events:
        self._hold(action.turn)
        for child in self.children:
            if child.turn == action.turn:
                child.process = self._env.process(child.task.process())
        yield self._env.timeout(action.tool_wait_s)
        for child in self.children:
            if child.process is not None and child.join_turn <= action.turn + 1 and child.process.is_alive:
                yield child.process
        self._rows.tools_returned(self._env.now)
        if action.user_wait_s:
            yield self._env.timeout(action.user_wait_s)

    def _clear(self, action: Clear) -> None:
        if self._options.in_place and self._session is not None and action.clearing.spans:
            self._engine.drop(self._session, action.clearing.spans)
        self._rows.clear(action, self._env.now)

    def _spawn(self, aux: AuxThread) -> None:
        assert aux.output is not None, "a simulation has no model, so its aux threads are scripted"
        asked = Asked(
            rid=aux_rid(self._number, aux.index),
            prompt=aux.prompt,
            output=aux.output,
            max_new_tokens=self._options.aux_max_new_tokens,
            role="aux",
            session=self._session,
            fork_tokens=aux.fork_tokens if self._session is not None else None,
        )
        submission = self._engine.submit(Request(asked, self._trail()))
        self._aux.append((aux, submission))
        assert submission.done.callbacks is not None
        submission.done.callbacks.append(lambda event: self._aux_done(aux, event))

    def _aux_done(self, aux: AuxThread, event: simpy.Event) -> None:
        if event.value is None and not aux.finished:
            self._loop.aux_ended(aux)

    def _finish(self, action: Finish) -> str:
        if action.cancel is not None:
            for aux, submission in self._aux:
                if aux is action.cancel:
                    self._engine.cancel(submission)
        return action.outcome

    def _close(self, start_s: float, outcome: str) -> None:
        """The task ends now. Its rows wait for a cancelled aux thread's last step, so that all it cost is counted."""
        end_s = self._env.now
        if self._gate is not None:
            self._gate.leave(self._name)
        if self._session is not None:
            self._engine.close_session(self._session)
        for child in self.children:
            if child.process is None:
                child.task.skip()
        for _, submission in self._aux:
            if (callbacks := submission.done.callbacks) is not None:
                callbacks.append(lambda _: self._write_rows(start_s, end_s, outcome))
                return
        self._write_rows(start_s, end_s, outcome)

    def _write_rows(self, start_s: float, end_s: float, outcome: str) -> None:
        for aux, submission in self._aux:
            self._rows.aux(aux, _served(submission))
        self._rows.write(self._tables, start_s, end_s, outcome, Hindsight(self._loop.task))

    def skip(self) -> None:
        """The parent ended before it came to start this sub-agent: it ends too, by name, and so do its own."""
        self._close(self._env.now, "parent_ended")


def _served(submission: Submission) -> Served:
    request = submission.request
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
        failure=None if submission.done.value is None else str(submission.done.value),
    )
