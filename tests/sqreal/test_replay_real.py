# SPDX-License-Identifier: Apache-2.0
"""Replays on a real SGLang: sub-agents, and the command from a scenario to a record; laws 10 and 11: test_laws_real.py."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import pytest

from sqsim.fidelity import lockstep
from sqsim.fidelity.recording import SCHEDULE
from sqsim.record.files import read_record
from tests.sqreal.conformance import accounts
from tests.sqreal.replays import POLICIES, busy, family, scenario
from tests.sqsim.tasks import chain

pytestmark = pytest.mark.real

SERVER = {
    "kv_capacity": 4096,
    "max_running": 8,
    "context_length": 2048,
    "schedule_conservativeness": 0.05,
}
"""The engine of the shared server (conftest.py)."""


@pytest.mark.parametrize("policy", ["none", "keep_last"])
def test_sub_agents_and_stripped_reasoning_account_for_the_same_tokens(llama_server, tmp_path, policy):
    run = scenario(tmp_path, [*family(), busy()], engine=SERVER, policy=POLICIES[policy])
    _, differences = accounts(run, llama_server, tmp_path, time_scale=0.3, beside=True)
    assert differences == []


def test_a_server_without_sessions_in_place_says_so(llama_server):
    """Rather than answer as if a fork had been read, or tokens dropped."""
    for word, value in (("sqreal_fork", {"session": "s", "tokens": 1}), ("sqreal_drop", [[0, 1]])):
        sampling = {"max_new_tokens": 2, "custom_params": {word: value}}
        body = {"input_ids": [5, 6], "sampling_params": sampling}
        answer = httpx.post(f"{llama_server.url}/generate", json=body, timeout=60)
        assert answer.status_code == 400
        assert f"{word}: this server has no in-place sessions" in answer.text


def test_the_command_starts_a_server_and_stops_it(tmp_path):
    """From a scenario to a record and a schedule that holds in lock-step; nothing is left running."""
    made = [chain(3, name=f"t{n}") for n in range(3)]
    run = scenario(tmp_path, made, engine={"kv_capacity": 2048, "page_size": 16, "chunked_prefill": 128})
    (tmp_path / "s.yaml").write_text(json.dumps(run.resolved()))
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-c",
                "from sqreal.cli.main import main; main()",
                "run",
                str(tmp_path / "s.yaml"),
            ),
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
