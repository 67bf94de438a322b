# SPDX-License-Identifier: Apache-2.0
"""The server's own counters against the record: no difference where nobody else uses it, and every one that there is."""

from __future__ import annotations

import pytest

from sqreal.replay.replay import Replay
from sqreal.server.client import Generation
from sqreal.server.metrics import COUNTERS, cross_check
from sqsim.agent.served import Served
from tests.sqreal.fake_server import FakeServer, Faults
from tests.sqreal.replays import POLICIES, WITHOUT_SESSIONS, busy, family, on, scenario
from tests.sqsim.tasks import call, chain, task, turn

WARM_UP = 9


@pytest.mark.parametrize("policy", WITHOUT_SESSIONS)
def test_the_server_counts_what_the_record_says(tmp_path, policy):
    run = scenario(tmp_path, [*family(), busy()], policy=POLICIES[policy])
    with FakeServer(token_s=0.0005).running() as server:
        # No aux thread is aborted here: before its first token it is in the rows, and in no counter.
        _, record = on(server, run, time_scale=0.05, await_aux=True)
    found = record.run["server_metrics"]
    assert (found["enabled"], found["differences"]) == (True, {})
    counters = found["counters"]
    sums = {
        name: sum(sum(table[column].to_pylist()) for table in (record.turns, record.aux))
        for name, column in (
            ("prompt_tokens", "prompt_tokens"),
            ("cached_tokens", "cached_tokens"),
            ("generation_tokens", "output_tokens"),
        )
    }
    sums["finished_requests"] = record.turns.num_rows + record.aux.num_rows
    for name, total in sums.items():
        assert counters[name]["record"] + counters[name]["aborted"] == total == counters[name]["counted"]
    assert counters["finished_requests"]["before"] == WARM_UP, "warm-up was counted, and is kept out"
    assert found["gauges"] == {"max_total_num_tokens": {"before": 100_000.0, "after": 100_000.0}}


def test_what_was_aborted_is_allowed_for_by_name(tmp_path):
    policy = {**POLICIES["sidequest"], "k": 1, "aux_tokens": 200, "spawn_without_cursors": True}
    with FakeServer(token_s=0.002, aux_stands=True).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(1)], policy=policy), time_scale=0.0)
    found = record.run["server_metrics"]
    assert found["differences"] == {}
    assert found["aborted"] == {"asked_for": 1, "while_running": 1, "in_the_queue": 0}
    (aux,) = record.aux.to_pylist()
    assert found["counters"]["generation_tokens"]["aborted"] == aux["output_tokens"]


def test_one_that_was_retracted_and_then_aborted_in_the_queue(tmp_path):
    """SGLang says of it what it has said, and of its prompt nothing (tokenizer_manager.py, _handle_abort_req)."""
    policy = {**POLICIES["sidequest"], "k": 1, "aux_tokens": 200, "spawn_without_cursors": True}
    with FakeServer(token_s=0.002, aux_stands=True, faults=Faults(retracts=True)).running() as server:
        replay, record = on(server, scenario(tmp_path, [chain(1)], policy=policy), time_scale=0.0)
    assert replay.error is None
    found = record.run["server_metrics"]
    assert found["differences"] == {}
    assert found["aborted"] == {"asked_for": 1, "while_running": 0, "in_the_queue": 1}
    (aux,) = record.aux.to_pylist()
    assert aux["state"] == "cancelled", aux
    assert aux["prompt_tokens"] == aux["fork_tokens"] + 12, "the context and the trigger"
    assert aux["output_tokens"] > 0
    assert found["counters"]["retracted_requests"]["aborted"] == 1


def test_the_log_knows_how_often_one_was_retracted_that_was_aborted_in_the_queue():
    finish = {"finish_reason": {"type": "abort", "message": "?"}}
    served = Served(0.0, 40)
    served.retractions = 3
    after = {"sglang:num_retracted_requests_total": 3.0}
    found = cross_check({}, after, [(served, Generation(0.0, 0.5, 1.0, [7, 8], finish))])
    assert (found["differences"], found["aborted"]["in_the_queue"]) == ({}, 1)


def test_one_that_was_aborted_in_the_queue_is_counted_nowhere():
    finish = {"finish_reason": {"type": "abort", "message": "?"}}
    after = {"sglang:num_aborted_requests_total": 1.0, "sglang:num_requests_total": 0.0}
    queued, unanswered = (Served(0.0, 40), Generation(0.0, None, 1.0, [], finish)), (Served(0.0, 40), None)
    found = cross_check({}, after, [queued, unanswered])
    assert found["differences"] == {}
    assert found["aborted"] == {"asked_for": 1, "while_running": 0, "in_the_queue": 1}


def test_a_difference_is_named(tmp_path):
    with FakeServer(faults=Faults(miscounts=7)).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(1)]))
    found = record.run["server_metrics"]
    assert found["differences"] == {"prompt_tokens": 7}
    assert found["counters"]["prompt_tokens"]["difference"] == 7


def test_a_server_without_metrics_is_said_to_have_none(tmp_path):
    with FakeServer(metrics=False).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(1)]))
    assert record.run["server_metrics"] == {
        "enabled": False,
        "note": "the server has no metrics; start it with --enable-metrics to compare them with this record",
    }
    assert record.run["status"] == "complete"


def test_a_run_that_broke_off_holds_nothing_against_the_server(tmp_path):
    with FakeServer(faults=Faults(dies_at=WARM_UP + 1)).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(2)]))
    assert record.run["status"] == "incomplete"
    assert record.run["server_metrics"] == {}


@pytest.mark.real
def test_a_real_server_counts_what_the_record_says(llama_server, tmp_path):
    """In a pool of 4,096 tokens: eight tasks at once, which are retracted; two, whose aux threads run when they end."""

    def counted(tasks: int, answer: int) -> dict:
        run = scenario(
            tmp_path,
            [task(turn(call(0, latency_s=0.0)), answer=answer, name=f"t{n}") for n in range(tasks)],
            engine={"kv_capacity": 4096, "max_running": 8, "context_length": 2048, "max_new_tokens": 8},
            policy={**POLICIES["sidequest"], "k": 1, "aux_tokens": 1500, "aux_max_new_tokens": 1700},
            load={"concurrency": tasks},
        )
        log = llama_server.log_path.with_name("steps.jsonl")
        replay = Replay(run, llama_server, time_scale=0.0, step_log=log)
        record = replay.run()
        assert replay.error is None
        found = record.run["server_metrics"]
        assert found["enabled"]
        assert found["differences"] == {}, found
        assert found["counters"].keys() == COUNTERS.keys()
        assert found["counters"]["prompt_tokens"]["counted"] > 0
        assert found["gauges"]["max_total_num_tokens"]["after"] == 4096
        return found

    assert counted(8, 700)["counters"]["retracted_requests"]["counted"] > 0
    assert counted(2, 200)["aborted"]["while_running"] == 2
