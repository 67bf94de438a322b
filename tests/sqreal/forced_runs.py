# SPDX-License-Identifier: Apache-2.0
"""Drives a real server with forced outputs, and makes a recorded schedule of what it did."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sqreal.replay.schedule import await_idle, write_schedule

STOP = 2
WARM_UP = 3


@dataclass(frozen=True)
class Ask:
    """One request: what is sent, what it must say, and when it goes: with the crowd, or `at` s in or behind another."""

    rid: str
    context: tuple[int, ...]
    forced: tuple[int, ...]
    max_new_tokens: int
    at: float | None = None  # None: at once, in one batch with all of these
    after: str | None = None
    session: str | None = None
    sent: int = 0  # of the context, how many tokens at its end are sent (0: all; the session holds the others)


def ids(seed: object, count: int) -> tuple[int, ...]:
    """Ordinary token ids: neither padding nor the stop id."""
    draw = random.Random(str(seed))
    return tuple(draw.randint(3, 511) for _ in range(count))


def output(seed: object, count: int) -> tuple[int, ...]:
    return (*ids(("out", seed), count - 1), STOP)


def crowd(count: int, *, cap: int, seed: int = 0) -> list[Ask]:
    """Requests of many lengths, a third of them with a common prefix, behind one with a long prompt and a short output.

    They come in one step, whatever the client's and the server's pace. With next to no reservation for what is running
    (schedule_conservativeness) they are all prefilled before any of them has said much, and outgrow the pool.
    """
    draw, asks = random.Random(seed), [Ask("long", ids((seed, "long"), 600), output((seed, "long"), 2), cap)]
    for number in range(count):
        prefix = ids((seed, "prefix"), 40) if number % 3 == 0 else ()
        context = prefix + ids((seed, number), draw.randint(20, 90))
        said = output((seed, number), draw.randint(cap // 2, cap - 1))
        asks.append(Ask(f"c{number:02}", context, said, cap))
    return asks


def conversations(count: int, turns: int, *, cap: int, session: bool, seed: int = 0) -> list[Ask]:
    """Agents whose every prompt is all that was said before plus a tool's answer; sent whole, or in a session."""
    draw, asks = random.Random(seed), []
    for agent in range(count):
        context = ids((seed, "system"), 50) + ids((seed, agent), draw.randint(60, 160))
        sent = len(context)
        for turn in range(turns):
            said = output((seed, agent, turn), draw.randint(2, cap // 2))
            rid, before = (
                f"{'s' if session else 'a'}{agent}t{turn}",
                f"{'s' if session else 'a'}{agent}t{turn - 1}",
            )
            asks.append(
                Ask(
                    rid,
                    context,
                    said,
                    cap,
                    at=draw.uniform(0, 0.1),
                    after=before if turn else None,
                    session=f"session{agent}" if session else None,
                    sent=sent if session else 0,
                )
            )
            tool = ids((seed, agent, turn, "tool"), draw.randint(20, 120))
            context, sent = context + said + tool, len(tool)
    return asks


@dataclass(frozen=True)
class Outcome:
    """What came back, and where the recorded schedule lies."""

    answers: dict[str, dict[str, Any]]
    schedule: Path

    def said(self) -> dict[str, tuple[int, ...]]:
        return {rid: tuple(answer["output_ids"]) for rid, answer in self.answers.items()}

    def ended(self, rid: str) -> str:
        """Why a request ended: stop, abort."""
        return self.answers[rid]["meta_info"]["finish_reason"]["type"]

    def total(self, key: str) -> int:
        """A sum over the answers; those of requests that were aborted while they waited say less."""
        return sum(answer["meta_info"].get(key, 0) for answer in self.answers.values())


def run(
    url: str,
    log: Path,
    asks: Sequence[Ask],
    schedule: Path,
    *,
    window: int | None = None,
    aborts: Mapping[str, float] | None = None,
) -> Outcome:
    """Warm the server up, flush it, drive it, and write the schedule. `aborts`: by rid, how many seconds in."""
    return asyncio.run(_run(url, log, asks, schedule, window, aborts or {}))


async def _run(
    url: str, log: Path, asks: Sequence[Ask], schedule: Path, window: int | None, aborts: Mapping[str, float]
) -> Outcome:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as http:
        warm = [
            Ask(f"warm{i}", ids(("warm", i), 60 + 40 * i), output(("warm", i), 8), 8) for i in range(WARM_UP)
        ]
        await asyncio.gather(*(generate(http, ask) for ask in warm))
        await asyncio.to_thread(await_idle, log)
        (await http.post("/flush_cache", params={"timeout": 10})).raise_for_status()
        sessions = sorted({ask.session for ask in asks if ask.session})
        for session in sessions:
            body = {"capacity_of_str_len": 1_000_000, "session_id": session, "streaming": True}
            (await http.post("/open_session", json=body)).raise_for_status()
        t0 = time.monotonic()
        done = {ask.rid: asyncio.get_running_loop().create_future() for ask in asks}
        aborting = [asyncio.create_task(_abort(http, rid, t0 + at, done[rid])) for rid, at in aborts.items()]
        batch = [ask for ask in asks if ask.at is None]
        alone = (_one(http, ask, ask.at, t0, done) for ask in asks if ask.at is not None)
        together, *others = await asyncio.gather(_together(http, batch, done), *alone)
        answers = together | dict(others)
        await asyncio.gather(*aborting)
        for session in sessions:
            (await http.post("/close_session", json={"session_id": session})).raise_for_status()
        await asyncio.to_thread(await_idle, log)
        info = (await http.get("/server_info")).json()
    write_schedule(
        schedule,
        log=log,
        server_info=info,
        requests=[
            {
                "rid": ask.rid,
                "input_ids": ask.context,
                "max_new_tokens": ask.max_new_tokens,
                "n_out": len(ask.forced),
                "ignore_eos": False,
                "stop_token_ids": [STOP],
                "session": ask.session,
            }
            for ask in asks
        ],
        responses={rid: {"output_ids": answer["output_ids"]} for rid, answer in answers.items()},
        t0=t0,
        window=window,
    )
    return Outcome(answers, schedule)


async def _abort(http: httpx.AsyncClient, rid: str, when: float, done: asyncio.Future[None]) -> None:
    """Abort a request until it has ended: one that a busy machine has not even received yet is none to abort."""
    await asyncio.sleep(max(0.0, when - time.monotonic()))
    while not done.done():
        (await http.post("/abort_request", json={"rid": rid})).raise_for_status()
        await asyncio.wait([done], timeout=0.2)


async def _together(
    http: httpx.AsyncClient, asks: Sequence[Ask], done: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    if not asks:
        return {}
    bodies = [_body(ask) for ask in asks]
    answer = await http.post("/generate", json={key: [body[key] for body in bodies] for key in bodies[0]})
    if answer.is_error:
        raise RuntimeError(f"{asks[0].rid} and others: {answer.status_code} {answer.text}")
    for ask in asks:
        done[ask.rid].set_result(None)
    return {ask.rid: each for ask, each in zip(asks, answer.json(), strict=True)}


async def _one(
    http: httpx.AsyncClient, ask: Ask, at: float, t0: float, done: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    if ask.after is None:
        await asyncio.sleep(max(0.0, t0 + at - time.monotonic()))
    else:
        await done[ask.after]
        await asyncio.sleep(at)
    answer = await generate(http, ask)
    done[ask.rid].set_result(None)
    return ask.rid, answer


async def generate(http: httpx.AsyncClient, ask: Ask, **force: Any) -> dict[str, Any]:
    """Send one request; `force` overrides what it says about its forced tokens."""
    body = _body(ask, **force)
    if ask.session:
        body["session_params"] = {"id": ask.session}
    answer = await http.post("/generate", json=body)
    if answer.is_error:
        raise RuntimeError(f"{ask.rid}: {answer.status_code} {answer.text}")
    return answer.json()


def _body(ask: Ask, **force: Any) -> dict[str, Any]:
    custom = {"sqreal_force": ask.forced, "sqreal_n_in": len(ask.context), **force}
    return {
        "rid": ask.rid,
        "input_ids": ask.context[-ask.sent :] if ask.sent else ask.context,
        "sampling_params": {
            "max_new_tokens": ask.max_new_tokens,
            "temperature": 0,
            "stop_token_ids": [STOP],
            "custom_params": custom,
        },
    }
