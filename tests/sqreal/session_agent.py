# SPDX-License-Identifier: Apache-2.0
"""A client that drives sessions through schedules of turns, drops, forks and aborts, and holds every answer against a mirror."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqreal.plugin.history import History, Span, merged, whole_pages
from sqreal.server.client import Call, Client, Generation
from tests.sqreal.mirror import NEVER, Mirror
from tests.sqreal.served import Served


class ScoredCall(Call):
    """A request whose answer says how likely the model held each of its tokens."""

    def body(self) -> dict[str, Any]:
        return {**Call.body(self), "return_logprob": True}


@dataclass(frozen=True)
class Step:
    """One turn of a schedule; fractions choose among what there is then."""

    new: int
    out: int
    drop: tuple[tuple[float, float], ...] = ()
    fork: str | None = None  # when it is sent: with the turn, behind its "first" token, or two windows "late"
    announced: bool = True  # does the turn say that a fork will follow?
    fork_out: int = 4
    abort: bool = False
    squeeze: bool = False  # before it, a request comes that idle sessions have to make room for


class Agent:
    """Drives one session through a schedule and holds every answer against its mirror."""

    def __init__(self, served: Served, client: Client, seed: int, *, squeezed: bool) -> None:
        self.served, self.client, self.seed = served, client, seed
        self.session = served.name()
        self.squeezed = squeezed  # may the row be lost at any time?
        self.done = Counter()
        self._begin()

    def _begin(self) -> None:
        self.mirror, self.history = Mirror(self.served.model), History()
        self.first = self.kv = 0  # tokens of the first prompt, tokens with KV
        self.waiting: list[Span] = []  # spans that were to be dropped and are still there

    async def run(self, steps: list[Step]) -> Counter:
        await self.client.open_session(self.session)
        for number, step in enumerate(steps):
            await self.turn(step, number)
        await self.client.close_session(self.session)
        return self.done

    def ids(self, number: int, length: int) -> list[int]:
        draw = random.Random(f"{self.seed} {number}")
        return [draw.randint(3, 511) for _ in range(length)]

    def choose(self, fractions) -> list[Span]:
        """Spans of history positions behind the first prompt that are there, disjoint, with KV."""
        found: list[Span] = []
        for at, share in fractions:
            taken = [*self.history.gone, *self.waiting, *found]
            free = [
                place
                for place in range(self.first, len(self.mirror.told) - 1)
                if not any(span.start <= place < span.stop for span in taken)
            ]
            if free:
                begin = free[int(at * (len(free) - 1))]
                end = begin + 1
                while end in free and end - begin < 2 + share * 60:
                    end += 1
                found.append(Span(begin, end))
        return sorted(found)

    def ready(self) -> list[Span]:
        """Take those that wait and can go: a window of KV lies behind them, or there is no KV at all."""
        tail = self.served.model.window
        found = [
            span for span in self.waiting if not self.kv or self.history.resident(span).stop + tail <= self.kv
        ]
        self.waiting = [span for span in self.waiting if span not in found]
        return found

    def drop(self, spans: list[Span]) -> None:
        """As the server has to: whole pages inside each span."""
        pages = [whole_pages(self.history.resident(span), self.served.page) for span in spans]
        for resident in reversed(merged([each for each in pages if each is not None])):
            self.mirror.drop(*self.history.told(resident))
            self.history.drop(resident)
            if self.kv:
                self.kv -= resident.tokens
            self.done["dropped"] += resident.tokens

    async def turn(self, step: Step, number: int) -> None:
        if step.squeeze:
            filler = self.ids(number + 1000, self.served.pool - 120)
            await self.client.generate(Call(self.served.name(), filler, None, 2, ignore_eos=True))
        spans = self.choose(step.drop) if self.first else []
        self.waiting += spans
        ready = self.ready()
        self.done["deferred"] += len(set(spans) - set(ready))
        self.drop(ready)
        if ready and not self.kv:
            self.mirror.lost()  # there is no row to be cut: it is computed without them, from position 0
        new, rid = self.ids(number, step.new), self.served.name()
        # Where the row may be lost, what waits may go or not: a fork could not know what it has to repeat.
        forks = bool(step.fork) and not (self.squeezed and self.waiting)
        asks: dict[str, Any] = {"sqreal_drop": [list(span) for span in spans]} if spans else {}
        if forks and step.announced:
            asks["sqreal_forked"] = len(self.mirror.ids) + len(new)
        call = self.call(rid, new, step.out, number, session=self.session, asks=asks)
        begun = asyncio.Event()
        main = asyncio.create_task(self.client.generate(call, lambda _: begun.set()))
        said = asyncio.create_task(begun.wait())
        if step.fork == "first" or step.abort or (forks and ready):  # before the drop a fork would not fit
            await asyncio.wait([main, said], return_when=asyncio.FIRST_COMPLETED)
        if step.fork == "late":
            await self.decoded(rid, len(self.mirror.ids) + len(new) + 2 * self.served.model.window)
        fork = self.fork(step, number, [*self.mirror.ids, *new]) if forks else None
        if step.abort:
            await self.client.abort(rid)
        answer = await main
        said.cancel()
        forked = None if fork is None else await fork
        if (
            answer.finish == "abort"
        ):  # the turn is forgotten, what was dropped before it is not; the row is lost
            before = self.mirror
            if not self.first:
                self._begin()
            if forked is not None:
                self.check_fork(forked, before, new)
            self.mirror.lost()
            self.kv = 0
            self.done["aborted"] += 1
            return
        if self.squeezed and answer.meta["prompt_tokens"] < len(self.mirror.resident) + len(new):
            self.kv = 0  # the row was lost before the turn came, so nothing had to wait
            self.drop(self.ready())
            self.mirror.lost()
            self.done["released"] += 1
        self.mirror.tell(new)
        prompt = len(self.mirror.resident)
        cached = answer.meta["cached_tokens"]
        assert answer.meta["prompt_tokens"] == prompt
        if not self.kv:  # there is no row: the tree may have the first prompt
            assert cached <= (self.first or len(new))
        elif cached != self.kv:
            assert cached <= self.first, "neither all of the row is there nor none"
            assert self.squeezed, "the row was lost for no reason"
            self.mirror.lost()
            self.done["released"] += 1
        self.mirror.computed(cached)
        if forked is not None:
            self.check_fork(forked, self.mirror, [])
        self.mirror.tell(answer.output_ids)
        self.hold(answer, [self.mirror], "cut" if self.history.gone else "whole")
        self.first = self.first or len(new)
        self.kv = prompt + len(answer.output_ids) - 1
        if self.served.keeps_last:
            kept = await self.served.kept(self.session, rid)
            assert kept - self.kv in {0, 1}
            self.kv = kept
        self.mirror.ended(self.kv)
        self.done["turns"] += 1

    async def decoded(self, rid: str, tokens: int) -> None:
        """Wait until a request has so many tokens, its prompt among them; the step log tells."""
        while True:
            lines = self.served.log.read_text().splitlines()[-50:]
            events = [json.loads(line) for line in lines if line.endswith("}") and rid in line]
            rows = [row for event in events if event["ev"] == "step" for row in event["reqs"]]
            if any(row[0] == rid and row[3] >= tokens for row in rows):
                return
            await asyncio.sleep(0.1)

    def fork(self, step: Step, number: int, ids: list[int]) -> asyncio.Task:
        """Send a fork of all that is there now; what it is told goes behind it."""
        more = self.ids(number + 2000, 3)
        asks = {"sqreal_fork": {"session": self.session, "tokens": len(ids)}}
        call = self.call(self.served.name(), [*ids, *more], step.fork_out, number + 4000, asks=asks)
        return asyncio.create_task(self._forked(call, len(ids)))

    async def _forked(self, call: Call, length: int):
        return await self.client.generate(call), call.input_ids, length

    def check_fork(self, forked, mirror: Mirror, untold: list[int]) -> None:
        """`mirror` holds the turn's prompt, or, where it was aborted, `untold` is what is missing of it."""
        answer, ids, length = forked
        cached = answer.meta["cached_tokens"]
        assert answer.meta["prompt_tokens"] == len(ids)
        found = []
        if cached and mirror.tokens:
            there = min(length, len(mirror.resident))
            found.append(mirror.fork(there, cached, [*untold, *ids[length:]]))
        # There was no row (any more), no page of it, or no window of its end: an ordinary request, that the tree may serve.
        if not found or untold or (cached <= self.first and (self.served.model.window or self.squeezed)):
            found.append(Mirror(self.served.model))
            found[-1].tell(ids)
        for each in found:
            each.tell(answer.output_ids)
        self.hold(answer, found, "fork")
        self.done["forked"] += 1
        self.done["read"] += 0 < self.first < cached

    def call(self, rid: str, new: list[int], out: int, number: int, **more: Any) -> Call:
        """A request for `out` tokens: what the model says, or forced ones where log-probabilities are held."""
        if not self.served.scored:
            return Call(rid, new, None, out, ignore_eos=True, **more)
        forced = None if self.squeezed else self.ids(number + 3000, out)
        held = len(self.mirror.resident) if "session" in more else 0
        return ScoredCall(rid, new, forced, out, held=held, ignore_eos=True, **more)

    def hold(self, answer: Generation, mirrors: list[Mirror], kind: str) -> None:
        """One of the mirrors has to say what was answered."""
        count = len(answer.output_ids)
        self.done["tokens"] += count
        if not self.served.scored:
            assert answer.output_ids in [mirror.says(count) for mirror in mirrors]
            return
        said = [logprob for logprob, *_ in answer.meta["output_token_logprobs"]]
        assert [token for _, token, *_ in answer.meta["output_token_logprobs"]] == answer.output_ids
        off = [
            [abs(one - other) for one, other in zip(said, mirror.scores(count), strict=True)]
            for mirror in [*mirrors, mirrors[0].blind()]
        ]
        self.served.differences[kind] += min(off[:-1], key=sum)
        if kind == "cut" and any(token.gone != NEVER for token in mirrors[0].tokens):
            self.served.differences["blind"] += off[-1]


async def drive(served: Served, schedules: list[list[Step]]) -> Counter:
    squeezed = any(step.squeeze for steps in schedules for step in steps)
    async with Client(served.url) as client:
        agents = [Agent(served, client, seed, squeezed=squeezed) for seed in range(len(schedules))]
        found = await asyncio.gather(
            *(agent.run(steps) for agent, steps in zip(agents, schedules, strict=True))
        )
        await client.generate(
            Call(served.name(), [5, 6, 7], None, 2)
        )  # behind it the log tells of the pool again
    served.server.check()
    served.check_pools()
    total = sum(found, Counter(schedules=1))
    served.done += total
    return total
