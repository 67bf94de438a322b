"""Law 10 on a real SGLang: one task at a time, every turn accounts for the tokens that the simulation accounts for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sqreal.replay import Replay
from sqsim import lockstep
from sqsim.record import read_record
from sqsim.recording import SCHEDULE
from sqsim.simulate import simulate
from sqsim.trace.schema import Task
from tests.sqreal.replays import ACCOUNTED, EVICTED, NAMED, POLICIES, busy, family, rows, scenario
from tests.sqsim.tasks import chain, tasks

pytestmark = pytest.mark.real

EXACT = (*ACCOUNTED, "resident_tokens_after", "prefill_chunks", "retractions")
SERVER = {"kv_capacity": 4096, "max_running": 8, "context_length": 2048}
"""The engine of the shared server (conftest.py)."""
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,  # a run of CI is one of 5 minutes, not a search
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(server, directory, made: list[Task], policy: str, time_scale: float) -> None:
    run = scenario(directory, made, engine=SERVER, policy=POLICIES[policy])
    simulated = simulate(run)
    replay = Replay(run, server, time_scale=time_scale, step_log=server.log_path.with_name("steps.jsonl"))
    record = replay.run()
    assert replay.error is None
    assert record.run["unlike_the_scenario"] == {}
    assert rows(record.turns, EXACT) == rows(simulated.turns, EXACT)
    assert rows(record.aux, (*NAMED, "cached_tokens")) == rows(simulated.aux, (*NAMED, "cached_tokens"))
    assert rows(record.evictions, EVICTED) == rows(simulated.evictions, EVICTED)
    kept = ("task", "outcome", "turns", "peak_tokens", "kv_read_tokens_main", "kv_read_tokens_aux")
    assert rows(record.tasks, kept) == rows(simulated.tasks, kept)
    replay.write_schedule(directory / SCHEDULE)
    report = lockstep.replay(directory / SCHEDULE)
    assert [str(difference) for difference in report.differences] == []
    assert report.batches == sum(record.engine["steps"].to_pylist())


@pytest.mark.parametrize("policy", ["none", "keep_last"])
@few
@given(first=tasks(name="first"), second=tasks(name="second"))
def test_turns_account_for_the_same_tokens(llama_server, tmp_path_factory, policy, first, second):
    check(llama_server, tmp_path_factory.mktemp("law10"), [first, second], policy, time_scale=0.0)


def unhurried(made: Task) -> Task:
    """The task with tools slow enough for an aux thread to end before them, and with outputs long enough for it to
    start before they end: whether it does is a matter of time, and no account of tokens.
    """
    turns = [
        turn.model_copy(
            update={
                "reasoning_tokens": turn.reasoning_tokens + 60,
                "calls": tuple(call.model_copy(update={"latency_s": 1.0}) for call in turn.calls),
                "user_wait_s": 0.0,
            }
        )
        for turn in made.turns
    ]
    return made.model_copy(update={"turns": tuple(turns)})


@few
@given(made=tasks(max_turns=5).map(unhurried))
def test_aux_threads_account_for_the_same_tokens(llama_server, tmp_path_factory, made):
    check(llama_server, tmp_path_factory.mktemp("law10"), [made], "sidequest", time_scale=1.5)


@pytest.mark.parametrize("policy", ["none", "keep_last"])
def test_sub_agents_and_stripped_reasoning_too(llama_server, tmp_path, policy):
    check(llama_server, tmp_path, [*family(), busy()], policy, time_scale=0.3)


def test_the_command_starts_a_server_and_stops_it(tmp_path):
    """From a scenario to a record and a schedule that holds in lock-step; nothing is left running."""
    made = [chain(3, name=f"t{n}") for n in range(3)]
    run = scenario(tmp_path, made, engine={"kv_capacity": 2048, "page_size": 16, "chunked_prefill": 128})
    (tmp_path / "s.yaml").write_text(json.dumps(run.resolved()))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from sqreal.cli import main; main()", "run", str(tmp_path / "s.yaml")),
            *("--set", "load.concurrency=3", "--time-scale", "0.05", "--output-dir", str(tmp_path / "record")),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks_completed"] == 3
    record = read_record(tmp_path / "record")
    assert record.run["server"]["step_log"]
    assert record.run["unlike_the_scenario"] == {}
    assert min(record.turns["admit_s"].to_pylist()) > 0
    report = lockstep.replay(tmp_path / "record" / SCHEDULE)
    assert report.same
    assert report.batches == sum(record.engine["steps"].to_pylist())
