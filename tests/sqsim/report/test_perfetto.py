# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace holds what the record holds: every step, every phase of every main step, every eviction."""

from __future__ import annotations

import json

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from sqsim.cli.app import app
from sqsim.record.files import write_record
from sqsim.report.perfetto import ENGINE_PID, TASKS_PID, perfetto
from tests.sqsim.simulation.test_simulate import run
from tests.sqsim.tasks import chain

SIDEQUEST = {"name": "sidequest", "k": 2, "recall": 1.0, "aux_tokens": 20}


@pytest.fixture
def record(tmp_path):
    made = [chain(6, 200, name=f"t{n}", uses={5: (0,)}) for n in range(4)]
    engine = {"cache": "session", "kv_capacity": 3500, "max_new_tokens": 64}
    return run(made, tmp_path, engine=engine, policy=SIDEQUEST, load={"concurrency": 4}, replicas=2)


def test_every_phase_of_every_step_is_a_slice(record):
    events = json.loads(perfetto(record))["traceEvents"]
    decodes = [each for each in events if each["ph"] == "X" and each["name"].startswith("decode ")]
    assert len(decodes) == record.turns.num_rows
    lasted = pc.sum(pc.subtract(record.turns["end_s"], record.turns["first_token_s"])).as_py()
    assert sum(each["dur"] for each in decodes) == pytest.approx(lasted * 1e6, rel=1e-6)
    evicted = [each for each in events if each["ph"] == "i"]
    assert len(evicted) == record.evictions.num_rows > 0
    names = {each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert {"t0", "t0 aux", "steps"} <= names


def test_replicas_are_processes_and_counters_sum_to_the_capacity(record):
    events = json.loads(perfetto(record))["traceEvents"]
    assert {each["pid"] for each in events} == {TASKS_PID, ENGINE_PID, ENGINE_PID + 1}
    for each in events:
        if each["ph"] == "C" and each["name"] == "KV tokens":
            assert sum(each["args"].values()) == 3500
    steps = [each for each in events if each["ph"] == "X" and each["pid"] >= ENGINE_PID]
    busy = record.engine.filter(pc.not_equal(record.engine["mode"], "idle"))
    assert len(steps) == busy.num_rows
    assert min(each["dur"] for each in steps) > 0


def test_report_writes_it(record, tmp_path):
    write_record(record, tmp_path / "run")
    words = ["report", str(tmp_path / "run"), "--perfetto", "-o", str(tmp_path / "trace.json")]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "trace.json").read_text() == perfetto(record)
