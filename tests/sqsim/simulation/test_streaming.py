# SPDX-License-Identifier: Apache-2.0
"""Memory that does not grow with the number of tasks: traces read twice, records written while the run goes on."""

from __future__ import annotations

import importlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import InputError, RecordError
from sqsim.record.files import identity, read_record, write_record
from sqsim.scenario.load import RateLoad, RecordedLoad
from sqsim.scenario.scenario import make_scenario
from sqsim.scenario.workload import Stream, arrivals, instances, survey
from sqsim.simulation.simulate import simulate, simulate_to
from sqsim.trace.store import write_tasks
from tests.sqsim.models.serving.test_macro_steps import arriving
from tests.sqsim.simulation.test_simulate import scenarios
from tests.sqsim.tasks import chain, families

simulate_module = importlib.import_module("sqsim.simulation.simulate")


def drawn(found, most, number=None, *, sort=False):
    return instances(
        lambda: iter(found), survey(lambda: iter(found), most), number, resample=False, seed=0, sort=sort
    )


@given(families(max_tasks=8, max_turns=2), st.integers(0, 9), st.randoms())
def test_streamed_families_are_those_of_a_list(found, number, shuffled):
    """In the order of their roots, whatever stands between a root and its sub-agents."""
    children = [task for task in found if task.parent is not None]
    shuffled.shuffle(children)
    roots = [task for task in found if task.parent is None]
    found = [*roots[:1], *roots[1:], *children] if shuffled.random() < 0.5 else found
    number = min(number, len(roots))
    held, streamed = drawn(found, 10**9, number), drawn(found, 0, number)
    assert isinstance(streamed, Stream) == bool(found)
    assert list(streamed) == list(held)
    assert list(streamed) == list(held)  # a second time
    assert len(streamed) == number
    with pytest.raises(InputError, match="are asked for"):
        drawn(found, 0, len(roots) + 1)


def test_a_stream_holds_unfinished_families_only():
    alive = []

    def read():
        for n in range(1000):
            task = chain(1, name=f"t{n}")
            alive.append(n)
            yield task

    streamed = instances(read, survey(read, 0), None, resample=False, seed=0)
    alive.clear()
    assert next(iter(streamed)).name == "t0"
    assert alive == [0]


@given(families(max_tasks=6, max_turns=1), st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_arrivals_come_in_order_and_do_not_depend_on_streaming(found, sixteenths):
    found = arriving(found, sixteenths)
    recorded = RecordedLoad(as_recorded=True, speedup=2.0)
    for load in (recorded, RateLoad(rate_per_s=2.0), RateLoad(rate_per_s=2.0, arrivals="uniform")):
        ways = [
            [(at_s, root.name) for at_s, root in arrivals(load, drawn(found, most, sort=load is recorded), 3)]
            for most in (10**9, 0)
        ]
        assert ways[0] == ways[1]
        times = [at_s for at_s, _ in ways[0]]
        assert times == sorted(times)
        assert len(times) == sum(task.parent is None for task in found)


def test_poisson_gaps_are_exponential():
    """Mean and standard deviation of 20,000 gaps at 4/s are 1/4 s each, within 2.5 %."""
    times = [at_s for at_s, _ in arrivals(RateLoad(rate_per_s=4.0), range(20_000), 1)]
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.25, rel=0.025)
    assert deviation == pytest.approx(0.25, rel=0.025)


@settings(max_examples=15)
@given(families(), scenarios())
def test_a_streamed_record_has_the_bytes_of_one_written_at_the_end(tmp_path_factory, found, scenario):
    base = tmp_path_factory.mktemp("streamed")
    write_tasks(base / "trace.jsonl", found)
    engine = {"gpu": "cpu", **scenario["engine"]}
    made = make_scenario({"traces": str(base / "trace.jsonl"), **scenario, "engine": engine})
    write_record(simulate(made), base / "held")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_module, "_HELD_STEPS", 0)
        patch.setattr("sqsim.record.schema._PACK_ROWS", 4)  # and row groups of 65,536 rows, as ever
        simulate_to(made, base / "streamed")
    assert identity(base / "streamed") == identity(base / "held")
    assert read_record(base / "streamed").turns.equals(read_record(base / "held").turns)


def test_groups_do_not_depend_on_when_rows_came(tmp_path, monkeypatch):
    for module in ("schema", "files"):
        monkeypatch.setattr(f"sqsim.record.{module}.GROUP_ROWS", 8)
    monkeypatch.setattr("sqsim.record.schema._PACK_ROWS", 4)
    write_tasks(tmp_path / "trace.jsonl", [chain(7, name=f"t{n}") for n in range(5)])
    made = make_scenario(
        {"traces": str(tmp_path / "trace.jsonl"), "model": "tiny-llama", "engine": {"gpu": "cpu"}}
    )
    write_record(simulate(made), tmp_path / "held")
    simulate_to(made, tmp_path / "streamed")
    assert identity(tmp_path / "streamed") == identity(tmp_path / "held")


def test_a_run_that_fails_leaves_what_stood_there(tmp_path, monkeypatch):
    write_tasks(tmp_path / "trace.jsonl", [chain(2)])
    made = make_scenario(
        {"traces": str(tmp_path / "trace.jsonl"), "model": "tiny-llama", "engine": {"gpu": "cpu"}}
    )
    simulate_to(made, tmp_path / "out")
    before = identity(tmp_path / "out")
    with pytest.raises(RecordError, match="--overwrite"):
        simulate_to(made, tmp_path / "out")

    def fail(*_, **__):
        raise AssertionError("in the middle")

    monkeypatch.setattr("sqsim.models.serving.scheduler.Scheduler._commit", fail)
    with pytest.raises(AssertionError, match="in the middle"):
        simulate_to(made, tmp_path / "out", overwrite=True)
    assert identity(tmp_path / "out") == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "trace.jsonl"]
