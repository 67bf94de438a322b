# SPDX-License-Identifier: Apache-2.0
"""What `sqsim compare` says of records as sqreal writes them (on the small honest server)."""

from __future__ import annotations

from sqsim.comparison.runs import compare
from sqsim.simulation.simulate import simulate
from tests.sqreal.fake_server import FakeServer
from tests.sqreal.replays import on, scenario
from tests.sqsim.tasks import call, task, turn


def test_a_replay_is_held_against_its_simulation(tmp_path):
    quick = [
        task(*(turn(call(n, 50, latency_s=0.01)) for n in range(3)), name=f"t{number}") for number in range(2)
    ]
    run = scenario(tmp_path, quick)
    with FakeServer(token_s=0.0005).running() as server:
        records = [on(server, run, time_scale=1.0)[1] for _ in range(2)]
        hurried = on(server, run, time_scale=0.5)[1]
    found = compare(*records, hurried, simulate(run), names=["a", "b", "hurried", "sim"])
    repeats, refused = found.measured
    assert (repeats.real, refused.real) == (["a", "b"], ["hurried"])
    assert repeats.unlike == [
        "engine.max_running: the server has 64, the simulation 256",
        "engine.kv_capacity: the server has 100000, the simulation 20000",
        "engine.context_length: the server has 8192, the simulation 4096",
    ]
    for account in repeats.accounting:
        assert account.turns.rows == 8
        assert {each.column for each in account.turns.differences} <= {"resident_tokens_after"}
        assert account.by_last_token == account.turns.rows_differing
    assert repeats.without_schedule == ["a", "b"]
    assert repeats.timing.metrics["run_time_s"].error_sd is not None
    assert repeats.timing.kv is None, "no step log"
    assert refused.timing is None
    assert "time_scale" in refused.timing_refused
