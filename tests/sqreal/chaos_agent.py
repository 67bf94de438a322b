# SPDX-License-Identifier: Apache-2.0
"""A client that ends its requests and sessions at random moments, and holds what still comes back against the reference."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from time import monotonic

from sqreal.errors import ServerError
from sqreal.plugin.history import Span, whole_pages
from sqreal.server.client import Call, Client, Generation
from tests.sqreal.chaos_state import State
from tests.sqreal.mirror import Mirror
from tests.sqreal.served import Served

LONGEST_S = 300.0
"""A request that takes longer hangs: the whole pool is prefilled in seconds."""
RUSH_S, EVERY_S = (
    10.0,
    20.0,
)  # so long of every so long a quarter of the clients do not pause, and want long answers
MOST_TOKENS = 420  # that a session is told, before it is closed and another one opened
MOST_STATES = 8  # that it may be in, before it is given up
Ending = str  # "end" (it is left alone), "abort", "disconnect", "close"


class ChaosAgent:
    """One client: it opens sessions, one after the other, and takes turns in them until its time is over."""

    def __init__(self, served: Served, client: Client, seed: int, shared: list[int]) -> None:
        self.served, self.client, self.shared = served, client, shared
        self.draw = random.Random(f"chaos {seed}")
        self.done: Counter[str] = Counter()
        self.hasty = seed % 4 == 0

    def hurries(self) -> bool:
        """So few at a time that they find their rows, and so many that these do not fit when all of them grow."""
        return self.hasty and monotonic() % EVERY_S < RUSH_S

    async def run(self, until_s: float) -> Counter[str]:
        while monotonic() < until_s:
            await self.session(until_s)
        return self.done

    async def session(self, until_s: float) -> None:
        """One session from its first turn to its last."""
        name = self.served.name()
        await self.client.open_session(name)
        self.story = [name]  # what happened to it: an assertion that fails tells
        states: list[State] = [State.fresh(self.served.model, self.served.page)]
        while states and monotonic() < until_s:
            states = await self.turn(name, states)
            if len(states) > MOST_STATES or any(len(each.mirror.told) > MOST_TOKENS for each in states):
                break
            if not self.hurries():
                # Half of the turns follow at once, and find their row; the others come when it was released long since.
                await asyncio.sleep(self.draw.expovariate(1 / self.draw.choice([0.2, 15.0])))
        with contextlib.suppress(ServerError):  # it may be closed already
            await self.client.close_session(name)
        self.done["sessions"] += 1

    async def turn(self, name: str, states: list[State]) -> list[State]:
        """Take a turn; returns what the session may be then: nothing when it is over."""
        ending = self.draw.choices(["end", "abort", "disconnect", "close"], [80, 9, 8, 3])[0]
        overlaps = self.draw.random() < 0.1
        sure = len(states) == 1
        spans = self.spans(states[0]) if sure and states[0].first else []
        new = self.ids(self.draw.randint(1, 50))
        if not states[0].first:
            new = [*self.shared, *new]
        out, rid = self.length(ending), self.served.name()
        asks = {"sqreal_drop": [list(span) for span in spans]} if spans else {}
        main = self.send(Call(rid, new, None, out, session=name, asks=asks))
        fork = None
        if sure and not spans and not states[0].waiting and self.draw.random() < 0.25:
            fork = asyncio.create_task(self.fork(name, states[0], new))
        self.story.append(
            f"{rid}: {len(new)} tokens, {out} out, drops {[list(span) for span in spans]}, {ending}"
        )
        if overlaps:
            await self.overlap(name, main)
        closed = await self.end(ending, main, rid, name)
        answer = await self.result(main)
        if answer is not None:
            keys = ("prompt_tokens", "cached_tokens", "num_retractions", "finish_reason")
            self.story.append(f"  {[answer.meta.get(key) for key in keys]}")
        why = [
            "has an unfinished turn",
            *(["does not exist"] if closed else []),
        ]
        if not refused(answer, *why):
            states = self.after(states, spans, new, out, answer)
        else:
            self.done["refused"] += 1  # what it hung up on is not over yet: nothing was done
        if fork is not None:
            await fork
        return [] if closed else states

    async def overlap(self, name: str, main: asyncio.Task[Generation]) -> None:
        """Send another turn while one runs: it is refused, or the first was over already and this one is closed with its session.

        A refused turn changes nothing, so the states stay as they are; one that was served would, so it asks for what is
        always refused: a span that nobody was told.
        """
        await asyncio.wait([main], timeout=self.draw.expovariate(10.0))
        call = Call(self.served.name(), [5], None, 1, session=name, asks={"sqreal_drop": [[10**6, 10**6 + 1]]})
        answer = await self.result(asyncio.create_task(self.client.generate(call)))
        said = "has an unfinished turn", "is out of range", "does not exist", "is closing"
        assert answer is not None
        assert refused(answer, *said), answer
        self.done["overlaps"] += said[0] in answer.meta["finish_reason"]["message"]

    def length(self, ending: Ending) -> int:
        """Tokens of an answer: few that nobody sees, since they are guessed; in a rush many, so that memory runs out under them."""
        if ending == "disconnect":
            return self.draw.randint(1, 3)
        return (
            self.draw.randint(100, 250)
            if self.hurries() and self.draw.random() < 0.7
            else self.draw.randint(1, 8)
        )

    async def end(self, ending: Ending, main: asyncio.Task[Generation], rid: str, name: str) -> bool:
        """Do to a request what was drawn, at a random moment; whether its session is closed now."""
        if ending == "end":
            return False
        await asyncio.wait([main], timeout=self.draw.expovariate(3.0))
        self.done[ending] += not main.done()
        if ending == "abort":
            await self.client.abort(rid)
        elif ending == "disconnect":
            main.cancel()
        else:
            await self.client.close_session(name)
        return ending == "close"

    def after(
        self, states: list[State], spans: list[Span], new: list[int], out: int, answer: Generation | None
    ) -> list[State]:
        """What the session may be at now; an assertion fails when the answer is none that it may give."""
        came = [option for state in states for option in state.dropped(spans)]
        if answer is None:  # disconnected: it may not have come, not have ended, or have ended unseen
            unseen = [done for state in came for done in state.completed_unseen(new, out)]
            return [*states, *(state.forgotten() for state in came), *unseen]
        if answer.finish == "abort":
            self.done["aborted when retracted"] += bool(answer.meta.get("num_retractions"))
            return [state.forgotten() for state in came]
        prompt, cached = answer.meta["prompt_tokens"], answer.meta["cached_tokens"]
        fitting = [
            found
            for state in came
            if len(state.mirror.resident) + len(new) == prompt
            for found in state.served(new, cached)
        ]
        assert fitting, f"{prompt} tokens, {cached} of them cached: no state of the session is like that"
        self.done["released"] += all(state.kv not in {0, cached} for state in came)
        self.done["kept"] += any(state.kv == cached for state in came)
        count = len(answer.output_ids)
        assert count == out
        possible = [state.said(new, answer.output_ids) for state in fitting]
        if answer.meta["num_retractions"]:
            moved = [(state.mirror, state.retracted()) for state in possible]
            right = [after for before, after in moved if says(count, [before], [after.mirror])]
            self.done["retracted"] += 1
            self.done["moved"] += any(len(before.tokens) > len(before.resident) for before, _ in moved)
        else:
            right = [state for state in possible if says(count, [state.mirror])]
        expected = [state.mirror.says(count) for state in possible] if not right else []
        assert right, f"{answer.meta['id']} says {answer.output_ids}, not {expected}; {self.story}"
        self.done["turns"] += 1
        self.done["tokens"] += count
        self.done["dropped"] += sum(span.tokens for span in spans)
        return right

    async def fork(self, name: str, state: State, new: list[int]) -> None:
        """A fork of the turn beside it, ended at random too; it reads the row, or is an ordinary request."""
        await asyncio.sleep(self.draw.expovariate(20.0))
        told = [*state.mirror.ids, *new]
        rid, more = self.served.name(), self.ids(3)
        asks = {"sqreal_fork": {"session": name, "tokens": len(told)}}
        sent = self.send(Call(rid, [*told, *more], None, self.length("end"), asks=asks))
        ending = self.draw.choices(["end", "abort"], [4, 1])[0]
        await self.end(ending, sent, rid, name)
        answer = await self.result(sent)
        # It may come before its turn does, or behind its session's end.
        if refused(answer, "is not that of session", "does not exist"):
            self.done["refused"] += 1
            return
        if answer is None or answer.finish == "abort":
            return
        cached, count = answer.meta["cached_tokens"], len(answer.output_ids)
        found = self.forked(state, new, [cached], more, answer.output_ids)
        again: list[Mirror] = []
        if answer.meta["num_retractions"]:
            # How much of the row it read when it came back is not told: the pages of then, or of the whole turn.
            page = self.served.page
            reads = [cached, *(tokens // page * page for tokens in (state.kv, len(told)))]
            again = self.forked(state, new, reads, more, answer.output_ids)
            self.done["forks retracted"] += 1
        assert says(count, found, again), f"{rid} says {answer.output_ids}; {self.story}"
        self.done["forks"] += 1
        self.done["read"] += 0 < state.first < cached
        self.done["tokens"] += count

    def forked(
        self, state: State, new: list[int], reads: list[int], more: list[int], output: list[int]
    ) -> list[Mirror]:
        """What a fork may be that read so many tokens of the row, as it was or computed anew, or is an ordinary request."""
        found = []
        for each in (state, state.lost()):
            for read in reads:
                mirror = each.copy().mirror
                mirror.tell(new)
                mirror.computed(each.kv)
                found.append(mirror.fork(len(mirror.resident), read, more))
        found.append(Mirror(self.served.model))
        found[-1].tell([*state.mirror.ids, *new, *more])
        for mirror in found:
            mirror.tell(output)
        return found

    def send(self, call: Call) -> asyncio.Task[Generation]:
        self.done["requests"] += 1
        return asyncio.create_task(asyncio.wait_for(self.client.generate(call), LONGEST_S))

    async def result(self, task: asyncio.Task[Generation]) -> Generation | None:
        """None: the client hung up."""
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    def ids(self, count: int) -> list[int]:
        return [self.draw.randint(3, 511) for _ in range(count)]

    def spans(self, state: State) -> list[Span]:
        """At most one span of tokens that are there, with KV, behind the first prompt."""
        there = [place for place in range(state.first, len(state.mirror.told) - 1) if self._there(state, place)]
        if len(there) < 3 or self.draw.random() < 0.5:
            return []
        at = self.draw.randrange(len(there) - 1)
        stop = at + 1
        while stop < len(there) and there[stop] == there[stop - 1] + 1 and stop - at < 60:
            stop += 1
        span = Span(there[at], there[stop - 1] + 1)
        # Whether one without a whole page went or waits, nothing would tell.
        return [span] if whole_pages(state.history.resident(span), self.served.page) else []

    @staticmethod
    def _there(state: State, place: int) -> bool:
        return not any(span.start <= place < span.stop for span in [*state.history.gone, *state.waiting])


def says(count: int, before: list[Mirror], again: Sequence[Mirror] = ()) -> bool:
    """Whether the last `count` tokens are what one of them says; where a retraction may have parted them, one and then another."""
    first, then = ([mirror.fits(count) for mirror in mirrors] for mirrors in (before, again))
    if not then:
        return any(map(all, first))
    return any(
        all(one[:parted]) and all(other[parted:])
        for one, other in product(first, then)
        for parted in range(count + 1)
    )


def refused(answer: Generation | None, *reasons: str) -> bool:
    """Whether a request was refused; an assertion fails when it was for none of these reasons."""
    if answer is None or answer.finish != "abort":
        return False
    reason = answer.meta["finish_reason"]
    if reason.get("status_code") != 400:
        return False
    assert any(each in reason["message"] for each in reasons), reason["message"]
    return True
