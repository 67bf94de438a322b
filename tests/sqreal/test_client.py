# SPDX-License-Identifier: Apache-2.0
"""The client against a server that answers, refuses, dies, or says nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sqreal.errors import ServerDiedError, ServerError, ServerTimeoutError
from sqreal.server.client import Call, Client, Generation, RefusedError
from tests.sqreal.fake_server import FakeServer, Faults

CALL = Call("0/0/", [10, 11, 12], [20, 21, 22, 23], 100)


def generate(server: FakeServer, call: Call = CALL, started=None, **options) -> Generation:
    async def one() -> Generation:
        async with Client(server.url, **options) as client:
            return await client.generate(call, started)

    return asyncio.run(one())


@pytest.mark.parametrize("incremental", [False, True])
def test_the_first_token_is_told_before_the_end(incremental):
    told: list[float] = []
    with FakeServer(token_s=0.02, incremental=incremental).running() as server:
        answer = generate(server, started=told.append)
    assert answer.output_ids == CALL.forced
    assert answer.finish == "stop"
    assert told == [answer.first_token_s]
    assert answer.submit_s < told[0] < answer.end_s
    assert (answer.meta["prompt_tokens"], answer.meta["cached_tokens"]) == (3, 0)


def test_what_the_last_token_stops_is_declared_longer():
    """SGLANG.md: declare max_new_tokens as the agent would and force a stop id at the recorded end."""
    with FakeServer().running() as server:
        generate(server)
        (body,) = server.requests
    assert body["sampling_params"]["max_new_tokens"] == 100
    assert body["sampling_params"]["stop_token_ids"] == [23]
    assert "ignore_eos" not in body["sampling_params"]
    assert body["sampling_params"]["custom_params"] == {"sqreal_force": CALL.forced, "sqreal_n_in": 3}


def test_one_token_is_first_and_last():
    with FakeServer().running() as server:
        answer = generate(server, Call("0/0/", [10], [20], 1))
    assert (answer.output_ids, answer.finish) == ([20], "length")
    assert answer.first_token_s == answer.end_s


@pytest.mark.parametrize(
    ("faults", "text"),
    [(Faults(refuses_at=0), "HTTP 400: no such thing"), (Faults(errs_at=0), "not with me")],
)
def test_a_refusal_is_named_and_the_server_serves_on(faults, text):
    with FakeServer(faults=faults).running() as server:
        with pytest.raises(RefusedError, match=f"request 0/0/: {text}"):
            generate(server)
        assert generate(server).output_ids == CALL.forced


def test_a_server_that_dies_in_an_answer_is_an_error_that_names_the_request():
    with (
        FakeServer(token_s=0.01, faults=Faults(dies_at=0)).running() as server,
        pytest.raises(ServerError, match=r"request 0/0/ broke off"),
    ):
        generate(server)


def test_the_owner_of_the_server_says_what_became_of_it():
    died = ServerDiedError("the server has ended (killed)", ("last words",))
    with (
        FakeServer(token_s=0.01, faults=Faults(dies_at=0)).running() as server,
        pytest.raises(ServerDiedError, match="last words"),
    ):
        generate(server, failure=lambda problem: died)


def test_a_server_that_says_nothing_is_given_up():
    with (
        FakeServer(faults=Faults(silent_at=0)).running() as server,
        pytest.raises(ServerTimeoutError, match=r"request 0/0/: no event for 0.2 s"),
    ):
        generate(server, silence_s=0.2)


def test_no_server_is_an_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = FakeServer(port=free.getsockname()[1])
    with pytest.raises(ServerError, match="broke off"):
        generate(server)


def test_an_aborted_request_ends_with_what_it_had():
    async def abort(server: FakeServer) -> Generation:
        async with Client(server.url) as client:
            request = asyncio.create_task(client.generate(Call("0/a0/", [10], list(range(50, 250)), 300)))
            while not request.done():
                await asyncio.sleep(0.05)
                await client.abort("0/a0/")
            return await request

    with FakeServer(token_s=0.01).running() as server:
        answer = asyncio.run(abort(server))
        assert server.aborted == ["0/a0/"]
    assert answer.finish == "abort"
    assert answer.output_ids == list(range(50, 50 + len(answer.output_ids)))


def test_a_request_that_is_aborted_in_the_queue_ends_with_nothing():
    async def abort(server: FakeServer) -> Generation:
        async with Client(server.url) as client:
            request = asyncio.create_task(client.generate(CALL))
            while not server.aborted:
                await asyncio.sleep(0.05)
                await client.abort(CALL.rid)
            return await request

    with FakeServer(token_s=60).running() as server:
        answer = asyncio.run(abort(server))
    assert (answer.finish, answer.output_ids, answer.first_token_s) == ("abort", [], None)


def test_the_cache_is_flushed_and_counters_are_read():
    async def use(server: FakeServer) -> dict[str, float]:
        async with Client(server.url) as client:
            await client.generate(CALL)
            counted = await client.metrics()
            await client.flush_cache()
            again = await client.generate(CALL)
            assert again.meta["cached_tokens"] == 0
            return counted

    with FakeServer().running() as server:
        counted = asyncio.run(use(server))
        assert (counted["sglang:prompt_tokens_total"], counted["sglang:max_total_num_tokens"]) == (
            3.0,
            100_000.0,
        )
        assert server.flushes == 1


def test_a_server_without_metrics_counts_nothing():
    async def read(server: FakeServer) -> dict[str, float]:
        async with Client(server.url) as client:
            return await client.metrics()

    with FakeServer(metrics=False).running() as server:
        assert asyncio.run(read(server)) == {}
    with (
        FakeServer(metrics_text="<html>welcome</html>").running() as server,
        pytest.raises(ServerError, match=r"/metrics: is not an SGLang answer"),
    ):
        asyncio.run(read(server))


def test_an_unknown_path_is_a_server_error():
    async def ask(server: FakeServer) -> None:
        async with Client(server.url + "/elsewhere") as client:
            await client.flush_cache()

    with FakeServer().running() as server, pytest.raises(ServerError, match="HTTP 404"):
        asyncio.run(ask(server))
