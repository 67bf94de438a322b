"""A client that drives sessions through schedules of turns, drops, forks and aborts, and holds every answer against a mirror."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sqreal.byte_tokenizer import write_tokenizer
from sqreal.client import Call, Client
from sqreal.plugin.history import History, Span, merged, whole_pages
from sqreal.schedule import await_idle
from sqreal.server import Server, ServerOptions, start
from tests.sqreal.mirror import Mirror
from tests.sqreal.reference_model import ReferenceModel, write_weights

POOL = 2048


@dataclass
class Served:
    """A server, and what it is held against."""

    url: str
    model: ReferenceModel
    page: int
    log: Path
    server: Server
    names: Any = field(default_factory=count)

    def name(self) -> str:
        return f"x{next(self.names)}/"

    def last_idle(self) -> dict[str, Any]:
        await_idle(self.log)
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return next(event for event in reversed(events) if event["ev"] == "idle")["mem"]


PAGES = {"tiny-llama": 1, "tiny-qwen3": 16}  # tokens
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}


@contextmanager
def serving(name: str, directory: Path) -> Iterator[Served]:
    """A server of a tiny model with weights that matter, under SGLang's own checks of its memory, which end it."""
    model, page = write_tokenizer(write_weights(name, directory / "model")), PAGES[name]
    options = ServerOptions(
        model=model,
        dtype="float32",
        kv_capacity=POOL,
        max_running=8,
        context_length=POOL,
        page_size=page,
        chunked_prefill=64,
        in_place=True,
        skip_tokenizer=False,
    )
    log = directory / "steps.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        for switch, value in STRICT.items():
            patch.setenv(switch, value)
        with start(options, step_log=log, log_path=directory / "server.log", deadline_s=900) as server:
            yield Served(server.url, ReferenceModel(model), page, log, server)
            server.check()


@dataclass(frozen=True)
class Step:
    """One turn of a schedule; fractions choose among what there is then."""

    new: int
    out: int
    drop: tuple[tuple[float, float], ...] = ()
    fork: str | None = None  # when it is sent: with the turn, or behind its first token
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
            taken = [*self.history.gone, *found]
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

    def drop(self, spans: list[Span]) -> None:
        """As the server has to: whole pages inside each span."""
        pages = [whole_pages(self.history.resident(span), self.served.page) for span in spans]
        for resident in reversed(merged([each for each in pages if each is not None])):
            self.mirror.drop(*self.history.told(resident))
            self.history.drop(resident)
            self.kv -= resident.tokens
            self.done["dropped"] += resident.tokens

    async def turn(self, step: Step, number: int) -> None:
        if step.squeeze:
            filler = self.ids(number + 1000, POOL - 120)
            await self.client.generate(Call(self.served.name(), filler, None, 2, ignore_eos=True))
        spans = self.choose(step.drop) if self.first else []
        self.drop(spans)
        new, rid = self.ids(number, step.new), self.served.name()
        asks: dict[str, Any] = {"sqreal_drop": [list(span) for span in spans]} if spans else {}
        call = Call(rid, new, None, step.out, session=self.session, asks=asks, ignore_eos=True)
        begun = asyncio.Event()
        main = asyncio.create_task(self.client.generate(call, lambda _: begun.set()))
        said = asyncio.create_task(begun.wait())
        if step.fork == "first" or step.abort or (step.fork and spans):  # before the drop a fork would not fit
            await asyncio.wait([main, said], return_when=asyncio.FIRST_COMPLETED)
        fork = self.fork(step, number, [*self.mirror.ids, *new]) if step.fork else None
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
        assert answer.output_ids == self.mirror.says(len(answer.output_ids))
        self.first = self.first or len(new)
        self.kv = prompt + len(answer.output_ids) - 1
        self.mirror.ended(self.kv)
        self.done["turns"] += 1

    def fork(self, step: Step, number: int, ids: list[int]) -> asyncio.Task:
        """Send a fork of all that is there now; what it is told goes behind it."""
        more = self.ids(number + 2000, 3)
        asks = {"sqreal_fork": {"session": self.session, "tokens": len(ids)}}
        call = Call(self.served.name(), [*ids, *more], None, step.fork_out, asks=asks, ignore_eos=True)
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
        if not found or untold:  # there was no row, or no page of it: an ordinary request
            found.append(Mirror(self.served.model))
            found[-1].tell(ids)
        for each in found:
            each.tell(answer.output_ids)
        assert answer.output_ids in [each.says(len(answer.output_ids)) for each in found]
        self.done["forked"] += 1
        self.done["read"] += bool(cached)


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
    memory = served.last_idle()
    assert memory["avail"] + memory["evictable"] == POOL
    assert memory["protected"] == 0
    assert "sess" not in memory
    return sum(found, Counter())
