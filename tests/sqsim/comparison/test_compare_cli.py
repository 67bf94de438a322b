# SPDX-License-Identifier: Apache-2.0
"""`sqsim compare` as a script sees it, with real and simulated records among its arguments."""

from __future__ import annotations

import json

import pytest

from sqsim.record.files import write_record
from tests.sqsim.cli.test_cli import sqsim
from tests.sqsim.real_records import real, simulated


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Directories `sim`, `r1` and `r2` (repeats), `hurried` (waits cut short), `cut` (ended early)."""
    base = tmp_path_factory.mktemp("runs")
    record = simulated(base)
    write_record(record, base / "sim")
    write_record(real(record), base / "r1")
    write_record(real(record, 1.2), base / "r2")
    write_record(real(record, time_scale=0.1), base / "hurried")
    write_record(real(record, status="incomplete", ended_by="interrupt"), base / "cut")
    return base


def test_repeats_and_their_simulation(place):
    done = sqsim("compare", "r1", "r2", "sim", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    (pair,) = json.loads(done.stdout)["measured"]
    assert (pair["real"], pair["simulated"]) == (["r1", "r2"], "sim")
    assert pair["timing"]["metrics"]["run_time_s"]["error_percent"] == pytest.approx(-100 / 11)
    assert len(pair["timing"]["kv"]["curves"]) == 3
    shown = sqsim("compare", "r1", "r2", "sim", cwd=place).stdout
    assert "- Token accounting: the same in" in shown
    assert "noise floor standard deviation (n - 1) of 2 runs" in shown
    assert "errors by KV pressure" in shown


def test_what_is_compared_says_on_what_it_rests(place):
    shown = sqsim("compare", "r1", "sim", cwd=place).stdout
    assert "\n- 1: every number is measured\n- 2: every number is simulated\n- 2: profile " in shown
    shown = sqsim("compare", "r1", "r2", cwd=place).stdout
    assert "\n- every number is measured\n" in shown
    assert "simulated\n" not in shown


@pytest.mark.parametrize(("name", "why"), [("hurried", "0.1 times as long"), ("cut", "ended before its end")])
def test_refused_timing_is_said_and_is_no_failure(place, name, why):
    done = sqsim("compare", name, "sim", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    (pair,) = json.loads(done.stdout)["measured"]
    assert pair["timing"] is None
    assert why in pair["timing_refused"]
    assert pair["accounting"][0]["turns"]["rows_differing"] == 0
    shown = sqsim("compare", name, "sim", cwd=place).stdout
    assert f"- timing of {name} is not compared: " in shown
    assert why in shown
    assert "- Token accounting: the same in" in shown
