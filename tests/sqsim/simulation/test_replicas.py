# SPDX-License-Identifier: Apache-2.0
"""Replicas behind a router: independent where routing makes them so, else one world; and queues against theory."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import simpy

from sqsim.base.random_streams import uniform
from sqsim.errors import ScenarioError
from sqsim.models.serving.request import Asked, Request
from sqsim.models.serving.tokens import Run
from sqsim.record.columns import floats
from sqsim.record.files import read_record, write_record
from sqsim.record.metrics import metrics
from sqsim.record.schema import TABLES
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.replicas import Replicas
from sqsim.simulation.runtime import SimulatedRuntime
from sqsim.simulation.server import Submission
from sqsim.simulation.simulate import Simulation
from sqsim.trace.schema import Prefix
from tests.sqsim.simulation.test_simulate import rows, run
from tests.sqsim.tasks import chain, task

TASKS = [chain(3 + n % 4, 150, name=f"t{n}", uses={3: (0,)}) for n in range(12)]
SMALL = {"kv_capacity": 2500, "max_new_tokens": 64}
SIDEQUEST = {"name": "sidequest", "k": 2, "recall": 0.7, "aux_tokens": 20}


@pytest.mark.parametrize("number", [0, 10_001, 10**8])
def test_replicas_beyond_reason_are_refused(tmp_path, number):
    """Each is an engine that is built: a slip of the hand must not fill the memory."""
    with pytest.raises(ScenarioError, match=f"replicas: {number} .*from 1 to 10000"):
        run(TASKS, tmp_path, replicas=number)


@pytest.mark.parametrize(
    ("cache", "policy"),
    [("radix", {"name": "none"}), ("session", SIDEQUEST), ("radix", {"name": "pause"})],
)
@pytest.mark.parametrize("load", [{"concurrency": 7}, {"rate_per_s": 0.8}])
def test_with_affinity_each_replica_is_a_run_of_its_own(tmp_path, cache, policy, load):
    """Equality, not closeness: three replicas are three separate runs of every third task on a third of the load."""
    whole = run(TASKS, tmp_path, engine={"cache": cache, **SMALL}, policy=policy, load=load, replicas=3)
    assert sorted(row["task"] for row in rows(whole.tasks)) == sorted(each.task_id for each in TASKS)
    if "rate_per_s" in load:
        return  # arrivals are one stream that is dealt out; what a replica gets is no Poisson stream of a third
    for replica in range(3):
        share = {"concurrency": 7 // 3 + (replica < 7 % 3)}
        alone = run(TASKS[replica::3], tmp_path, engine={"cache": cache, **SMALL}, policy=policy, load=share)
        names = alone.tasks["task"].combine_chunks()
        mine = whole.tasks.filter(pc.is_in(whole.tasks["task"], value_set=names))
        assert mine.to_pylist() == alone.tasks.to_pylist()
        for name in ("turns", "aux", "engine"):
            table = getattr(whole, name)
            part = table.filter(pc.equal(table["replica"], replica)).drop_columns("replica")
            assert part.to_pylist() == getattr(alone, name).to_pylist(), name


def test_an_open_load_is_dealt_out_in_turn(tmp_path):
    load = {"rate_per_s": 0.8, "arrivals": "uniform"}
    found = run(TASKS, tmp_path, engine=dict(SMALL), load=load, replicas=3)
    start = {row["task"]: row["start_s"] for row in rows(found.tasks)}
    assert [start[f"t{n}"] for n in range(12)] == pytest.approx([(n + 1) / 0.8 for n in range(12)])
    where = {(row["task"], row["replica"]) for row in rows(found.turns)}
    assert where == {(f"t{n}", n % 3) for n in range(12)}


def test_one_replica_says_nothing_of_replicas(tmp_path):
    one = run(TASKS, tmp_path, engine=dict(SMALL), load={"concurrency": 4}, replicas=1, router="least_loaded")
    assert {name: getattr(one, name).schema for name in TABLES} == TABLES
    assert not {"replicas", "router"} & one.run["scenario"].keys()


def test_a_replicated_record_is_read_back_and_measured(tmp_path):
    whole = run(TASKS, tmp_path, engine=dict(SMALL), load={"concurrency": 6}, replicas=2, router="round_robin")
    write_record(whole, tmp_path / "out")
    again = read_record(tmp_path / "out")
    assert again.turns.equals(whole.turns)
    found = metrics(again)
    assert found["tasks_completed"] == 12
    assert 0 < found["kv_usage_mean"] < found["kv_usage_peak"] <= 1
    Simulation(make_scenario({**again.run["scenario"], "traces": str(tmp_path / "trace.jsonl")})).write(
        tmp_path / "streamed"
    )
    assert read_record(tmp_path / "streamed").turns.equals(whole.turns)


def test_fewer_places_than_replicas_leave_some_idle(tmp_path):
    found = run(TASKS, tmp_path, engine=dict(SMALL), load={"concurrency": 2}, replicas=5)
    assert {row["replica"] for row in rows(found.turns)} == {0, 1}
    assert metrics(found)["tasks_completed"] == 12


def test_round_robin_takes_turns_and_loses_prefixes(tmp_path):
    engine = {"kv_capacity": 20_000}
    turns, sticky = (
        run([chain(6)], tmp_path, engine=dict(engine), load={"concurrency": 1}, replicas=2, router=router)
        for router in ("round_robin", "session_affinity")
    )
    assert [row["replica"] for row in rows(turns.turns)] == [0, 1, 0, 1, 0, 1, 0]
    assert metrics(turns)["prefill_tokens"] > metrics(sticky)["prefill_tokens"]


def test_least_loaded_goes_where_fewest_are(tmp_path):
    """Four long requests at once on four replicas: one each; round robin by count, not by luck."""
    made = [task(answer=60, name=f"t{n}") for n in range(4)]
    found = run(made, tmp_path, load={"concurrency": 4}, replicas=4, router="least_loaded")
    assert sorted(row["replica"] for row in rows(found.turns)) == [0, 1, 2, 3]


@pytest.mark.parametrize("router", ["round_robin", "least_loaded"])
def test_macro_steps_behind_a_router_equal_single_steps(tmp_path, router):
    """Law 7 behind a router: a macro-step ends before another replica may send something."""
    fast, slow = (
        run(
            TASKS, tmp_path, engine=dict(SMALL), load={"concurrency": 8}, replicas=3, router=router,
            policy={**SIDEQUEST, "after_eviction": "reprefill"}, step_by_step=single,
        )
        for single in (False, True)
    )  # fmt: skip
    for name in ("tasks", "turns", "aux", "evictions"):
        for one, other in zip(rows(getattr(fast, name)), rows(getattr(slow, name)), strict=True):
            for key, value in one.items():
                expected = pytest.approx(other[key], rel=1e-9) if isinstance(value, float) else other[key]
                assert value == expected, (name, key)
    for replica in range(3):
        mine = [row for row in rows(fast.engine) if row["replica"] == replica]
        for before, after in itertools.pairwise(mine):
            assert before["t1_s"] <= after["t0_s"] + 1e-12


def test_sessions_need_affinity():
    content = {"traces": "t.jsonl", "engine": {"cache": "session"}, "replicas": 2, "router": "round_robin"}
    with pytest.raises(ScenarioError, match=r"tears sessions apart.*set router: session_affinity"):
        make_scenario(content)


# One server and a queue: what theory says of it.


STEP_S = 1.3e-3
"""Seconds of the longest decode step here: with overlap an engine sees the end of a request one step late (rule 23)."""


def lindley(service: np.ndarray, submitted: np.ndarray) -> np.ndarray:
    """Waits of a single server: W' = max(0, W + S - A), S the service before, A the gap between the two arrivals."""
    waits = [0.0]
    for served, gap in zip(service, np.diff(submitted), strict=False):
        waits.append(max(0.0, waits[-1] + served - gap))
    return np.array(waits)


def queue(tmp_path: Path, outputs: list[int], load: dict, *more: str) -> tuple[np.ndarray, ...]:
    """Waits and service times of requests on an engine that runs one at a time; `more` columns of its turns."""
    made = [
        task(answer=tokens, name=f"t{n}", prefix=Prefix(id="none", tokens=0))
        for n, tokens in enumerate(outputs)
    ]
    engine = {"max_running": 1, "kv_capacity": 1_000_000, "max_new_tokens": 4096}
    turns = run(made, tmp_path, engine=engine, load=load).turns
    order = np.argsort(floats(turns, "submit_s"), kind="stable")
    submit, admit, end = (floats(turns, name)[order] for name in ("submit_s", "admit_s", "end_s"))
    return admit - submit, end - admit, *(floats(turns, name)[order] for name in more)


def held_against_theory(tmp_path: Path, outputs: list[int], busy: float) -> tuple[float, float]:
    """Mean wait of a Poisson stream, and what Pollaczek and Khinchine say for the services that it had.

    Each single wait is Lindley's, up to the step after which a full engine sees that its request has ended.
    """
    _, alone = queue(tmp_path, outputs[:50], {"concurrency": 2})
    rate = busy / alone.mean()
    wait, service, submitted = queue(tmp_path, outputs, {"rate_per_s": rate}, "submit_s")
    least, most = (lindley(service + handover, submitted) for handover in (0.0, STEP_S))
    assert np.all(least - 1e-9 <= wait)
    assert np.all(wait <= most + 1e-9)
    return wait.mean(), rate * (service**2).mean() / (2 * (1 - rate * service.mean()))


def test_a_queue_with_equal_services_is_md1(tmp_path):
    """M/D/1: W = rho s / (2 (1 - rho)). 2,000 requests at rho = 0.6 estimate it to some 6 % (one sd)."""
    wait, theory = held_against_theory(tmp_path, [40] * 2000, busy=0.6)
    assert wait == pytest.approx(theory, rel=0.18)


def test_a_queue_with_exponential_services_is_mm1(tmp_path):
    """M/M/1: twice the wait of M/D/1, as output lengths are geometric with mean 40."""
    outputs = [1 + int(-40 * np.log1p(-uniform(7, "test", n))) for n in range(3000)]
    wait, theory = held_against_theory(tmp_path, outputs, busy=0.5)
    assert wait == pytest.approx(theory, rel=0.25)


@pytest.mark.parametrize(("cache", "policy"), [("radix", {"name": "none"}), ("session", SIDEQUEST)])
def test_twice_the_kv_never_serves_less(tmp_path, cache, policy):
    """Closed loop, all else equal. Scheduling has anomalies of a few steps, so 1 % is allowed for."""
    speed = []
    for capacity in (1500, 3000, 6000, 12_000):
        engine = {"cache": cache, "kv_capacity": capacity, "max_new_tokens": 64}
        found = run(TASKS, tmp_path, engine=engine, policy=policy, load={"concurrency": 8})
        speed.append(metrics(found)["output_tok_s"])
    for less, more in itertools.pairwise(speed):
        assert more >= 0.99 * less, speed


class Loaded:
    """An engine of which only its load is asked."""

    def __init__(self, replica: int, unfinished: int, usage: float) -> None:
        self.replica, self.unfinished, self.usage = replica, unfinished, usage

    def kv_usage(self) -> float:
        return self.usage

    def submit(self, request, **_):
        done = simpy.Environment().event()
        done.succeed()
        return Submission(request, 0.0, done, replica=self.replica)


def test_kv_usage_is_that_of_the_replica_that_the_next_request_goes_to():
    engines = [Loaded(0, 3, 0.7), Loaded(1, 2, 0.4)]
    assert Replicas(engines, "least_loaded").kv_usage() == 0.4
    fleet = Replicas(engines, "round_robin")
    for replica in (0, 1, 0):
        assert fleet.kv_usage() == engines[replica].usage
        assert fleet.submit(Request(Asked("r", (Run(0, 0, 5),), (Run(1, 0, 1),), 1))).replica == replica


def test_kv_usage_between_turns_is_what_the_session_holds(tmp_path, monkeypatch):
    """Known answer: one agent, alone; the tree's part of its row is locked, so all that is resident counts."""
    seen = []
    tools = SimulatedRuntime.tools

    def asking(runtime, wait_s):
        seen.append(runtime.kv_usage())
        return tools(runtime, wait_s)

    monkeypatch.setattr(SimulatedRuntime, "tools", asking)
    record = run([chain(4)], tmp_path, engine={**SMALL, "cache": "session"}, load={"concurrency": 1})
    resident = record.turns["resident_tokens_after"].to_pylist()[:-1]
    assert seen == [tokens / SMALL["kv_capacity"] for tokens in resident]
