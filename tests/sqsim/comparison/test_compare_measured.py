# SPDX-License-Identifier: Apache-2.0
"""Measured against simulated: signed errors, noise floor, KV curves, errors by pressure, lock-step, and what is refused.

The measured records are simulated ones relabelled, every time stretched by a known factor.
"""

from __future__ import annotations

import copy
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.comparison.kv_usage import Usage, _distance, usage
from sqsim.comparison.measured import TIMED, Measured
from sqsim.comparison.noise import hold
from sqsim.comparison.runs import compare
from sqsim.comparison.verdicts import verdicts
from sqsim.errors import InputError
from sqsim.record.metrics import metrics
from sqsim.record.schema import AUX, ENGINE, RunRecord
from tests.sqsim.real_records import SERVER, real, simulated, with_column
from tests.sqsim.tiny_record import tiny_record

SCHEDULES = Path(__file__).parents[2] / "data" / "sglang-schedules"


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> RunRecord:
    return simulated(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def evicting(tmp_path_factory) -> RunRecord:
    policy = {"name": "sidequest", "k": 1, "recall": 1.0, "aux_tokens": 20, "after_eviction": "reprefill"}
    return simulated(tmp_path_factory.mktemp("evicting"), policy=policy)


def held(*records: RunRecord, **options) -> Measured:
    """The one pair of these records."""
    (found,) = compare(*records, **options).measured
    return found


def test_a_run_against_itself_is_off_by_nothing(evicting):
    found = held(real(evicting), evicting)
    (account,) = found.accounting
    assert account.same
    assert (account.turns.rows, account.aux.rows, account.evictions.rows) == (
        *(evicting.turns.num_rows, evicting.aux.num_rows, evicting.evictions.num_rows),
    )
    assert min(account.aux.rows, account.evictions.rows) > 0
    assert set(found.timing.metrics) == set(TIMED)
    for each in found.timing.metrics.values():
        assert (each.error_percent, each.within) == (0.0, True)
    assert found.timing.kv.mean.normalised == found.timing.kv.mean.absolute == 0
    assert (found.warnings, found.unlike) == ([], [])


def test_errors_have_the_sign_of_the_simulation(plain):
    """A server that takes 1.25 times as long: a simulation 20 % too fast, its throughput 25 % too high."""
    timing = held(real(plain, 1.25), plain).timing
    assert timing.noise_floor == "unknown: one run"
    for key, error in (("run_time_s", -20), ("output_tok_s", 25), ("ttft_s_p90", -20), ("tpot_s_p50", -20)):
        assert timing.metrics[key].error_percent == pytest.approx(error)
        assert (timing.metrics[key].error_sd, timing.metrics[key].within) == (None, None)
    assert timing.metrics["kv_usage_mean"].error_percent == pytest.approx(0)
    assert timing.metrics["kv_usage_mean"].within is True, "within 5 %, whatever the noise"
    for one in timing.by_pressure:
        for errors in (one.ttft, one.e2e, one.tpot):
            assert errors.turns == 0 or errors.median_percent == pytest.approx(-20)
    assert timing.kv.mean.normalised == pytest.approx(0, abs=1e-9)
    assert timing.kv.mean.absolute > 1


def test_repeats_are_the_noise_floor(plain):
    """1.0, 1.1 and 1.2 times as long: mean 1.1, standard deviation 0.1, the simulation one of them below."""
    found = held(*(real(plain, slower) for slower in (1.0, 1.1, 1.2)), plain)
    run_time = metrics(plain)["run_time_s"]
    got = found.timing.metrics["run_time_s"]
    assert found.real == ["1", "2", "3"]
    assert found.timing.noise_floor == "standard deviation (n - 1) of 3 runs"
    assert got.measured == pytest.approx([run_time, 1.1 * run_time, 1.2 * run_time])
    assert (got.mean, got.sd) == pytest.approx((1.1 * run_time, 0.1 * run_time))
    assert (got.error_percent, got.error_sd, got.within) == (pytest.approx(-100 / 11), pytest.approx(-1), True)
    assert len(found.timing.kv.curves) == 4
    assert found.timing.kv.between_measured.absolute > 0
    assert found.timing.by_pressure[0].e2e.median_percent == pytest.approx(-100 / 11)


@pytest.mark.parametrize(
    ("measured", "simulated_", "error_percent", "error_sd", "within"),
    [
        ([100.0], 104.9, 4.9, None, True),
        ([100.0], 105.1, 5.1, None, None),  # whether that is noise nobody knows
        ([99.0, 101.0], 104.0, 4.0, 4 / 2**0.5, True),  # within 5 %
        ([99.0, 101.0], 106.0, 6.0, 6 / 2**0.5, False),
        ([90.0, 110.0], 120.0, 20.0, 20 / 200**0.5, True),  # within 2 standard deviations
        ([90.0, 110.0], 60.0, -40.0, -40 / 200**0.5, False),
        ([100.0, 100.0], 101.0, 1.0, None, True),
        ([0.0, 0.0], 3.0, None, None, False),
        ([0, 0], 0, 0.0, None, True),
        ([0.3, 0.1 + 0.2], 0.303, 1.0, None, True),  # a spread of rounding is none
        ([None, 100.0], 104.0, 4.0, None, True),
        ([None], 104.0, None, None, None),
        ([100.0, 100.0], None, None, None, None),
    ],
)
def test_the_rule_by_hand(measured, simulated_, error_percent, error_sd, within):
    found = hold(measured, simulated_)
    known = [value for value in measured if value is not None]
    assert found.mean == (pytest.approx(statistics.fmean(known)) if known else None)
    assert found.sd == (pytest.approx(statistics.stdev(known), abs=1e-12) if len(known) > 1 else None)
    assert found.error_percent == (None if error_percent is None else pytest.approx(error_percent))
    assert found.error_sd == (None if error_sd is None else pytest.approx(error_sd))
    assert found.within is within


# -- what is refused, and what is said


REFUSED = [
    ({"time_scale": 0.05}, "0.05 times as long"),
    ({"await_aux": True}, "turns waited for aux threads"),
    ({"status": "incomplete", "ended_by": "x"}, "(x)"),
]


@pytest.mark.parametrize(("run", "said"), REFUSED)
def test_false_times_are_refused_by_name_and_tokens_are_not(plain, run, said):
    found = compare(real(plain, **run), plain, names=["server", "paper"])
    (pair,) = found.measured
    assert pair.timing is None
    assert pair.timing_refused.startswith("server: ")
    assert said in pair.timing_refused
    assert said in found.timing_refused["server"]
    assert pair.accounting[0].turns.rows == plain.turns.num_rows
    assert {key for key, row in found.metrics.items() if row.change_percent[1] is None} > {
        *("run_time_s", "ttft_s_p50", "output_tok_s", "kv_usage_mean", "retractions"),
    }
    assert found.metrics["output_tokens"].change_percent == [0.0, 0.0]
    plain_json = json.loads(json.dumps(found.to_json(), allow_nan=False))["measured"][0]
    assert (plain_json["timing"], plain_json["timing_refused"]) == (None, pair.timing_refused)
    assert any("Timing is not compared" in line for line in verdicts(pair))


def test_what_the_simulation_does_not_know_is_said(plain):
    records = [
        real(
            plain,
            unlike_the_scenario={"engine.max_running": {"scenario": 256, "server": 64}},
            not_modelled=["enable_lora: True"],
            refused=["too long"],
        )
        for _ in range(2)
    ]
    found = held(*records, plain, names=["a", "b", "sim"])
    assert found.warnings == [
        "a, b: engine.max_running: the scenario states 256, the server has 64",
        "a, b: the server does what is not modelled: enable_lora: True",
        "a, b: the server refused 1 requests, the first: too long",
    ]
    assert found.unlike == ["engine.max_running: the server has 64, the simulation 256"]


def test_a_server_without_a_step_log(plain):
    record = real(plain)
    record.engine = ENGINE.empty_table()
    found = held(record, plain)
    assert "without a step log" in found.warnings[0]
    assert found.timing.kv is None
    assert [one.name for one in found.timing.by_pressure] == ["all"]
    assert found.timing.metrics["kv_usage_mean"].error_percent is None
    assert found.timing.metrics["run_time_s"].within is True
    assert any(line.startswith("KV usage: not known") for line in verdicts(found))


def test_runs_in_which_nothing_ran_agree_on_nothing(plain):
    idle = RunRecord(run=copy.deepcopy(plain.run))
    found = held(RunRecord(run=real(plain).run), idle)
    json.dumps(compare(idle, idle).to_json(), allow_nan=False)
    assert verdicts(found)[0] == "Token accounting: nothing to compare, as no turn was run."
    assert "no time is known in all runs" in verdicts(found)[2]
    found = held(real(plain), real(plain), idle)
    assert f"0 of 0 turns differ and {plain.turns.num_rows} are in one run only" in verdicts(found)[0]
    assert " open" not in verdicts(found)[2]


# -- which runs belong together


def test_only_runs_of_one_experiment_are_paired(plain):
    other = copy.deepcopy(plain.run["scenario"])
    other["seed"] = 7
    found = compare(real(plain, scenario=other), plain)
    assert found.measured == []
    assert found.differing["scenario.seed"] == [7, 0]


def test_the_servers_own_limits_make_no_other_experiment(plain):
    """A scenario's limits need not be the server's: what differs is said beside the numbers."""
    ours = copy.deepcopy(plain)
    ours.run["scenario"]["engine"] |= {"page_size": 16, "profile": "fitted", "kv_capacity": 9}
    ours.run["kv_capacity"]["tokens"] = 9
    found = held(real(plain), ours)
    assert found.unlike == [
        "engine.page_size: the server has 1, the simulation 16",
        "engine.kv_capacity: the server has 3000, the simulation 9",
    ]


@pytest.mark.parametrize(
    ("run", "groups"),
    [
        ({"server": {**SERVER, "model": "/tmp/b/tiny-llama"}}, 1),  # made anew for each run
        ({"server": {**SERVER, "device": "cuda"}}, 2),
        ({"time_scale": 0.5}, 2),
        ({"versions": {"sglang": "0.6"}}, 2),
        ({"kv_capacity": {"tokens": 99, "swa_tokens": None}}, 2),
    ],
)
def test_repeats_ran_on_alike_servers(plain, run, groups):
    assert len(compare(real(plain), real(plain, **run), plain).measured) == groups


def test_every_simulation_meets_every_group(plain):
    records = [real(plain), plain, copy.deepcopy(plain)]
    assert [(pair.real, pair.simulated) for pair in compare(*records).measured] == [(["1"], "2"), (["1"], "3")]


# -- lock-step


def with_schedule(place: Path, recording: str = "Q") -> Path:
    shutil.copytree(SCHEDULES / recording, place / "schedule")
    return place


def test_the_schedule_beside_a_record_is_held_in_lockstep(plain, tmp_path):
    places = [with_schedule(tmp_path / "a"), tmp_path / "b", tmp_path / "sim"]
    found = held(real(plain), real(plain), plain, names=["a", "b", "sim"], directories=places)
    (step,) = found.lockstep
    assert (step.run, step.differing) == ("a", 0)
    assert step.batches > 10
    assert found.holds_in_lockstep is True
    assert found.without_schedule == ["b"]
    said = verdicts(found)[1]
    assert said.startswith(f"Lock-step: no difference in {step.batches:,} recorded batches")
    assert said.endswith("b has no schedule/ in the record's directory.")


def test_a_schedule_that_differs_says_where(plain, tmp_path):
    place = with_schedule(tmp_path / "a")
    server = json.loads((place / "schedule" / "server.json").read_text())
    server["pool_tokens"] += 1
    (place / "schedule" / "server.json").write_text(json.dumps(server))
    found = held(real(plain), plain, names=["a", "sim"], directories=[place, tmp_path])
    assert found.holds_in_lockstep is False
    assert found.lockstep[0].differing >= len(found.lockstep[0].differences) > 0
    assert "a differs in" in verdicts(found)[1]


def test_no_schedule_is_said_and_a_broken_one_is_an_error(plain, tmp_path):
    found = held(real(plain), plain, directories=[tmp_path, tmp_path])
    assert found.holds_in_lockstep is None
    assert verdicts(found)[1].startswith("Lock-step: not checked, 1 has no schedule/ in the record's directory")
    (tmp_path / "schedule").mkdir()
    with pytest.raises(InputError, match="schedule"):
        compare(real(plain), plain, directories=[tmp_path, tmp_path])


# -- accounting of aux threads and evictions


def test_aux_threads_and_evictions_are_accounted_by_task_and_index(evicting):
    base = real(evicting)
    states, tokens = base.aux["state"].to_pylist(), base.evictions["tokens"].to_pylist()
    with_column(base, "aux", "state", ["late", *states[1:]])
    with_column(base, "evictions", "tokens", [*tokens[:-1], tokens[-1] + 5])
    (account,) = held(base, evicting).accounting
    assert not account.same
    assert account.turns.same
    (aux,) = account.aux.differences
    assert (aux.index, aux.column, aux.base, aux.other) == (0, "state", "late", states[0])
    (eviction,) = account.evictions.differences
    assert (eviction.column, eviction.base - eviction.other) == ("tokens", 5)
    base.aux = AUX.empty_table()
    (account,) = held(base, evicting).accounting
    assert (account.aux.rows, account.aux.rows_in_one) == (0, evicting.aux.num_rows)
    assert "are in one run only" in verdicts(held(base, evicting))[0]


# -- the KV curve


def test_usage_by_hand():
    """`tiny_record`: 100, 200, 110 and 300 of 1,000 tokens in rows from 0, 1, 3 and 10 s on; the run ends at 20 s."""
    found = usage(tiny_record())
    assert found.at(np.array([0.0, 0.5, 1.0, 2.9, 9.9, 10.0, 20.0])) == pytest.approx(
        [0.1, 0.1, 0.2, 0.2, 0.11, 0.3, 0.3]
    )
    assert found.integral(np.array([0.0, 1.0, 3.0, 10.0, 20.0, 99.0])) == pytest.approx(
        [0, 0.1, 0.5, 1.27, 4.27, 4.27]
    )


@st.composite
def usages(draw) -> Usage:
    """Rows one behind the other, some with a gap before them."""
    steps = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=5)
    )
    begin, end, now = [], [], 0.0
    for gap, length, _ in steps:
        begin.append(now + gap)
        now = begin[-1] + length
        end.append(now)
    return Usage(*map(np.array, (begin, end, [share for *_, share in steps])), now)


@given(usages(), usages(), usages())
def test_distance_is_a_distance(one, other, third):
    for name in ("normalised", "absolute"):
        there, back = getattr(_distance(one, other), name), getattr(_distance(other, one), name)
        assert 0 <= there <= 100 + 1e-9
        assert there == pytest.approx(back, abs=1e-9)
        assert getattr(_distance(one, one), name) == 0
    # Over normalised time all runs are equally long, so that detours are never shorter.
    near, far = _distance(one, other).normalised, _distance(other, third).normalised
    assert _distance(one, third).normalised <= near + far + 1e-9


@given(usages(), usages())
def test_distance_is_what_a_fine_grid_says(one, other):
    longest = max(one.run_time_s, other.run_time_s)
    middles = (np.arange(60_000) + 0.5) / 60_000
    apart = np.abs(one.at(middles * longest) - other.at(middles * longest))
    assert _distance(one, other).absolute == pytest.approx(100 * apart.mean(), abs=0.1)
    apart = np.abs(one.at(middles * one.run_time_s) - other.at(middles * other.run_time_s))
    assert _distance(one, other).normalised == pytest.approx(100 * apart.mean(), abs=0.1)


def test_bins_hold_every_turn_once(plain):
    everything, *bins = held(real(plain), plain).timing.by_pressure
    assert [one.name for one in bins] == ["below 50 %", "50 to 80 %", "80 to 95 %", "from 95 %"]
    assert everything.e2e.turns == plain.turns.num_rows == sum(one.e2e.turns for one in bins)
    assert sum(one.e2e.turns > 0 for one in bins) > 1, "the fixture crowds its pool"
