"""In-place eviction on a real server: greedy tokens equal a reference model that masks what was dropped."""

from __future__ import annotations

import asyncio
import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sqreal.client import Call, Client
from sqreal.plugin.history import Span

pytest.importorskip("torch")

from tests.sqreal.reference_model import ReferenceModel, write_weights
from tests.sqreal.session_agent import Agent, Step, drive
from tests.sqreal.session_schedules import schedules
from tests.sqreal.session_server import serving

pytestmark = pytest.mark.real

SERVERS = {  # model, page size, core of the radix tree
    "llama-page1": ("tiny-llama", 1, "rust"),
    "qwen3-page16": ("tiny-qwen3", 16, "rust"),
    "llama-page16-python": ("tiny-llama", 16, "python"),
}
EVERY = ["llama-page1", *(pytest.param(name, marks=pytest.mark.long) for name in list(SERVERS)[1:])]


@pytest.fixture(scope="module", params=EVERY)
def served(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    name, page, core = SERVERS[request.param]
    model = write_weights(name, directory / "model")
    with serving(model, ReferenceModel(model), directory=directory, page=page, core=core) as server:
        yield server


SCHEDULES = schedules(most_new=40)
EXAMPLES = int(os.environ.get("SQREAL_SCHEDULES", "3"))


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # an example drives a server: report it as it was found
)
@given(schedules=SCHEDULES)
def test_random_schedules_say_what_the_reference_says(served, schedules):
    found = asyncio.run(drive(served, schedules))
    assert found["turns"] > 0


def alone(served, test):
    """Run a coroutine that takes a client and an agent of a session of its own."""

    async def run():
        async with Client(served.url) as client:
            agent = Agent(served, client, 99, squeezed=False)
            await client.open_session(agent.session)
            await test(client, agent)
            await client.close_session(agent.session)

    asyncio.run(run())
    served.server.check()


async def refusal(client: Client, call: Call) -> str:
    """The message with which a streamed request is refused; one that is not streamed gets status 400 itself."""
    reason = (await client.generate(call)).meta["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 400)
    return reason["message"]


REFUSED = [
    ({"sqreal_drop": [[50, 60]], "sqreal_fork": None}, "reaches into the first 64 tokens"),
    (
        {"sqreal_drop": [[90, 400]]},
        r"\[90, 400\] is out of range; the session was told and has said 114 tokens",
    ),
    ({"sqreal_drop": [[70, 80.5]]}, "whole numbers"),
    ({"sqreal_drop": [[70, 90], [80, 95]]}, "overlap"),
    ({"sqreal_fork": {"session": "nobody", "tokens": 2}}, "session 'nobody' does not exist"),
]


def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(served):
    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=64, out=2), 0)
        await agent.turn(Step(new=40, out=8), 1)
        for number, (asks, says) in enumerate(REFUSED):
            turn = "sqreal_drop" in asks
            session = agent.session if turn else None
            call = Call(f"refused{number}/", [5, 6, 7], None, 4, session=session, asks=asks)
            assert re.search(says, await refusal(client, call))
        other = {"sqreal_fork": {"session": agent.session, "tokens": 20}}
        said = await refusal(client, Call("other/", [4] * 30, None, 4, asks=other))
        assert "token 0 of the request is not that of session" in said
        await agent.turn(Step(new=5, out=6), 2)

    alone(served, test)


def test_a_drop_waits_for_the_fork_and_is_not_lost(served):
    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=32, out=2), 0)
        await agent.turn(Step(new=64, out=2), 1)
        told = list(agent.mirror.ids)
        fork = {"sqreal_fork": {"session": agent.session, "tokens": len(told) - 2}}
        begun = asyncio.Event()
        call = Call("long/", told, None, 400, asks=fork, ignore_eos=True)
        reading = asyncio.create_task(client.generate(call, lambda _: begun.set()))
        await begun.wait()
        asks = {"sqreal_drop": [[48, 80]]}
        turn = Call("asks/", [9, 8, 7], None, 2, session=agent.session, asks=asks, ignore_eos=True)
        answer = await client.generate(turn)
        assert not reading.done(), "the fork has to outlive the turn"
        assert answer.meta["prompt_tokens"] == len(told) + 3
        again = Call("again/", [9], None, 2, session=agent.session, asks=asks)
        assert re.search("overlaps .* which waits", await refusal(client, again))
        await reading
        answer = await client.generate(Call("then/", [6], None, 2, session=agent.session, ignore_eos=True))
        assert answer.meta["prompt_tokens"] == len(told) + 3 + 2 + 1 - 32

    alone(served, test)


def test_a_pool_full_of_idle_sessions_serves_on(served):
    async def test(client: Client, agent: Agent):
        agents = [Agent(served, client, seed, squeezed=True) for seed in range(6)]
        for each in agents:
            await client.open_session(each.session)
        for number, new in enumerate((500, 20)):  # 3,000 tokens of 2,048, then all of them again
            for each in agents:
                await each.turn(Step(new=new, out=4), number)
        assert sum(each.done["released"] for each in agents) > 0
        for each in agents:
            await client.close_session(each.session)

    alone(served, test)


def test_what_a_drop_costs(served):
    """The next turn computes what is new and the last answer's end; left out of a plain prompt, all behind the span."""

    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=32, out=2), 0)
        await agent.turn(Step(new=320, out=2), 1)
        whole = list(agent.mirror.ids)
        agent.drop([Span(64, 192)])
        asks = {"sqreal_drop": [[64, 192]]}
        dropped = Call("drop/", [7] * 20, None, 2, session=agent.session, asks=asks, ignore_eos=True)
        answer = await client.generate(dropped)
        assert answer.meta["prompt_tokens"] - answer.meta["cached_tokens"] == 20 + 1
        plain = Call("plain/", whole, None, 2, ignore_eos=True)
        await client.generate(plain)
        left = [*whole[:64], *whole[192:], *[7] * 20]
        answer = await client.generate(Call("left/", left, None, 2, ignore_eos=True))
        assert answer.meta["cached_tokens"] == 64
        assert answer.meta["prompt_tokens"] - 64 == len(whole) - 192 + 20

    alone(served, test)
