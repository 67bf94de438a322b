# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/serve.py runs end to end on a CPU, so that it does on the day."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sqsim.fidelity.step_times import served

ROOT = Path(__file__).parents[2]


@pytest.mark.real
def test_the_rehearsal_measures_what_calibrate_reads(tmp_path):
    path = tmp_path / "serve.jsonl"
    command = [sys.executable, ROOT / "benchmarks/gpu/serve.py", "--rehearse", "--budget", "3600", "-o", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["weights"] == "random, routers spread"
    assert [row["kind"] for row in rows[1:]].count("decode") == 4
    assert rows[-1] == {"kind": "end", "left_out_for_time": []}
    run, times = served(path)
    assert run["scenario"]["model"] == "tiny-gpt-oss"
    assert [step.seconds > 0 for step in times.steps] == [True] * 8
