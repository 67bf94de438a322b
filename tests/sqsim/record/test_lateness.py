# SPDX-License-Identifier: Apache-2.0
"""Lateness of aux threads: what step times decide, by hand and against simulations with slower steps."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from sqsim.models.cost.profile import Profile
from sqsim.models.cost.step_cost import profile
from sqsim.record.lateness import lateness, lateness_note
from sqsim.record.metrics import metrics
from sqsim.record.schema import AUX, TURNS
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import call, task, turn


def table(schema: pa.Schema, rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | row for row in rows])


def record(step: str = "assumed", **thread: float):
    """A main step from 0 to 1 s, tools for 2 s, the next step at 3 s; a thread beside it."""
    turns = [
        {"task": "t", "turn": 0, "submit_s": 0.0, "end_s": 1.0},
        {"task": "t", "turn": 1, "submit_s": 3.0, "end_s": 4.0},
    ]
    aux = [{"task": "t", "spawn_turn": 0, **thread}]
    run = {"kind": "simulated", "profile": {"evidence": {"step": step}}}
    return SimpleNamespace(run=run, aux=table(AUX, aux), turns=table(TURNS, turns))


@pytest.mark.parametrize(
    ("end_s", "late", "least", "most"),
    [
        (1.5, 0, 0, 0),  # 3 s at twice the time, and the boundary then at 2 + 2 = 4 s
        (2.4, 0, 0, 1),  # 4.8 s is after 4 s
        (3.5, 1, 0, 1),  # 1.75 s is before 0.5 + 2 = 2.5 s
        (6.0, 1, 1, 1),  # 3 s is after 2.5 s
        (None, 1, 1, 1),  # cancelled
    ],
)
def test_a_thread_and_the_rest_of_its_step_scale_and_tools_do_not(end_s, late, least, most):
    found = lateness(record(submit_s=0.0, end_s=end_s))
    assert found == (1, late, least, most)


def test_it_is_said_only_where_it_decides_and_nothing_was_calibrated():
    assert "lateness decides: 0 of 1 aux threads are late, 0 to 1" in lateness_note(
        record(submit_s=0.0, end_s=2.4)
    )
    assert lateness_note(record(submit_s=0.0, end_s=1.5)) is None
    assert lateness_note(record("measured", submit_s=0.0, end_s=2.4)) is None
    assert lateness(SimpleNamespace(run={}, aux=AUX.empty_table(), turns=TURNS.empty_table())) is None


def slowed(factor: float) -> Profile:
    """The profile with every step `factor` times as long."""
    data = profile("tiny-llama", "cpu").model_dump(by_alias=True)
    for term in data.values():
        if isinstance(term, dict):
            for key, value in term.items():
                if key.endswith("_s"):
                    term[key] = value * factor
                elif key == "points":
                    term[key] = [(x, y * factor) for x, y in value]
    return Profile.model_validate(data)


def test_the_bounds_hold_what_slower_and_faster_steps_give(tmp_path):
    """One task at a time, tools from next to nothing to long: the counts of real simulations at half and twice the time."""
    waits = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    made = [
        task(*(turn(call(n, latency_s=wait)) for n in range(3)), name=f"t{at}") for at, wait in enumerate(waits)
    ]
    write_tasks(tmp_path / "t.jsonl", made)
    scenario = make_scenario(
        {
            "traces": str(tmp_path / "t.jsonl"),
            "model": "tiny-llama",
            "engine": {"gpu": "cpu", "kv_capacity": 4000, "cache": "session"},
            "policy": {"name": "sidequest", "k": 2},
            "load": {"concurrency": 1},
        }
    )
    found = lateness(simulate(scenario, profile=slowed(1.0)))
    late = [metrics(simulate(scenario, profile=slowed(factor)))["aux_late"] for factor in (0.5, 1.0, 2.0)]
    assert (found.least, found.late, found.most) == tuple(late)
    assert late[0] < late[2]
