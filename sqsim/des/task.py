"""One agent's process: drives the turn loop against the engine and writes down what happened."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import simpy

from sqsim.agent.turn_loop import Action, AuxThread, Clear, Finish, RunMain, RunTools, Spawn, TurnLoop
from sqsim.des.engine import Engine, Submission
from sqsim.models.request import Request
from sqsim.models.tokens import count
from sqsim.record import AUX, EVICTIONS, TASKS, TURNS, Rows

Events = Generator[simpy.Event, object, None]


@dataclass(slots=True)
class Tables:
    """The record's tables under construction, all but the engine's."""

    tasks: Rows = field(default_factory=lambda: Rows(TASKS))
    turns: Rows = field(default_factory=lambda: Rows(TURNS))
    aux: Rows = field(default_factory=lambda: Rows(AUX))
    evictions: Rows = field(default_factory=lambda: Rows(EVICTIONS))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What the agent's requests declare. `sessions`: one streaming session a task (cache `session`)."""

    sessions: bool
    in_place: bool
    max_new_tokens: int = 4096
    aux_max_new_tokens: int = 256


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
        engine: Engine,
        tables: Tables,
        options: ClientOptions,
        name: str,
        number: int,
        loop: TurnLoop,
        parent: str | None,
    ) -> None:
        self.name = name
        self.children: list[Child] = []
        self._env = env
        self._engine = engine
        self._tables = tables
        self._options = options
        self._number = number
        self._loop = loop
        self._parent = parent
        self._session = f"s{number}/" if options.sessions else None
        self._aux: list[tuple[AuxThread, Submission]] = []
        self._tool_turn: dict[str, object] | None = None
        self._peak = self._output = self._reads_main = self._reads_aux = self._turns = 0

    def process(self) -> Events:
        """From the first boundary to the end, however it comes."""
        start_s = self._env.now
        actions = self._loop.start()
        while True:
            outcome = yield from self._carry_out(actions)
            if outcome is not None:
                break
            actions = self._loop.tools_returned(kv_kept=self._kv_kept())
        self._close(start_s, outcome)

    def _kv_kept(self) -> bool:
        return self._session is None or self._engine.has_session(self._session)

    def _carry_out(self, actions: Iterable[Action]) -> Generator[simpy.Event, object, str | None]:
        """Do what the loop says up to the next boundary; the outcome when the task ends instead."""
        for action in actions:
            if isinstance(action, Clear):
                self._clear(action)
            elif isinstance(action, Spawn):
                self._spawn(action.aux)
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
        request = Request(
            rid=f"{self._number}/{step.turn}/",
            prompt=step.prompt,
            output=step.output,
            # Never less than the recording needs: what it said, it was allowed to say.
            max_new_tokens=max(self._options.max_new_tokens, count(step.output)),
            session=self._session,
            publish_tokens=step.first_prompt_tokens if self._session else None,
        )
        submission = self._engine.submit(request)
        self._peak = max(self._peak, request.n_in)
        yield submission.first_token | submission.done
        if submission.first_token.triggered:
            for action in self._loop.main_prefilled():
                assert isinstance(action, Spawn)
                self._spawn(action.aux)
        failure = submission.done.value if submission.done.triggered else (yield submission.done)
        self._turn_row(step, submission)
        if failure is not None:
            return self._loop.main_failed(str(failure))
        self._peak = max(self._peak, request.kv_tokens)
        return self._loop.main_ended(request.kv_tokens, fresh=self._session is not None and request.fresh)

    def _turn_row(self, step: RunMain, submission: Submission) -> None:
        request = submission.request
        decoded = max(0, request.n_out - 1)  # the first token comes out of the prefill
        self._reads_main += decoded * request.n_in + decoded * (decoded + 1) // 2
        self._output += request.n_out
        self._turns += 1
        self._flush_turn()
        self._tool_turn = {
            "task": self.name,
            "turn": step.turn,
            "submit_s": submission.submit_s,
            "admit_s": submission.admit_s,
            "first_token_s": submission.first_token_s,
            "end_s": submission.end_s,
            "tool_end_s": None,
            "prompt_tokens": request.n_in,
            "cached_tokens": request.cached_tokens,
            "computed_tokens": request.computed_tokens,
            "output_tokens": request.n_out,
            "resident_tokens_after": request.kv_tokens,
            "shift": step.shift,
            "retractions": request.retractions,
            "prefill_chunks": request.prefill_chunks,
        }

    def _flush_turn(self) -> None:
        if self._tool_turn is not None:
            self._tables.turns.append(**self._tool_turn)
            self._tool_turn = None

    def _tools(self, action: RunTools) -> Events:
        for child in self.children:
            if child.turn == action.turn:
                child.process = self._env.process(child.task.process())
        yield self._env.timeout(action.tool_wait_s)
        for child in self.children:
            if child.process is not None and child.join_turn <= action.turn + 1 and child.process.is_alive:
                yield child.process
        if self._tool_turn is not None:
            self._tool_turn["tool_end_s"] = self._env.now
        self._flush_turn()
        if action.user_wait_s:
            yield self._env.timeout(action.user_wait_s)

    def _clear(self, action: Clear) -> None:
        if self._options.in_place and self._session is not None and action.clearing.spans:
            self._engine.drop(self._session, action.clearing.spans)
        for eviction in action.clearing.evicted:
            self._tables.evictions.append(
                task=self.name,
                turn=action.turn,
                time_s=self._env.now,
                cursor=eviction.cursor,
                tokens=eviction.tokens,
                by=action.by,
                age_turns=action.turn - eviction.opened,
                last_use_turn=None,
                used_later=None,
            )

    def _spawn(self, aux: AuxThread) -> None:
        request = Request(
            rid=f"{self._number}/a{aux.index}/",
            prompt=aux.prompt,
            output=aux.output,
            max_new_tokens=self._options.aux_max_new_tokens,
            role="aux",
            session=self._session,
            fork_tokens=aux.fork_tokens if self._session is not None else None,
        )
        submission = self._engine.submit(request)
        self._aux.append((aux, submission))
        assert submission.done.callbacks is not None
        submission.done.callbacks.append(lambda event: self._aux_done(aux, event))

    def _aux_done(self, aux: AuxThread, event: simpy.Event) -> None:
        if event.value is None:
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
        self._flush_turn()
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
            self._aux_row(aux, submission)
        self._tables.tasks.append(
            task=self.name,
            start_s=start_s,
            end_s=end_s,
            outcome=outcome,
            turns=self._turns,
            output_tokens=self._output,
            peak_tokens=self._peak,
            kv_read_tokens_main=self._reads_main,
            kv_read_tokens_aux=self._reads_aux,
            parent=self._parent,
        )

    def skip(self) -> None:
        """The parent ended before it came to start this sub-agent: it ends too, by name, and so do its own."""
        self._close(self._env.now, "parent_ended")

    def _aux_row(self, aux: AuxThread, submission: Submission) -> None:
        request = submission.request
        decoded = max(0, request.n_out - 1)
        self._reads_aux += decoded * request.n_in + decoded * (decoded + 1) // 2
        finished = submission.end_s is not None and aux.finished
        self._tables.aux.append(
            task=self.name,
            spawn_turn=aux.turn,
            submit_s=submission.submit_s,
            first_token_s=submission.first_token_s,
            end_s=submission.end_s if finished else None,
            state=aux.state,
            fork_tokens=aux.fork_tokens,
            prompt_tokens=request.n_in,
            cached_tokens=request.cached_tokens,
            output_tokens=request.n_out,
            named=list(aux.decision.named) if finished else [],
            applied_turn=aux.applied_turn,
            text=None,
        )
