# SPDX-License-Identifier: Apache-2.0
"""Chaos on a real server: clients whose requests and sessions end at random moments, on a pool that holds about ten.

Now and then some of them want long answers at once, and requests reserve next to nothing of what they are going to say: memory
runs out under those that run, so turns and forks are retracted. SGLang's own switch for tests retracts more of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from time import monotonic

import pytest

pytest.importorskip("torch")

from sqreal.plugin.history import Span
from sqreal.server.client import Call, Client
from tests.sqreal.chaos_agent import ChaosAgent
from tests.sqreal.chaos_state import State
from tests.sqreal.chaos_victim import SESSIONS
from tests.sqreal.reference_gpt_oss import GptOssReference, write_gpt_oss
from tests.sqreal.reference_model import ReferenceModel, without_end, write_weights
from tests.sqreal.session_server import serving

pytestmark = [pytest.mark.real, pytest.mark.long]

SECONDS = float(os.environ.get("SQREAL_CHAOS_S", "600"))
POOL = 2048
"""Tokens: a session holds 200 on average when it is told up to 420."""


SERVERS = {"llama-page1": 1, "llama-page16": 16, "gpt-oss-page1": 1, "gpt-oss-page16": 16}
CLIENTS = {"llama-page1": 64}
OTHER_CLIENTS = 24  # so that rows are found again, and turns on what was cut retracted, on slower servers too


@pytest.fixture(scope="module", params=SERVERS)
def crowded(request, tmp_path_factory):
    directory, page = tmp_path_factory.mktemp(request.param), SERVERS[request.param]
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the server wants the others
    if request.param.startswith("gpt-oss"):
        model = without_end(write_gpt_oss(directory / "model", "float32"))
        reference = GptOssReference(model)
    else:
        model = without_end(write_weights("tiny-llama", directory / "model"))
        reference = ReferenceModel(model)
    with serving(
        model,
        reference,
        directory=directory,
        page=page,
        pool=POOL,
        max_running=16,
        retracts=True,
    ) as server:
        server.clients = CLIENTS.get(request.param, OTHER_CLIENTS)
        yield server
    torch.set_num_threads(threads)


async def killed(crowded, client: Client, number: int, draw: random.Random) -> Counter[str]:
    """Start a client process, kill it at work, and close the sessions that it left behind."""
    name = f"victim{number}-"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.sqreal.chaos_victim",
        crowded.url,
        name,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 120)
        await asyncio.sleep(draw.uniform(0, 2))
        running = process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert said == b"at work\n"
    assert running, "it ended by itself"
    for index in range(SESSIONS):
        await client.close_session(f"{name}{index}/")
    return Counter(kills=1)


async def kills(crowded, client: Client, until_s: float) -> Counter[str]:
    done, draw = Counter(), random.Random("kills")
    while monotonic() < until_s:
        done += await killed(crowded, client, done["kills"], draw)
        await asyncio.sleep(draw.uniform(0, 4))
    return done


def test_nothing_hangs_leaks_or_says_a_wrong_token(crowded):
    async def run() -> Counter[str]:
        until_s = monotonic() + SECONDS
        shared = random.Random("shared").sample(range(3, 512), 24)
        async with Client(crowded.url) as client:
            agents = [ChaosAgent(crowded, client, seed, shared) for seed in range(crowded.clients)]
            async with asyncio.TaskGroup() as group:  # the first that fails ends the others
                tasks = [group.create_task(agent.run(until_s)) for agent in agents]
                tasks.append(group.create_task(kills(crowded, client, until_s)))
            await asyncio.sleep(3)  # SGLang ends what was hung up on up to two seconds later
            await client.generate(Call(crowded.name(), [5, 6, 7], None, 2, ignore_eos=True))
        return sum((task.result() for task in tasks), Counter())

    began = monotonic()
    done = asyncio.run(run())
    crowded.check_pools()
    crowded.done += done + Counter(seconds=round(monotonic() - began))
    for what in (
        "turns",
        "forks",
        "read",
        "dropped",
        "kept",
        "released",
        "abort",
        "disconnect",
        "close",
        "overlaps",
        "kills",
        "retracted",
    ):
        assert done[what], f"nothing of this kind happened: {what}"


def test_a_turn_that_is_retracted_behind_a_drop_goes_on_from_position_0(crowded):
    """Beside a request that has said more, so that it is this turn that is retracted."""

    async def run() -> Counter[str]:
        async with Client(crowded.url) as client:
            agent = ChaosAgent(crowded, client, CLIENTS["llama-page1"], [])
            agent.story = []
            states, session = [State.fresh(crowded.model, crowded.page)], crowded.name()
            await client.open_session(session)

            async def turn(new: int, out: int, spans: list[Span]) -> list[State]:
                ids = agent.ids(new)
                asks = {"sqreal_drop": [list(span) for span in spans]} if spans else {}
                call = Call(crowded.name(), ids, None, out, session=session, asks=asks)
                return agent.after(states, spans, ids, out, await client.generate(call))

            states = await turn(64, 2, [])
            states = await turn(280, 2, [])
            begun, beside = asyncio.Event(), crowded.name()
            call = Call(beside, agent.ids(30), None, 1200)
            other = asyncio.create_task(client.generate(call, lambda _: begun.set()))
            await begun.wait()
            states = await turn(20, 120, [Span(80, 144)])
            await turn(20, 4, [])
            await client.abort(beside)
            await other
            await client.close_session(session)
            await client.generate(
                Call(crowded.name(), [5, 6, 7], None, 2)
            )  # behind it the log tells of the pools
            return agent.done

    done = asyncio.run(run())
    assert done["turns"] == 4
    assert done["moved"] > 0
    crowded.check_pools()
