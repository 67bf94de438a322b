# SPDX-License-Identifier: Apache-2.0
"""Compaction, pinning and pausing on a real SGLang with sessions in place: laws 10 and 11, and what a hold is.

Without sessions: test_laws_real.py; the whole matrix: reports/conformance.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from sqreal.replay.schedule import await_idle
from sqreal.server.client import Call, Client
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Question
from tests.sqreal.conformance import SESSIONS, accounts, crowded, quiet
from tests.sqreal.replays import scenario
from tests.sqsim.tasks import call, task, turn

pytestmark = pytest.mark.real

SERVER = SESSIONS[1]  # tiny-llama, pages of 1 (0.5.16 on a CPU has no other), chunks of 64
POOL = SERVER.engine["kv_capacity"]


@pytest.fixture(scope="module")
def session_server(tmp_path_factory):
    with SERVER.server(tmp_path_factory.mktemp("sessions")) as server:
        yield server


@pytest.mark.parametrize("policy", ["compaction", "pin_ttl", "pause"])
def test_uncontended_every_turn_accounts_for_the_same_tokens(session_server, tmp_path, policy):
    found = quiet(SERVER, session_server, policy, tmp_path, 8)
    assert found.differences == []
    assert (found.aux > 0) == (found.evictions > 0) == (policy == "compaction")


@pytest.mark.parametrize("policy", ["compaction", "pin_ttl", "pause"])
def test_contended_every_batch_is_the_same(session_server, tmp_path, policy):
    found = crowded(SERVER, session_server, policy, tmp_path)
    assert found.differences == []
    assert found.released_sessions > 0 or policy == "pause"
    assert (found.pauses > 0) == (policy == "pause")
    assert (found.held_sessions > 0) == (policy == "pin_ttl")


@pytest.mark.parametrize("cache", ["radix", "session"])
def test_a_paused_agent_accounts_for_the_same_tokens(session_server, tmp_path, cache):
    """It grows beside one that waits for a tool, pauses until that one has ended, and gives up its session's KV."""
    growing = [turn(call(n, 300, latency_s=0.0), reasoning=10) for n in range(3)]
    made = [
        task(*growing, name="grows", question=Question(tokens=40)),
        task(turn(call(0, 200, latency_s=12.0), reasoning=10), name="waits", question=Question(tokens=40)),
    ]
    engine = {**SERVER.engine, "cache": cache}
    keys = {"name": "pause", "above": 0.35, "below": 0.3}
    run = scenario(tmp_path, made, engine=engine, policy=keys, load={"concurrency": 2})
    record, differences = accounts(run, session_server, tmp_path, time_scale=1.0, beside=True)
    assert differences == []
    assert record.run["paused"]["times"] == simulate(run).run["paused"]["times"] == 1
    assert record.run["paused"]["s"] > 1


def test_a_held_session_accounts_for_the_same_tokens(session_server, tmp_path):
    """Another agent wants its memory: it waits until the hold ends, and the session is computed anew behind it."""
    made = [
        task(turn(call(0, 100, latency_s=2.0)), name="held", question=Question(tokens=1000), arrival_s=0.0),
        task(name="waits", question=Question(tokens=1500), arrival_s=1.0),
    ]
    keys = {"name": "pin_ttl", "ttl_s": 6.0}
    run = scenario(tmp_path, made, engine=SERVER.engine, policy=keys, load={"as_recorded": True})
    record, differences = accounts(run, session_server, tmp_path, time_scale=1.0, beside=True)
    assert differences == []
    waited = next(row for row in record.turns.to_pylist() if row["task"] == "waits")
    assert waited["admit_s"] - waited["submit_s"] > 1
    assert sum(record.engine["released_sessions"].to_pylist()) == 1


def test_a_held_session_outlasts_pressure_and_may_be_closed(session_server, tmp_path):
    """What waits for its memory is admitted in the first round behind its close."""

    path = session_server.log_path.with_name("steps.jsonl")
    begin = len(path.read_text().splitlines())

    def events(name: str) -> list[dict]:
        return [event for event in log() if event["ev"] == name]

    def log() -> list[dict]:
        lines = path.read_text().splitlines()[begin:]
        return [json.loads(line) for line in lines if line.endswith("}")]

    async def scene() -> None:
        async with Client(session_server.url, session_server.failure) as client:
            await client.flush_cache()
            await client.open_session("held")
            ids = [100 + n % 7 for n in range(1200)]
            await client.generate(
                Call("held/0/", ids, None, 4, session="held", asks={"sqreal_hold_s": 600}, ignore_eos=True)
            )
            assert client.kv_usage() > 0.5
            waits = asyncio.create_task(
                client.generate(Call("waits/0/", [90 + n % 5 for n in range(1000)], None, 4, ignore_eos=True))
            )
            while not any("waits/0/" in event["wait"] for event in events("nobatch")):
                assert not waits.done(), "it has the memory of a held session"
                await asyncio.sleep(0.1)
            await client.close_session("held")
            assert (await waits).finish == "length"

    asyncio.run(scene())
    await_idle(path)
    closed = max(event["n"] for event in events("close_session") if event["id"] == "held")
    ran = [event["n"] for event in events("step") if event["reqs"][0][0] == "waits/0/"]
    assert min(ran) > closed
    assert not any("held" in event.get("released", ()) for event in log())
