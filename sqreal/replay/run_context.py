# SPDX-License-Identifier: Apache-2.0
"""Run context that all agents of a real run share: server, clock, and the requests and answers so far."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqreal.errors import ServerError
from sqreal.replay.live_text import LiveText
from sqreal.replay.session import AgentSession, Place
from sqreal.replay.token_ids import TokenIds
from sqreal.server.client import Call, Client, Generation, RefusedError
from sqsim.agent.gate import GateKeeper
from sqsim.agent.served import Served
from sqsim.errors import RunError
from sqsim.models.serving.limits import Limits
from sqsim.models.serving.tokens import Tokens
from sqsim.record.task_rows import TaskRows
from sqsim.scenario.agents import ClientOptions

NEVER_FITS = "kv_capacity"
"""Failure of a request that the pool can never hold; the simulation uses the same name."""


_UNUSED = 2
"""Tokens of the context that SGLang leaves unused (RULES.md, rule 13)."""
_ANSWERED = ("prompt_tokens", "cached_tokens", "completion_tokens", "num_retractions", "finish_reason")


class FaithError(RunError):
    """The server's output differs from the recording."""


@dataclass(slots=True)
class Exchange:
    """Request of the run and its answer, from which the recorded schedule is made.

    The length and the last token of a live one are unknown until it ends: `n_out` is its limit, `stop` None.
    """

    rid: str
    prompt: Tokens
    n_out: int
    stop: int | None
    max_new_tokens: int
    served: Served
    place: Place | None = None  # in its session, where it has one
    answer: Generation | None = None

    def asked(self, ids: TokenIds) -> dict[str, Any]:
        """Its entry in a recorded schedule's workload.json."""
        return {
            "rid": self.rid,
            "input_ids": ids.ids(self.prompt),
            "n_in": self.served.prompt_tokens,
            "n_out": self.n_out,
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": False,
            "stop_token_ids": [] if self.stop is None else [self.stop],
            "session": None if self.place is None else self.place.session,
            **({} if self.place is None else self._placed(self.place)),
        }

    @staticmethod
    def _placed(place: Place) -> dict[str, Any]:
        return {name: getattr(place, name) for name in ("publish_tokens", "forked", "fork_tokens")}

    def answered(self, t0_s: float) -> dict[str, Any] | None:
        """Its entry in responses.json; None where no answer came."""
        if self.answer is None:
            return None
        meta = self.answer.meta
        return {
            "t_submit": round(self.answer.submit_s - t0_s, 6),
            "t_done": round(self.answer.end_s - t0_s, 6),
            "output_ids": self.answer.output_ids,
            **{name: meta[name] for name in _ANSWERED if name in meta},
        }


@dataclass(slots=True)
class Ended:
    """Ended task, whose rows wait for the step log."""

    rows: TaskRows
    start_s: float
    end_s: float
    outcome: str


@dataclass(slots=True)
class RunContext:
    """Context that all tasks of a run share. Times are seconds since `t0_s`, on the monotonic clock."""

    client: Client
    ids: TokenIds
    limits: Limits
    options: ClientOptions
    time_scale: float
    live_text: LiveText | None = None  # where aux threads are live
    group: asyncio.TaskGroup = field(init=False)
    t0_s: float = field(default_factory=time.monotonic)
    exchanges: list[Exchange] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: str = "interrupted"
    """Errors of the tasks that did not end by themselves."""
    await_aux: bool = False
    """Whether a main step waits for the aux thread that runs with it."""
    gate: GateKeeper | None = None
    """Gate that the agents pass at their boundaries, where the policy pauses some."""
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def now(self) -> float:
        return time.monotonic() - self.t0_s

    def rid(self, name: str) -> str:
        """Name a request uniquely among all runs on this server.

        SGLang aborts a streamed request by its id once more, two seconds after its end (tokenizer_manager.py,
        create_abort_task): that would end the same request of a run that follows at once.
        """
        return f"{self.run_id}/{name}"

    def session(self, number: int) -> AgentSession | None:
        """Make the session of task `number`, where the run has sessions."""
        return AgentSession(self.client, self.rid(f"s{number}/")) if self.options.sessions else None

    def kv_usage(self) -> float:
        """Return the share (0 to 1) of the server's KV slots that are neither free nor evictable."""
        return self.client.kv_usage()

    async def wait(self, seconds: float) -> None:
        """Wait for tools, users or arrivals, scaled by `time_scale`."""
        await asyncio.sleep(seconds * self.time_scale)

    async def send(
        self,
        exchange: Exchange,
        input_ids: list[int],
        forced: list[int] | None,
        started: Callable[[], None] | None = None,
    ) -> str | None:
        """Send a request and note its answer; returns None, or the name of its failure.

        `forced` None: a live one, whose text is noted too.
        """
        served = exchange.served

        def first_token(at_s: float) -> None:
            served.first_token_s = at_s - self.t0_s
            if started is not None:
                started()

        if (1 if forced is None else len(forced)) > self.limits.room(len(input_ids)):
            served.end_s, served.failure = served.submit_s, NEVER_FITS
            return NEVER_FITS
        # Over HTTP SGLang refuses what its scheduler would only cap (rule 13), so an agent declares what its context allows.
        exchange.max_new_tokens = min(
            exchange.max_new_tokens, self.limits.context_length - _UNUSED - len(input_ids)
        )
        self.exchanges.append(exchange)
        call = _call(exchange, input_ids, forced)
        served.failure = self.broken  # unless it ends
        try:
            answer = await self.client.generate(call, first_token)
        except ServerError:
            served.failure = self.broken = "server_lost"
            raise
        except RefusedError as error:
            served.end_s, served.failure = self.now, "refused"
            self.refused.append(str(error))
            return served.failure
        exchange.answer = answer
        note(served, answer, self.t0_s)
        if forced is None:
            assert self.live_text is not None, "a live thread needs a decoder"
            served.text = self.live_text.read(answer) if answer.output_ids else ""
            if answer.finish != "abort":
                exchange.n_out = len(answer.output_ids)
                exchange.stop = answer.output_ids[-1] if answer.finish == "stop" else None
        try:
            check(call, answer)
        except FaithError:
            served.failure = self.broken = "unfaithful"
            raise
        return served.failure


def _call(exchange: Exchange, input_ids: list[int], forced: list[int] | None) -> Call:
    """Make the call: for a session's turn, only the tokens that the session lacks."""
    place = exchange.place
    if place is None:
        return Call(exchange.rid, input_ids, forced, exchange.max_new_tokens)
    return Call(
        exchange.rid,
        input_ids[place.held :],
        forced,
        exchange.max_new_tokens,
        session=place.turn_of,
        held=place.held,
        asks=place.asks,
    )


def note(served: Served, answer: Generation, t0_s: float) -> None:
    """Note the answer's counts.

    Computed and resident tokens are those of a request that was never retracted and whose last token no decode step
    followed; a step log, where there is one, has the exact counts (`Accounting.fill`).
    """
    meta = answer.meta
    served.submit_s, served.end_s = answer.submit_s - t0_s, answer.end_s - t0_s
    served.output_tokens = len(answer.output_ids)
    # One with output but without counts was aborted in the queue, so at least one retraction had put it back there.
    served.retractions = meta.get("num_retractions", min(served.output_tokens, 1))
    if served.output_tokens:  # one that was aborted in the queue before it ran has no more counts
        told = {**answer.first_meta, **meta}
        served.prompt_tokens, served.cached_tokens = told["prompt_tokens"], told["cached_tokens"]
        served.computed_tokens = served.prompt_tokens - served.cached_tokens
        served.prefill_chunks = 1
        served.resident_tokens = served.prompt_tokens + served.output_tokens - 1
    served.failure = None
    if answer.finish == "abort":
        reason = str(meta["finish_reason"].get("message", ""))
        served.failure = "out_of_memory" if "memory" in reason.lower() else "abort"


def check(call: Call, answer: Generation) -> None:
    """Compare the output with the forced tokens, if any; an aborted one with their beginning."""
    if call.forced is None:
        return
    said, due = answer.output_ids, call.forced
    if answer.finish == "abort":
        due = due[: len(said)]
    if said != due:
        at = next(
            (n for n, (a, b) in enumerate(zip(said, due, strict=False)) if a != b), min(len(said), len(due))
        )
        problem = (
            f"request {call.rid}: output token {at} is {said[at] if at < len(said) else 'missing'}, "
            f"recorded is {due[at] if at < len(due) else 'none'}"
        )
        if answer.finish == "abort":
            raise FaithError(f"{problem}; the server ended it: {answer.meta['finish_reason'].get('message')}")
        raise FaithError(
            f"{problem}; does the server run with the sqreal plugin and SQREAL_FORCE_TOKENS=1? `sqreal serve` starts one that does"
        )
