# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 without I/O: events in, actions out.

The simulated and the real task are two thin drivers of this one loop, so both follow the same algorithm by
construction. A driver calls `start()`, then one method an event, and carries out the returned actions in
their order. Methods and what may come back:

    start(), tools_returned()   Clear?, Spawn?, RunMain | Finish      (a boundary: law 9's order)
                                Clear?, Spawn, Await                  (a policy that has a summary written first)
    summarised()                Clear, RunMain | Finish               (the boundary goes on)
    main_prefilled()            Spawn?                                (aux_start: after_main_prefill)
    main_ended()                Clear?, RunTools | Finish
    aux_ended(), main_failed()  nothing, Finish                       (main_failed: a summary too)

States of an aux thread: spawned -> finished (`aux_ended`) -> applied at a boundary, or cancelled with its
task. Times belong to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqsim.agent.aux_thread import TRIGGER_TOKENS, read_decision
from sqsim.agent.context import Clearing, Context, Cursor
from sqsim.agent.guard import Guarded
from sqsim.models.serving.tokens import Segments, Tokens, concat, whole
from sqsim.policies.base import CursorView, Decision, Decisions, Policy, View, unknown_usage
from sqsim.trace.schema import Answer, Task, Turn

AuxState = Literal["applied", "late", "cancelled", "malformed"]

SUMMARY_PROMPT_TOKENS = 50
"""Tokens of the request for a summary, chat template included. Assumed."""

_HEADROOM = 2
"""SGLang leaves two tokens of the context unused (RULES.md, rule 13)."""


@dataclass(slots=True)
class AuxThread:
    """One auxiliary generation, from its spawn to its end.

    A live thread, written by the server's model, has no `output`, and no `decision` before it has ended.
    """

    index: int
    turn: int
    fork_tokens: int
    prompt: Tokens
    output: Tokens | None
    decision: Decision | None
    seen: frozenset[int]  # the cursors that were open at its fork
    finished: bool = False
    state: AuxState = "cancelled"
    applied_turn: int | None = None
    ignored: int = 0  # named cursors that it never saw, or that were closed when it was applied


class Clear(NamedTuple):
    """Clear these cursors before main step `turn`; `by` is the policy or the aux thread that named them."""

    turn: int
    clearing: Clearing
    by: str


class Spawn(NamedTuple):
    """Start this aux thread now."""

    aux: AuxThread


class Await(NamedTuple):
    """Wait for this newly spawned aux thread, which writes a summary; then call `summarised`."""

    aux: AuxThread


class RunMain(NamedTuple):
    """Run main step `turn`. `restart`: the history was rewritten, so its session cannot continue.

    `first_prompt_tokens`: tokens of the prompt (prefix and question) that every branch of the context shares.
    """

    turn: int
    prompt: Tokens
    output: Tokens
    shift: int
    restart: bool
    first_prompt_tokens: int
    prompt_tokens: int


class RunTools(NamedTuple):
    """Wait for the tools of `turn`, then for sub-agents that join before the next main step, then for the user."""

    turn: int
    tool_wait_s: float
    user_wait_s: float


class Finish(NamedTuple):
    """End the task as `completed`, or by the name of its failure. `cancel`: a living aux thread to abort."""

    outcome: str
    cancel: AuxThread | None


Action = Clear | Spawn | Await | RunMain | RunTools | Finish


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """Options of a task's replay: the scenario keys of the same names (SPEC.md)."""

    in_place: bool
    apply_at: Literal["boundary", "turn_end"] = "boundary"
    aux_start: Literal["after_main_prefill", "with_main"] = "after_main_prefill"
    context_length: int = 131072
    max_turns: int | None = None
    tool_wait_cap_s: float | None = None
    page_size: int = 1
    tail_tokens: int = 0
    trigger_tokens: int = TRIGGER_TOKENS


class TurnLoop:
    """One task's run through Algorithm 1. Read `context`, `turn`, `aux_threads` for records; change nothing.

    Without `decisions` aux threads are live: `aux_ended` brings the text that the model wrote.
    """

    def __init__(
        self,
        task: Task,
        policy: Policy,
        segments: Segments,
        options: LoopOptions,
        decisions: Decisions | None = None,
        kv_usage: Callable[[], float] = unknown_usage,
    ) -> None:
        self.task = task
        self.turn = 0
        self.aux_threads: list[AuxThread] = []
        self._policy = policy
        self._ask = Guarded(policy, decisions, task.task_id)
        self._kv_usage = kv_usage
        self._segments = segments
        self._options = options
        self._decisions = decisions
        self._alive: AuxThread | None = None
        self._due: AuxThread | None = None
        self._read: dict[int, CursorView] = {}
        self.context = Context(
            segments,
            task.prefix,
            task.question,
            in_place=options.in_place,
            page_size=options.page_size,
            tail_tokens=options.tail_tokens,
        )

    @property
    def step(self) -> Turn | Answer:
        """The recorded model call of the current turn."""
        if self.turn < len(self.task.turns):
            return self.task.turns[self.turn]
        assert self.task.answer is not None, "no step after the last one"
        return self.task.answer

    def start(self) -> list[Action]:
        """Begin the task: boundary 0."""
        return self._boundary() if self.task.steps else [self._finish("completed")]

    @property
    def hold_s(self) -> float:
        """Seconds after a turn for which the server must keep the task's idle session."""
        return self._ask.hold_s

    @property
    def awaits_prefill(self) -> bool:
        """Whether an aux thread starts with the first token of the current main step."""
        return self._due is not None

    @property
    def announced_fork(self) -> int | None:
        """Tokens of the current main step that a waiting aux thread will read; None when no thread waits."""
        return None if self._due is None else self._due.fork_tokens

    def main_prefilled(self) -> list[Action]:
        """Handle the first token of the current main step: an aux thread due at this boundary starts."""
        due, self._due = self._due, None
        return [Spawn(due)] if due else []

    def main_ended(self, kv_tokens: int, *, fresh: bool) -> list[Action]:
        """Handle the end of the current main step. `kv_tokens`: the KV it left; `fresh`: prefilled from position 0."""
        if fresh:
            self.context.rewritten()
        self.context.kv_tokens = kv_tokens
        step = self.step
        if not isinstance(step, Turn):
            return [self._finish("completed")]
        actions = list(self._apply_aux(self.turn + 1)) if self._options.apply_at == "turn_end" else []
        if self._options.max_turns is not None and self.turn + 1 >= self._options.max_turns:
            return [*actions, self._finish("turn_limit")]
        self.context.extend(self.turn, step, reasoning_kept=self.task.reasoning_kept)
        wait = step.tool_wait_s
        if self._options.tool_wait_cap_s is not None:
            wait = min(wait, self._options.tool_wait_cap_s)
        return [*actions, RunTools(self.turn, wait, step.user_wait_s)]

    def tools_returned(self, *, kv_kept: bool) -> list[Action]:
        """Handle the return of the turn's last tool: the next boundary. `kv_kept`: the server still holds the KV."""
        self.turn += 1
        if not kv_kept:
            self.context.rewritten()
        if self.turn >= self.task.steps:
            return [self._finish("completed")]
        return self._boundary()

    def aux_ended(self, aux: AuxThread, text: str | None = None) -> None:
        """Handle the end of an aux thread; its decision waits for the next boundary. `text`: the output of a live one."""
        assert (text is None) == (aux.output is not None), (
            "a live aux thread ends with a text, a scripted one without"
        )
        if text is not None:
            aux.decision = read_decision(text)
        aux.finished = True

    def main_failed(self, reason: str) -> list[Action]:
        """End the task, as the server refused or lost the main step or the summary before it."""
        return [self._finish(reason)]

    def _boundary(self) -> list[Action]:
        step, context = self.step, self.context
        restart = context.strip()
        if isinstance(step, Turn) and step.reset is not None:
            context.restart(step.reset)
            restart = True
        if restart:
            context.rewritten()
        actions: list[Action] = []
        if self._options.apply_at == "boundary":
            actions += self._apply_aux(self.turn)
        actions += self._clear(self._ask.evict(self._view), self._policy.name, self.turn)
        summary_tokens = self._ask.summarise(self._view) if self._alive is None else 0
        asks = context.tokens + context.shift + SUMMARY_PROMPT_TOKENS + summary_tokens + _HEADROOM
        if summary_tokens and asks <= self._options.context_length:
            aux = self._summary(summary_tokens)
            return [*actions, Spawn(aux), Await(aux)]
        return [*actions, *self._step(restart=restart)]

    def summarised(self, aux: AuxThread) -> list[Action]:
        """Replace the read part of the context by the finished summary, and run the main step on it."""
        assert aux is self._alive, "a summary is the only thread of its boundary"
        assert aux.finished
        self._alive = None
        aux.state, aux.applied_turn = "applied", self.turn
        assert aux.output is not None, "summaries are scripted"
        clearing = self.context.compact(aux.output, self.turn - 1)
        return [Clear(self.turn, clearing, self._policy.name), *self._step(restart=True)]

    def _step(self, *, restart: bool) -> list[Action]:
        """Finish the boundary: spawn an aux thread that is due, and run the main step."""
        step, context = self.step, self.context
        actions: list[Action] = []
        prompt, shift = context.prompt, context.shift
        prompt_tokens = context.tokens
        if prompt_tokens + shift + step.output_tokens + _HEADROOM > self._options.context_length:
            return [self._finish("context_limit")]
        if self._alive is None and self._ask.spawn_aux(self._view):
            aux = self._spawn()
            if self._options.aux_start == "with_main":
                actions.append(Spawn(aux))
            else:
                self._due = aux
        output = context.plan(step)
        first = context.first_prompt_tokens
        actions.append(RunMain(self.turn, prompt, output, shift, restart, first, prompt_tokens))
        return actions

    def _view(self) -> View:
        read = self._read
        cursors = tuple([read.get(c.cursor) or self._look(c) for c in self.context.cursors])
        return View(self.turn, self.context.tokens, cursors, self._kv_usage)

    def _look(self, cursor: Cursor) -> CursorView:
        read_turn = cursor.opened + 1
        view = CursorView(
            cursor.cursor,
            cursor.opened,
            cursor.tokens,
            read_turn if read_turn < self.turn else None,
            cursor.tool,
            cursor.arguments,
        )
        if view.read:
            self._read[cursor.cursor] = view  # the view of a read cursor no longer changes
        return view

    def _summary(self, tokens: int) -> AuxThread:
        """Start a thread that reads the whole context and writes a summary of `tokens` tokens."""
        read = [cursor.cursor for cursor in self._view().cursors if cursor.read]
        return self._start_aux(
            whole(self._segments.shared("summarise"), SUMMARY_PROMPT_TOKENS),
            whole(self._segments.fresh(), tokens),
            Decision(tuple(read)),
            frozenset(read),
        )

    def _spawn(self) -> AuxThread:
        index = len(self.aux_threads)
        cursors = [c.cursor for c in self.context.cursors]
        output = decision = None
        if self._decisions is not None:
            script = self._ask.decide(index, self.turn, cursors)
            output, decision = whole(self._segments.fresh(), script.output_tokens), script.decision
        trigger = whole(self._segments.shared("trigger"), self._options.trigger_tokens)
        return self._start_aux(trigger, output, decision, frozenset(cursors))

    def _start_aux(
        self, asks: Tokens, output: Tokens | None, decision: Decision | None, seen: frozenset[int]
    ) -> AuxThread:
        context = self.context
        prompt = concat(context.prompt, asks)
        aux = AuxThread(len(self.aux_threads), self.turn, context.tokens, prompt, output, decision, seen)
        self.aux_threads.append(aux)
        self._alive = aux
        return aux

    def _apply_aux(self, turn: int) -> list[Action]:
        """Clear the cursors that a finished thread named, and forget the thread (Algorithm 1, step 1)."""
        aux = self._alive
        if aux is None:
            return self._clear((), "waited", turn)
        if not aux.finished:
            return []
        self._alive = None
        decision = aux.decision
        assert decision is not None, "a thread that has ended has decided"
        aux.applied_turn = turn
        aux.state = "malformed" if decision.malformed else "applied" if turn == aux.turn + 1 else "late"
        there = aux.seen.intersection(c.cursor for c in self.context.cursors)
        named = [cursor for cursor in decision.named if cursor in there]
        aux.ignored = len(decision.named) - len(named)
        return self._clear(named, f"aux:{aux.index}", turn)

    def _clear(self, cursors: Sequence[int], by: str, turn: int) -> list[Action]:
        if self._alive is not None and self._options.in_place:
            return []  # a living thread reads this KV (SGLANG.md, "Aux fork"); a later boundary evicts waiting cursors
        clearing = self.context.evict(cursors)
        return [Clear(turn, clearing, by)] if clearing.evicted else []

    def _finish(self, outcome: str) -> Finish:
        living = (
            self._alive if self._alive and not self._alive.finished and self._alive is not self._due else None
        )
        return Finish(outcome, living)
