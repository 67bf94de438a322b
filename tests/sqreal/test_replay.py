# SPDX-License-Identifier: Apache-2.0
"""A scenario on a server (a small honest one) against its simulation, and every way in which a run can go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sqreal.cli.app import scenario_command, tiny_model_command
from sqreal.errors import ServerError
from sqreal.replay.replay import Replay, replay
from sqreal.replay.run_context import FaithError, check, note
from sqreal.server.client import Call, Generation
from sqreal.server.server import attach
from sqsim.agent.served import Served
from sqsim.errors import InputError, RecordError, RunError, ScenarioError
from sqsim.fidelity.recording import SCHEDULE
from sqsim.record.files import read_record, write_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate
from tests.sqreal.fake_server import FakeServer, Faults, wait_until
from tests.sqreal.replays import (
    ACCOUNTED,
    CLEARING,
    EVICTED,
    NAMED,
    POLICIES,
    WITHOUT_SESSIONS,
    busy,
    family,
    on,
    rows,
    scenario,
)
from tests.sqsim.tasks import chain


@pytest.mark.parametrize("policy", WITHOUT_SESSIONS)
def test_a_replay_does_what_the_simulation_does(tmp_path, policy):
    """Both drive one loop: the same prompts, outputs, decisions and evictions, and the cache finds the same.

    Whether an aux thread ends in time is this machine's affair, so turns wait for it.
    """
    run = scenario(
        tmp_path, [*family(), busy(), chain(6, name="long", uses={5: (0,)})], policy=POLICIES[policy]
    )
    with FakeServer(token_s=0.0005).running() as server:
        _, record = on(server, run, time_scale=0.05, await_aux=True)
    simulated = simulate(run)
    assert rows(record.turns, ACCOUNTED) == rows(simulated.turns, ACCOUNTED)
    assert rows(record.aux, NAMED) == rows(simulated.aux, NAMED)
    assert rows(record.evictions, EVICTED) == rows(simulated.evictions, EVICTED)
    kept = ("task", "outcome", "turns", "output_tokens", "parent", "kv_read_tokens_main")
    assert rows(record.tasks, kept) == rows(simulated.tasks, kept)
    assert record.run["status"] == "complete"
    assert record.run["traces"] == simulated.run["traces"]
    assert bool(record.evictions.num_rows) == (policy in CLEARING)


def test_agents_pause_as_they_do_in_the_simulation(tmp_path):
    """Where no two fit, each waits for the end of the one before: whatever the speed, the same pauses and the same tokens."""
    made = [chain(2, name=f"t{number}") for number in range(4)]
    policy = {"name": "pause", "above": 0.001, "below": 0.001}
    run = scenario(tmp_path, made, policy=policy, load={"concurrency": 2})
    with FakeServer(token_s=0.0005).running() as server:
        _, record = on(server, run)
    simulated = simulate(run)
    assert record.run["paused"]["times"] == simulated.run["paused"]["times"] == 3
    assert record.run["paused"]["s"] > 0
    assert rows(record.turns, ACCOUNTED) == rows(simulated.turns, ACCOUNTED)
    assert metrics(record)["pauses"] == 3


def test_a_run_that_breaks_off_keeps_what_a_paused_agent_did(tmp_path):
    policy = {"name": "pause", "above": 0.001, "below": 0.001}
    run = scenario(tmp_path, [chain(2, name="a"), chain(2, name="b")], policy=policy, load={"concurrency": 2})
    with FakeServer(token_s=0.0005, faults=Faults(dies_at=WARM_UP + 1)).running() as server:
        replaying, record = on(server, run)
    assert isinstance(replaying.error, ServerError)
    outcomes = {row["task"]: row["outcome"] for row in record.tasks.to_pylist()}
    assert outcomes == {"a": "server_lost", "b": "server_lost"}
    assert record.turns["task"].to_pylist() == ["a", "a"]


def test_times_are_those_of_the_client_and_in_order(tmp_path):
    with FakeServer(token_s=0.002).running() as server:
        _, record = on(server, scenario(tmp_path, family()))
    for row in record.turns.to_pylist():
        assert 0 <= row["submit_s"] < row["first_token_s"] < row["end_s"]
        assert row["tool_end_s"] is None or row["tool_end_s"] >= row["end_s"] + 0.02  # latencies of 1 s, scaled
    assert record.run["time_scale"] == 0.02
    found = metrics(record)
    assert found["simulated"] is False
    assert found["tasks_completed"] == 2


def test_a_record_of_a_real_run_is_a_record(tmp_path):
    with FakeServer().running() as server:
        _, record = on(server, scenario(tmp_path, [chain(2)]))
    write_record(record, tmp_path / "record")
    assert read_record(tmp_path / "record").run["kind"] == "real"


def starts(record) -> list[float]:
    return sorted(record.tasks["start_s"].to_pylist())


def test_a_closed_loop_keeps_so_many_tasks_at_once(tmp_path):
    made = [chain(2, name=f"t{n}") for n in range(4)]
    with FakeServer(token_s=0.001).running() as server:
        _, record = on(server, scenario(tmp_path, made, load={"concurrency": 2}))
    ends = sorted(record.tasks["end_s"].to_pylist())
    assert starts(record)[1] < ends[0]
    assert all(start >= end for start, end in zip(starts(record)[2:], ends, strict=False))


@pytest.mark.parametrize(
    "load", [{"rate_per_s": 10.0, "arrivals": "uniform"}, {"as_recorded": True, "speedup": 2.0}]
)
def test_arrivals_are_those_of_the_scenario_scaled(tmp_path, load):
    made = [chain(1, name=f"t{n}", arrival_s=5.0 + 0.2 * n) for n in range(4)]
    run = scenario(tmp_path, made, load=load)
    with FakeServer().running() as server:
        _, record = on(server, run, time_scale=2.0)
    simulated = starts(simulate(run))
    for real, due in zip(starts(record), simulated, strict=True):
        assert 2.0 * due <= real


def test_warm_up_is_kept_out(tmp_path):
    with FakeServer().running() as server:
        on(server, scenario(tmp_path, [chain(1)]))
        assert server.flushes == 1
        assert [request["rid"].partition("/")[2] for request in server.requests] == ["0/0/", "0/1/"]


def test_a_task_that_ends_aborts_its_aux_thread(tmp_path):
    """The last turns are short, and the aux thread does not finish."""
    policy = {**POLICIES["sidequest"], "k": 1, "aux_tokens": 200, "spawn_without_cursors": True}
    with FakeServer(token_s=0.002, aux_stands=True).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(1)], policy=policy), time_scale=0.0)
        assert [rid.partition("/")[2] for rid in server.aborted] == ["0/a0/"]
    (aux,) = record.aux.to_pylist()
    assert (aux["state"], aux["end_s"], aux["named"]) == ("cancelled", None, [])
    assert 0 < aux["output_tokens"] < 200
    assert record.tasks["outcome"].to_pylist() == ["completed"]


def test_an_aux_thread_that_never_left_the_queue_cost_nothing():
    answer = Generation(5.0, None, 6.0, [], {"id": "0/a0/", "finish_reason": {"type": "abort", "message": "?"}})
    served = Served(1.0, 40)
    note(served, answer, t0_s=4.0)
    assert served == Served(1.0, 40, end_s=2.0, failure="abort")


# What goes wrong.


def test_a_server_that_does_not_force_tokens_is_refused_before_the_first_task(tmp_path):
    with (
        FakeServer(faults=Faults(unforced=True)).running() as server,
        pytest.raises(FaithError, match=r"warm1\.0/: output token 0 .*SQREAL_FORCE_TOKENS=1"),
    ):
        on(server, scenario(tmp_path, [chain(1)]))


def test_a_server_that_ends_a_request_says_why():
    finish = {"type": "abort", "message": "sqreal_force: token 3 of 9 ends the request"}
    answer = Generation(0.0, 0.1, 0.2, [7], {"finish_reason": finish})
    with pytest.raises(FaithError, match=r"token 0 is 7, recorded is 5; the server ended it: .*token 3 of 9"):
        check(Call("0/0/", [4], [5, 6], 9), answer)


WARM_UP = 9
"""Requests of a warm-up."""


def test_a_dying_server_ends_the_run_and_what_was_measured_is_kept(tmp_path):
    made = [chain(3, name=f"t{n}") for n in range(4)]
    with FakeServer(token_s=0.0005, faults=Faults(dies_at=WARM_UP + 5)).running() as server:
        run, record = on(server, scenario(tmp_path, made, load={"concurrency": 2}))
    assert isinstance(run.error, ServerError)
    assert record.run["status"] == "incomplete"
    assert "broke off" in record.run["ended_by"]
    assert set(record.tasks["outcome"].to_pylist()) == {"server_lost"}
    assert record.tasks.num_rows == 2, "the others never started"
    complete = [row for row in record.turns.to_pylist() if row["end_s"] is not None]
    assert len(complete) >= 4
    write_record(record, tmp_path / "record")
    with pytest.raises(RecordError, match="not completed"):
        read_record(tmp_path / "record")
    assert read_record(tmp_path / "record", allow_incomplete=True).turns.num_rows == record.turns.num_rows


def test_replay_raises_what_ended_the_run(tmp_path):
    with (
        FakeServer(faults=Faults(dies_at=WARM_UP)).running() as server,
        attach(server.url) as attached,
        pytest.raises(ServerError, match="broke off"),
    ):
        replay(scenario(tmp_path, [chain(1)]), attached)


@pytest.mark.parametrize("faults", [Faults(refuses_at=WARM_UP + 1), Faults(errs_at=WARM_UP + 1)])
def test_a_refused_request_fails_its_task_only(tmp_path, faults):
    with FakeServer(faults=faults).running() as server:
        _, record = on(server, scenario(tmp_path, [chain(2, name="a"), chain(2, name="b")]))
    assert rows(record.tasks, ("task", "outcome")) == [
        {"task": "a", "outcome": "refused"},
        {"task": "b", "outcome": "completed"},
    ]
    assert len(record.run["refused"]) == 1
    assert record.run["status"] == "complete"


def test_what_can_never_fit_fails_by_the_simulations_name(tmp_path):
    run = scenario(tmp_path, [chain(4, 300)], engine={"kv_capacity": 800})
    with FakeServer(capacity=800).running() as server:
        _, record = on(server, run)
    assert rows(record.turns, ACCOUNTED[:3]) == rows(simulate(run).turns, ACCOUNTED[:3])
    assert record.tasks["outcome"].to_pylist() == simulate(run).tasks["outcome"].to_pylist() == ["kv_capacity"]


def test_a_parent_that_fails_takes_its_unstarted_sub_agents_with_it(tmp_path):
    with FakeServer(faults=Faults(refuses_at=WARM_UP)).running() as server:
        _, record = on(server, scenario(tmp_path, family()))
    assert rows(record.tasks, ("task", "outcome")) == [
        {"task": "parent", "outcome": "refused"},
        {"task": "parent.sub", "outcome": "parent_ended"},
    ]


def test_the_record_says_where_the_server_is_unlike_the_scenario(tmp_path):
    with FakeServer(capacity=5000).running() as server:
        _, record = on(
            server, scenario(tmp_path, [chain(1)], engine={"max_running": 64, "context_length": 8192})
        )
    assert record.run["unlike_the_scenario"] == {"engine.kv_capacity": {"scenario": 20_000, "server": 5000}}
    assert record.run["kv_capacity"]["tokens"] == 5000


def test_sessions_are_refused_by_name(tmp_path):
    with FakeServer().running() as server, pytest.raises(ScenarioError, match=r"engine\.cache"):
        on(server, scenario(tmp_path, [chain(1)], engine={"cache": "session"}))


def test_a_step_log_that_is_not_there_is_named(tmp_path):
    with FakeServer().running() as server, attach(server.url) as attached:
        run = Replay(scenario(tmp_path, [chain(1)]), attached, step_log=tmp_path / "none.jsonl")
        with pytest.raises(InputError, match=r"none\.jsonl: no such step log"):
            run.run()


def test_a_run_without_a_step_log_has_no_schedule(tmp_path):
    with FakeServer().running() as server:
        run, _ = on(server, scenario(tmp_path, [chain(1)]))
    with pytest.raises(RunError, match="step log"):
        run.write_schedule(tmp_path / SCHEDULE)


# The command.


def command(tmp_path: Path, server: FakeServer, *more: str) -> list[str]:
    (tmp_path / "s.yaml").write_text(json.dumps(scenario(tmp_path, [chain(3)]).resolved()))
    return [
        sys.executable,
        *(
            "-c",
            "from sqreal.cli.main import main; main()",
            "run",
            str(tmp_path / "s.yaml"),
            "--url",
            server.url,
        ),
        *("--output-dir", str(tmp_path / "record"), *more),
    ]


def test_the_command_prints_metrics_and_writes_a_record(tmp_path):
    with FakeServer().running() as server:
        done = subprocess.run(
            command(tmp_path, server, "--json", "--time-scale", "0.01"), capture_output=True, check=True
        )
    found = json.loads(done.stdout)
    assert (found["simulated"], found["tasks_completed"]) == (False, 1)
    assert read_record(tmp_path / "record").run["time_scale"] == 0.01
    assert not (tmp_path / "record" / SCHEDULE).exists()


def test_an_interrupted_run_keeps_what_it_measured(tmp_path):
    with FakeServer(token_s=0.001).running() as server:
        process = subprocess.Popen(command(tmp_path, server), stderr=subprocess.PIPE, text=True)
        wait_until(lambda: server.flushes == 1 and server.requests, 60)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the measurements up to then are in" in said
    record = read_record(tmp_path / "record", allow_incomplete=True)
    assert (record.run["status"], record.run["ended_by"]) == ("incomplete", "interrupt")
    assert record.tasks["outcome"].to_pylist() == ["interrupted"]


def test_a_run_whose_server_dies_exits_with_1_and_keeps_what_it_measured(tmp_path):
    with FakeServer(token_s=0.001, faults=Faults(dies_at=WARM_UP + 1)).running() as server:
        done = subprocess.run(
            command(tmp_path, server, "--time-scale", "0"), capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "broke off" in done.stderr
    assert "marked incomplete" in done.stderr
    assert read_record(tmp_path / "record", allow_incomplete=True).turns.num_rows == 2


def test_other_commands(tmp_path, capsys):
    with FakeServer().running() as server:
        scenario_command(server.url, tmp_path / "s.yaml", "tasks.jsonl", "tiny-llama", "cpu")
    written = load_scenario(tmp_path / "s.yaml")
    assert (written.engine.kv_capacity, written.engine.max_running, written.model) == (
        100_000,
        64,
        "tiny-llama",
    )
    tiny_model_command("tiny-qwen3", tmp_path / "model")
    assert (tmp_path / "model" / "config.json").is_file()
    assert capsys.readouterr().out.splitlines() == [f"scenario: {tmp_path}/s.yaml", f"model: {tmp_path}/model"]


def test_nothing_to_run_is_an_input_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from sqreal.cli.main import main; main()", "run", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "none.yaml" in done.stderr) == (2, True)


def test_the_commands_import_neither_torch_nor_sglang_nor_httpx():
    script = (
        "import sys\n"
        "for name in ('torch', 'triton', 'sglang', 'httpx', 'sqkernels'): sys.modules[name] = None\n"
        "import sqreal.cli.app\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
