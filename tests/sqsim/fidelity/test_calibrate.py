# SPDX-License-Identifier: Apache-2.0
"""Calibration: known coefficients come back, runs that cannot determine them are refused by name, delays reach the record."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from sqsim.cli.app import app
from sqsim.errors import InputError
from sqsim.fidelity.calibrate import calibrate
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.hardware import hardware
from sqsim.models.cost.profile import profile_text, read_profile
from sqsim.models.cost.step_cost import CostModel, StepWork
from sqsim.record.files import write_record
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

TRUTH = {
    "step": 2e-3,
    "decode_requests": 3e-4,
    "decode_context": 4e-6,
    "prefill": 5e-4,
    "prefill_rows": 6e-4,
    "prefill_tokens": 5e-5,
    "prefill_pairs": 2e-7,
    "prefix_tokens": 1e-5,
}


def seconds(prefill, lengths):
    """A step of tiny-llama by the formula, written out: a sum over what is in it."""
    new = sum(extend for extend, _ in prefill)
    pairs = sum(extend * before + extend * (extend + 1) // 2 for extend, before in prefill)
    charged = {
        "step": 1,
        "decode_requests": len(lengths),
        "decode_context": sum(lengths),
        "prefill": bool(prefill),
        "prefill_rows": len(prefill),
        "prefill_tokens": new,
        "prefill_pairs": pairs,
        "prefix_tokens": sum(before for _, before in prefill),
    }
    return sum(TRUTH[name] * times for name, times in charged.items())


def recorded(
    directory,
    seed,
    *,
    requests=8,
    steps=400,
    noise=0.0,
    slower=1.0,
    request_s=0.004,
    response_s=0.002,
    **changes,
):
    """A record of a run whose every step took what `seconds` says, up to a keyed noise; one request arrives and ends."""
    draw = random.Random(f"calibrate {seed}")
    schedule = directory / "schedule"
    schedule.mkdir(parents=True)
    now, events = 0.1, [{"ev": "arrive", "rid": "a", "t": request_s, "n_in": 4}]
    for step in range(1, steps + 1):
        prefill, lengths = [], []
        if draw.random() < 0.3:
            prefill = [
                (draw.randint(1, 200), draw.choice((0, draw.randint(1, 900))))
                for _ in range(draw.randint(1, min(3, requests)))
            ]
        else:
            lengths = [draw.randint(20, 1500) for _ in range(draw.randint(1, requests))]
        rows = [
            [f"p{n}", extend, before, before + extend, 0, 2000, 0, 0, 0]
            for n, (extend, before) in enumerate(prefill)
        ]
        rows += [[f"d{n}", 1, length - 1, length, 3, 10, 0, 0, 0] for n, length in enumerate(lengths)]
        events.append(
            {"ev": "step", "step": step, "mode": "extend" if prefill else "decode", "t0": now, "reqs": rows}
        )
        now += slower * seconds(prefill, lengths) * (1 + draw.uniform(-noise, noise))
        events.append({"ev": "result", "step": step, "t1": now, "fin": ["a"] if step == steps else []})
    events.append({"ev": "idle", "t": now})
    with gzip.open(schedule / "steps.jsonl.gz", "wt") as log:
        log.writelines(json.dumps(event) + "\n" for event in events)
    asked = {"rid": "a", "input_ids": [1, 2, 3, 4], "n_out": 1, "max_new_tokens": 5}
    answer = {"a": {"output_ids": [5], "t_submit": 0.0, "t_done": now + response_s}}
    arguments = {"max_running_requests": 8, "chunked_prefill_size": 512, "context_length": 4096}
    for name, value in (
        ("workload", {"requests": [asked]}),
        ("responses", answer),
        ("server", {"launch_args": arguments, "pool_tokens": 4096}),
    ):
        (schedule / f"{name}.json").write_text(json.dumps(value))
    run = {
        "kind": "real",
        "status": "complete",
        "scenario": {"model": "tiny-llama", "engine": {"gpu": "cpu", "kv_dtype": "bfloat16"}},
        "server": {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"},
        "versions": {"sglang": "0.5.23"},
        **changes,
    }
    write_record(RunRecord(run), directory / "record")
    schedule.rename(directory / "record" / "schedule")
    return directory / "record"


def calibrated(*made):
    return calibrate(made, "fitted")


def test_known_coefficients_come_back(tmp_path):
    found = calibrated(*(recorded(tmp_path / str(seed), seed) for seed in range(3)))
    assert found.coefficients == pytest.approx(TRUTH, rel=1e-4)
    assert max(abs(each.total_error) for each in found.held_out) < 1e-4
    assert found.profile.client.request_s == pytest.approx(0.004)
    assert found.profile.client.response_s == pytest.approx(0.002)
    cost = CostModel(
        read_profile(profile_text(found.profile, "a test"), "text"), geometry("tiny-llama"), hardware("cpu")
    )
    for prefill, lengths in ([], [300, 500]), ([(64, 0), (10, 700)], []):
        work = StepWork(prefill, len(lengths), sum(lengths), 0)
        assert cost.step_s(work) == pytest.approx(seconds(prefill, lengths), rel=1e-4)


def test_errors_of_the_fit_add_up_to_nothing_and_intervals_hold_the_truth(tmp_path):
    found = calibrated(*(recorded(tmp_path / str(seed), seed, noise=0.3) for seed in range(6)))
    assert abs(sum(each.total_error for each in found.held_out)) / 6 < 0.02
    for name, value in found.coefficients.items():
        assert abs(value - TRUTH[name]) < 5 * found.standard_errors[name] + 1e-3 * TRUTH[name], name
    names, numbers = found.profile.step.fit.names, found.profile.step.fit.covariance
    at = names.index("decode_full.per_token_s")
    sd_s = found.standard_errors["decode_context"] / geometry("tiny-llama").full_layers
    assert numbers[at][at] == pytest.approx(sd_s**2, rel=1e-4)


def test_the_spread_of_runs_is_what_their_steps_do_not_explain(tmp_path):
    """Six runs whose machine was up to 20 % faster or slower as a whole: sd of a uniform +-0.2 is 0.115."""
    found = calibrated(*(recorded(tmp_path / str(n), n, slower=1 + (n - 2.5) * 0.08) for n in range(6)))
    assert found.spread == pytest.approx(0.115, abs=0.05)
    assert found.profile.spread == found.spread
    alike = calibrated(*(recorded(tmp_path / f"alike {n}", n, noise=0.3) for n in range(6)))
    assert alike.spread < 0.01


def test_residuals_are_on_a_page_of_their_own(tmp_path):
    runs = [recorded(tmp_path / str(seed), seed, noise=0.1) for seed in range(2)]
    app(
        ["calibrate", *map(str, runs), "-o", str(tmp_path / "p.yaml"), "--residuals", str(tmp_path / "r.html")],
        standalone_mode=False,
    )
    page = (tmp_path / "r.html").read_text()
    assert str(runs[0]) in page
    assert page.count("decode</th>") >= 2
    assert "Each run, predicted by a fit to the others" in page
    assert 'src="http' not in page
    for one in calibrated(*runs).residuals:
        assert len(one.measured_s) == 400
        assert one.measured_s / one.predicted_s == pytest.approx(1, abs=0.15)


def test_a_stall_is_left_out(tmp_path):
    directory = recorded(tmp_path / "a", 0)
    log = directory / "schedule" / "steps.jsonl.gz"
    events = [json.loads(line) for line in gzip.decompress(log.read_bytes()).splitlines()]
    for event in events[200:]:
        for name in {"t", "t0", "t1"} & event.keys():
            event[name] += 30.0
    with gzip.open(log, "wt") as text:
        text.writelines(json.dumps(event) + "\n" for event in events)
    found = calibrated(directory)
    assert found.outliers == 1
    assert found.coefficients == pytest.approx(TRUTH, rel=1e-4)


def test_what_the_runs_do_not_determine_is_named(tmp_path):
    with pytest.raises(InputError, match=r"do not determine .*decode_requests .*load\.concurrency above 1"):
        calibrated(recorded(tmp_path / "one", 0, requests=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "simulated"}, "a simulated run"),
        ({"status": "incomplete"}, "incomplete"),
        ({"versions": {"sglang": "0.5.16"}}, "versions.sglang is '0.5.16', not '0.5.23'"),
        (
            {"scenario": {"model": "tiny-qwen3", "engine": {"gpu": "cpu", "kv_dtype": "bfloat16"}}},
            "scenario.model",
        ),
    ],
)
def test_a_run_of_another_kind_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        calibrated(recorded(tmp_path / "a", 0), recorded(tmp_path / "b", 1, **changes))


def test_a_record_without_a_schedule_is_refused(tmp_path):
    directory = recorded(tmp_path / "a", 0)
    (directory / "schedule").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="has no schedule/"):
        calibrated(directory)
    with pytest.raises(InputError, match="no record given"):
        calibrated()


def test_a_file_of_the_serving_benchmark_is_read(tmp_path):
    """One request a prefill: what it costs once and a row cannot be told apart, and need not."""
    path = tmp_path / "serve.jsonl"
    head = {
        "schema": "sqreal-serve/1",
        "model": "tiny-llama",
        "gpu": "cpu",
        "kv_dtype": "auto",
        "server": {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"},
        "versions": {"sglang": "0.5.23"},
    }
    decode = [
        {"kind": "decode", "requests": n, "context_tokens": c, "step_s": seconds([], [c] * n)}
        for n in (1, 4, 16, 64)
        for c in (100, 1000, 5000)
    ]
    prefill = [
        {"kind": "prefill", "new_tokens": n, "prefix_tokens": p, "seconds": seconds([(n, p)], [])}
        for n in (64, 512, 2048)
        for p in (0, 1000, 8000)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *decode, *prefill, {"kind": "end"}]))
    found = calibrated(path)
    expected = {**TRUTH, "prefill_rows": TRUTH["prefill"] + TRUTH["prefill_rows"]}
    del expected["prefill"]
    assert found.coefficients == pytest.approx(expected, rel=1e-4)
    assert found.profile.client is None
    path.write_text(json.dumps({"schema": "else"}) + "\n")
    with pytest.raises(InputError, match=r"serve\.jsonl: its first line is no sqreal-serve/1"):
        calibrated(path)


def test_the_ways_between_agent_and_scheduler_show_in_the_record(tmp_path):
    """One task alone: each turn ends later by both ways, and nothing else changes."""
    found = calibrated(*(recorded(tmp_path / str(seed), seed) for seed in range(2)))
    write_tasks(tmp_path / "tasks.jsonl", [chain(3)])

    def turns(profile):
        (tmp_path / "p.yaml").write_text(profile_text(profile, "a test"))
        engine = {"gpu": "cpu", "kv_capacity": 4096, "profile": str(tmp_path / "p.yaml")}
        content = {"traces": str(tmp_path / "tasks.jsonl"), "model": "tiny-llama", "engine": engine}
        return simulate(make_scenario({"load": {"concurrency": 1}, **content})).turns.to_pylist()

    slow, fast = turns(found.profile), turns(found.profile.model_copy(update={"client": None}))
    both = found.profile.client.request_s + found.profile.client.response_s
    for delayed, direct in zip(slow, fast, strict=True):
        for column in ("first_token_s", "end_s"):
            took = direct[column] - direct["submit_s"]
            assert delayed[column] - delayed["submit_s"] == pytest.approx(took + both)
        assert delayed["computed_tokens"] == direct["computed_tokens"]
