# SPDX-License-Identifier: Apache-2.0
"""In-place eviction on a real server: greedy tokens equal a reference model that masks what was dropped."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys

import httpx
import pytest
from hypothesis import given

from sqreal.plugin.history import Span
from sqreal.replay.byte_tokenizer import BEGIN, END, encode, write_tokenizer
from sqreal.server.client import Call, Client
from sqreal.setup.install import require_sglang

pytest.importorskip("torch")

from tests.sqreal.chat_agent import CHAT_REFUSED, PAGES, ChatAgent, chatted, message, rendered, token_turn
from tests.sqreal.mirror import Mirror
from tests.sqreal.page_blocks import blocks
from tests.sqreal.reference_model import ReferenceModel, write_weights
from tests.sqreal.session_agent import Agent, Step, drive
from tests.sqreal.session_schedules import driving, schedules
from tests.sqreal.session_server import serving

pytestmark = pytest.mark.real

SERVERS = {  # model, page size, core of the radix tree
    "llama-page1": ("tiny-llama", 1, "rust"),
    "qwen3-page16": ("tiny-qwen3", 16, "rust"),
    "llama-page16-python": ("tiny-llama", 16, "python"),
}
LONG = 1500
"""Output tokens of a request that is still running, however busy the machine, when it is aborted."""
EVERY = ["llama-page1", *(pytest.param(name, marks=pytest.mark.long) for name in list(SERVERS)[1:])]


@pytest.fixture(scope="module", params=EVERY)
def served(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    name, page, core = SERVERS[request.param]
    if require_sglang() == "0.5.16":
        page = 1  # it has no other on a CPU; the plugin says so
    model = write_tokenizer(write_weights(name, directory / "model"))
    with serving(model, ReferenceModel(model), directory=directory, page=page, core=core, chats=True) as server:
        yield server


SCHEDULES = schedules(most_new=40)


@driving(3)
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


@pytest.mark.parametrize("first", [True, False], ids=["first turn", "later turn"])
@pytest.mark.parametrize("gone", [False, True], ids=["waits", "hangs up"])
def test_a_turn_that_overlaps_is_refused_and_a_close_waits(served, first, gone):
    """A client sends another turn while one runs, or hangs up and retries, and closes at once: nobody else notices.

    SGLang attaches what it refuses to the session and then counts the session as idle; a close frees the KV of the turn that
    runs, and the server ends (sgl-project/sglang #27024, #27025).
    """

    async def test(client: Client, agent: Agent):
        name = served.name()
        await client.open_session(name)
        if not first:
            await client.generate(Call(served.name(), [5] * 50, None, 2, session=name))
        running = asyncio.create_task(
            client.generate(Call(served.name(), [6] * 9, None, LONG, session=name, ignore_eos=True))
        )
        await asyncio.sleep(0.3)
        if gone:
            running.cancel()
        for _ in range(2):
            call = Call(served.name(), [7] * 5, None, 2, session=name)
            answer = await client.generate(call)
            # After a hang-up the turn may be over by now, and the retry is served.
            if not gone or answer.finish == "abort":
                assert "has an unfinished turn" in answer.meta["finish_reason"]["message"]
        await client.close_session(name)
        if not gone:
            late = await refusal(client, Call(served.name(), [7] * 5, None, 2, session=name))
            assert "is closing" in late
            assert len((await running).output_ids) == LONG
        await agent.turn(Step(new=5, out=3), 0)
        await asyncio.sleep(3)  # SGLang carries out a close that waited up to a second later

    alone(served, test)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"replace": True}, "session_params: replace"),
        ({"drop_previous_output": True}, "session_params: drop_previous_output"),
        ({"offset": 3}, "session_params: offset"),
    ],
)
def test_a_turn_that_is_no_append_is_refused_before_the_session_has_a_row(served, params, says):
    async def test(client: Client, agent: Agent):
        body = {
            "input_ids": [5, 6],
            "sampling_params": {"max_new_tokens": 2},
            "session_params": {"id": agent.session, **params},
        }
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as plain:
            answer = await plain.post("/generate", json=body)
        assert answer.status_code == 400
        assert says in answer.text
        await agent.turn(Step(new=5, out=3), 0)

    alone(served, test)


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
        for asks, says in REFUSED:
            turn = "sqreal_drop" in asks
            session = agent.session if turn else None
            call = Call(served.name(), [5, 6, 7], None, 4, session=session, asks=asks)
            assert re.search(says, await refusal(client, call))
        other = {"sqreal_fork": {"session": agent.session, "tokens": 20}}
        said = await refusal(client, Call(served.name(), [4] * 30, None, 4, asks=other))
        assert "token 0 of the request is not that of session" in said
        await agent.turn(Step(new=5, out=6), 2)

    alone(served, test)


ENDS_SGLANG = [
    ({"sampling_params": {"custom_params": [1]}}, r"custom_params: \[1\] is not an object"),
    ({"sampling_params": {"custom_params": "x"}}, "custom_params: 'x' is not an object"),
    ({"session_params": {"id": ["s"]}}, r"session_params: id: \['s'\] is not a session's id"),
    ({"input_ids": [5, 1_000_000]}, r"input_ids\[1\]: 1000000 is not a token; the model's are 0 to"),
    ({"input_ids": [-1]}, r"input_ids\[0\]: -1 is not a token"),
]
CHANGES_A_SESSION = [
    ({"input_ids": [[9, 2], [3, 4]]}, "batch of 2 prompts; send a session's turns one by one"),
    ({"sampling_params": {"n": 2}}, "n: 2: a session continues with one answer"),
    ({"input_ids": [5, 1_000_000]}, r"input_ids\[1\]: 1000000 is not a token"),
]


def test_a_bad_request_ends_no_server_and_changes_no_session(served):
    """As SGLang reads them: the scheduler would end with every session in it, or a part of the request would be done."""

    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=64, out=2), 0)
        await agent.turn(Step(new=40, out=8), 1)
        for stream in (False, True):
            for session, requests in ((None, ENDS_SGLANG), (agent.session, CHANGES_A_SESSION)):
                for body, says in requests:
                    drop = {"custom_params": {"sqreal_drop": [[70, 80]]}} if session else {}
                    asked = {"input_ids": [5, 6], **body, "stream": stream}
                    asked["sampling_params"] = {"max_new_tokens": 2, **drop, **body.get("sampling_params", {})}
                    if session is not None:
                        asked["session_params"] = {"id": session}
                    answer = await client._http.post("/generate", json=asked)
                    assert stream or answer.status_code == 400, answer.text
                    assert re.search(says, answer.text.replace('\\"', '"')), answer.text
        await agent.turn(Step(new=5, out=6), 2)

    alone(served, test)


def test_a_session_of_the_other_kind_drops_nothing(served):
    async def test(client: Client, agent: Agent):
        opened = {"session_id": "other-kind", "capacity_of_str_len": 1000}
        assert (await client._http.post("/open_session", json=opened)).status_code == 200
        await client.generate(Call(served.name(), [5, 6, 7, 8], None, 2, session="other-kind", ignore_eos=True))
        drops = Call(served.name(), [9], None, 2, session="other-kind", asks={"sqreal_drop": [[1, 2]]})
        assert "was not opened with streaming: true" in await refusal(client, drops)
        forks = Call(
            served.name(), [5, 6], None, 2, asks={"sqreal_fork": {"session": "other-kind", "tokens": 1}}
        )
        assert "was not opened with streaming: true" in await refusal(client, forks)
        await client._http.post("/close_session", json={"session_id": "other-kind"})

    alone(served, test)


def test_a_drop_waits_for_the_fork_and_is_not_lost(served):
    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=32, out=2), 0)
        await agent.turn(Step(new=64, out=2), 1)
        told = list(agent.mirror.ids)
        fork = {"sqreal_fork": {"session": agent.session, "tokens": len(told) - 2}}
        begun = asyncio.Event()
        call = Call(served.name(), told, None, LONG, asks=fork, ignore_eos=True)
        reading = asyncio.create_task(client.generate(call, lambda _: begun.set()))
        await begun.wait()
        asks = {"sqreal_drop": [[48, 80]]}
        turn = Call(served.name(), [9, 8, 7], None, 2, session=agent.session, asks=asks, ignore_eos=True)
        answer = await client.generate(turn)
        assert not reading.done(), "the fork has to outlive the turn"
        assert answer.meta["prompt_tokens"] == len(told) + 3
        again = Call(served.name(), [9], None, 2, session=agent.session, asks=asks)
        assert re.search("overlaps .* which waits", await refusal(client, again))
        await client.abort(call.rid)
        await reading
        answer = await client.generate(
            Call(served.name(), [6], None, 2, session=agent.session, ignore_eos=True)
        )
        assert answer.meta["prompt_tokens"] == len(told) + 3 + 2 + 1 - 32

    alone(served, test)


@pytest.mark.parametrize("length", [75, 85, 100])  # of 122 tokens left; spans before tokens 80 and 96 are gone
def test_a_fork_of_part_of_a_session_stands_where_that_part_ends(served, length):
    async def test(client: Client, agent: Agent):
        await agent.turn(Step(new=64, out=2), 0)
        await agent.turn(Step(new=100, out=2), 1)
        agent.drop([Span(80, 112), Span(128, 144)])
        asks = {"sqreal_drop": [[80, 112], [128, 144]]}
        answer = await client.generate(
            Call(served.name(), [7, 9], None, 2, session=agent.session, asks=asks, ignore_eos=True)
        )
        agent.mirror.tell([7, 9])
        agent.mirror.computed(answer.meta["cached_tokens"])
        ids = [*agent.mirror.ids[:length], 11, 12, 13]
        fork = {"sqreal_fork": {"session": agent.session, "tokens": length}}
        forked = await client.generate(Call(served.name(), ids, None, 8, asks=fork, ignore_eos=True))
        assert forked.meta["cached_tokens"] == length // served.page * served.page
        agent.check_fork((forked, ids, length), agent.mirror, [])

    alone(served, test)


def test_a_fork_beside_a_first_turn_reads_its_row(served):
    """Not only what of the prompt the turn shares with everybody, its first 16 tokens."""

    async def test(client: Client, agent: Agent):
        told = agent.ids(0, 64)
        begun = asyncio.Event()
        asks = {"sqreal_publish": 16}
        first = Call(served.name(), told, None, LONG, session=agent.session, asks=asks, ignore_eos=True)
        turn = asyncio.create_task(client.generate(first, lambda _: begun.set()))
        await begun.wait()
        mirror = Mirror(served.model)
        mirror.tell([*told, 7, 8, 9])
        fork = {"sqreal_fork": {"session": agent.session, "tokens": len(told)}}
        answer = await client.generate(Call(served.name(), mirror.ids, None, 6, asks=fork, ignore_eos=True))
        assert not turn.done(), "the turn has to outlive the fork"
        assert answer.meta["cached_tokens"] == len(told)
        mirror.tell(answer.output_ids)
        assert answer.output_ids == mirror.says(6)
        await client.abort(first.rid)
        await turn

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
        dropped = Call(served.name(), [7] * 20, None, 2, session=agent.session, asks=asks, ignore_eos=True)
        answer = await client.generate(dropped)
        assert answer.meta["prompt_tokens"] - answer.meta["cached_tokens"] == 20 + 1 - served.keeps_last
        plain = Call(served.name(), whole, None, 2, ignore_eos=True)
        await client.generate(plain)
        left = [*whole[:64], *whole[192:], *[7] * 20]
        answer = await client.generate(Call(served.name(), left, None, 2, ignore_eos=True))
        assert answer.meta["cached_tokens"] == 64
        assert answer.meta["prompt_tokens"] - 64 == len(whole) - 192 + 20

    alone(served, test)


def test_a_tool_response_dropped_by_its_message_is_gone_as_by_its_tokens(served):
    """The same conversation by tokens through /generate: the same answers, the same counts; nothing behind is computed."""

    async def test(client: Client, agent: ChatAgent):
        answer = await agent.turn(message("user", "Go on."), drop_message={"6": [3]})
        other = served.name()
        await client.open_session(other)
        span = agent.span(3)
        for number, ids in enumerate(agent.told):
            asks = {"sqreal_drop": [span]} if number == 3 else {}
            by_tokens = await token_turn(client, served.name(), other, ids, asks)
            said = agent.answers[number]
            assert said.text == by_tokens.text
            assert said.usage["prompt_tokens"] == by_tokens.meta["prompt_tokens"]
            if number:  # the first prompt is in the tree by now
                cached = said.usage["prompt_tokens_details"]["cached_tokens"]
                assert cached == by_tokens.meta["cached_tokens"]
        await client.close_session(other)
        gone = (span[1] // served.page - -(-span[0] // served.page)) * served.page
        assert answer.usage["prompt_tokens"] == sum(map(len, agent.told)) + 3 * agent.out - gone
        computed = answer.usage["prompt_tokens"] - answer.usage["prompt_tokens_details"]["cached_tokens"]
        assert computed == len(agent.told[3]) + 1 - served.keeps_last
        again = await agent.turn(message("user", "And now?"), drop_message={"6": [3], "8": [5]})
        assert again.usage["prompt_tokens"] < answer.usage["prompt_tokens"]

    chatted(served, test)


def test_an_answer_that_a_stop_token_ended_is_not_closed_twice(served):
    """Any token stops here: of an answer one is said, and the template's end of message is taken for that one."""

    async def test(client: Client, agent: ChatAgent):
        before = agent.answers[-1].usage["prompt_tokens"] + agent.out
        ends = {"ignore_eos": False, "stop_token_ids": list(range(512))}
        stopped = await agent.turn(message("user", "Go on."), **ends)
        assert stopped.usage["completion_tokens"] == 1
        new = len(agent.told[-1])
        assert stopped.usage["prompt_tokens"] == before + new
        then = await agent.turn(message("user", "Go on."))
        assert then.usage["prompt_tokens"] == before + new + 1 + new - 1

    chatted(served, test)


def test_a_fork_by_messages_reads_what_the_session_holds(served):
    """Behind a drop: the list still has what went, the fork has not; and its session goes on as if it had not been."""

    async def test(client: Client, agent: ChatAgent):
        before = await agent.turn(message("user", "Go on."), drop_message={"6": [3]})
        asks = {"session_params": None, "custom_params": {"sqreal_fork": {"session": agent.session}}}
        new = message("user", "Which of these are stale?")
        fork = await agent.post([*agent.messages, new], **asks)
        held = before.usage["prompt_tokens"] + agent.out
        mine = [END, *encode("\n"), *rendered(new), BEGIN, *encode("assistant\n")]
        assert fork.usage["prompt_tokens"] == held + len(mine)
        cached = fork.usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == (held - 1 + served.keeps_last) // served.page * served.page
        assert (await agent.turn(new)).text == fork.text
        edited = [message("system", "Who?"), *agent.messages[1:], new]
        assert "message 0 differs from what session" in await agent.refusal(edited, **asks)
        asks["custom_params"] = {"sqreal_fork": {"session": "nobody"}}
        assert "session 'nobody' does not exist" in await agent.refusal([*agent.messages, new], **asks)

    chatted(served, test)


def test_a_turn_that_was_cut_off_may_be_sent_again(served):
    """It was aborted; the same list does, and so does the same drop, which was done already."""

    async def test(client: Client, agent: ChatAgent):
        new, drop = message("user", "Go on."), {"6": [3]}
        assert '"finish_reason":"abort"' in await agent.cut_off(new, drop_message=drop)
        again = await agent.turn(new, drop_message=drop)
        start, stop = agent.span(3)
        gone = (stop // served.page - -(-start // served.page)) * served.page
        assert again.usage["prompt_tokens"] == sum(map(len, agent.told)) + 3 * agent.out - gone

    chatted(served, test)


def test_messages_that_do_not_go_on_or_cannot_go_are_refused_by_name(served):
    async def test(client: Client, agent: ChatAgent):
        new = message("user", "Go on.")
        for fields, says in CHAT_REFUSED:
            assert re.search(says, await agent.refusal([*agent.messages, new], **fields)), says
        edited = [*agent.messages, new]
        edited[3] = message("tool", PAGES[0].upper())
        assert "message 3 differs from what session" in await agent.refusal(edited)
        edited = [*agent.messages, new]
        edited[6] = message("assistant", "Something else entirely.")
        assert "message 6 is not what session" in await agent.refusal(edited)
        said = await agent.refusal(agent.messages[:-1])
        assert "was told messages 0 to 5 and has answered" in said
        other = [message("user", "Who is there? " * 3)]
        assert "message 0 differs from what session" in await agent.refusal(other)
        await agent.turn(new, drop_message={"6": [3]})
        said = await agent.refusal([*agent.messages, new], drop_message={"8": [3]})
        assert "message 3 was already dropped after message 6" in said
        await token_turn(client, served.name(), agent.session, [9, 8, 7], {})
        assert "was told tokens through /generate" in await agent.refusal([*agent.messages, new])

    chatted(served, test)


def test_what_the_page_says_of_sessions_works_as_it_stands(served):
    """Its shell block and its Python block, on this server; the counts are those that stand beside the commands."""
    here = ("http://127.0.0.1:30000", served.url)
    section = "In-place eviction in your own SGLang"
    shell = next(text for text in blocks(section) if text.startswith("post()"))
    done = subprocess.run(["bash", "-ec", shell.replace(*here)], capture_output=True, text=True, check=True)
    counts = [
        (meta["prompt_tokens"], meta["cached_tokens"])
        for meta in (json.loads(line)["meta_info"] for line in done.stdout.splitlines() if "meta_info" in line)
    ]
    if served.page == 1:
        assert counts[2:] == [(14, 12 + served.keeps_last), (5, 4)]
    [python] = blocks(section, "python")
    done = subprocess.run(
        [sys.executable, "-c", python.replace(*here)], capture_output=True, text=True, check=True
    )
    usage = ast.literal_eval(done.stdout)
    assert usage["prompt_tokens"] <= 122 + (0 if served.page == 1 else 28)  # without the response of 188 tokens
    served.server.check()
