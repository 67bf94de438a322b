# SPDX-License-Identifier: Apache-2.0
"""What a scenario comes to: looked up once, the same for every command, and a server's own sizes before computed ones."""

import dataclasses

import pytest

from sqsim.errors import InputError, ScenarioError
from sqsim.fidelity.support import support
from sqsim.models.cost.capacity import KvCapacity
from sqsim.scenario.engine import Engine
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import Simulation
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import task


def scenario(tmp_path, engine, model="gpt-oss-20b"):
    write_tasks(tmp_path / "trace.jsonl", [task()])
    return make_scenario({"traces": str(tmp_path / "trace.jsonl"), "model": model, "engine": engine})


def test_a_thing_is_looked_up_once_and_nothing_can_be_exchanged():
    resolved = Resolved("gpt-oss-20b", Engine())
    assert resolved.cost is resolved.cost
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolved.model = "tiny-llama"


def test_support_and_a_simulation_come_to_the_same(tmp_path):
    """`sqsim support` reports the pool that a run of a scenario without further keys has."""
    rows = {(row["model"], row["gpu"]): row for row in support()}
    resolved = Simulation(scenario(tmp_path, {"gpu": "h100-sxm"})).resolved
    row = rows["gpt-oss-20b", "h100-sxm"]
    assert (row["kv_capacity_tokens"], row["kv_capacity"]) == resolved.kv_capacity[:1] + resolved.kv_capacity[
        2:3
    ]
    assert (row["profile"], row["weight_bytes"]) == (resolved.profile.name, resolved.weight_bytes)
    assert (resolved.limits.kv_capacity, resolved.limits.swa_capacity) == resolved.kv_capacity[:2]


def test_only_what_is_asked_for_is_looked_up(tmp_path):
    """The shape of a model that fits on no such GPU is known; `checked` names the key that is wrong."""
    resolved = Resolved.of(scenario(tmp_path, {"gpu": "l40s"}, "gpt-oss-120b"))
    assert resolved.hybrid
    assert resolved.tail_tokens == 128  # gpt-oss's sliding_window
    with pytest.raises(ScenarioError, match="engine: gpt-oss-120b does not fit"):
        resolved.checked()
    with pytest.raises(InputError, match=r"^gpt-oss-120b does not fit"):
        Resolved("gpt-oss-120b", Engine(gpu="l40s")).checked()


@pytest.mark.parametrize("swa_tokens", [None, 96])
def test_what_a_server_has_takes_the_place_of_what_is_computed(tmp_path, swa_tokens):
    told = KvCapacity(128, swa_tokens, "reported by the server")
    asked = scenario(tmp_path, {"gpu": "l40s"}, "gpt-oss-120b")
    resolved = Resolved.of(asked, engine=asked.engine.model_copy(update={"page_size": 16}), told=told)
    limits = resolved.limits
    assert (limits.kv_capacity, limits.swa_capacity, limits.page_size) == (128, swa_tokens, 16)
    assert resolved.hybrid is (swa_tokens is not None)
    assert resolved.kv_capacity is told
