# SPDX-License-Identifier: Apache-2.0
"""Law 7: alike rounds taken in one move equal rounds taken one by one.

Step times and waits are drawn as dyadic rationals, so that sums are exact whichever way they are taken: the records must be
equal, not close. With a real profile they agree to 1e-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from sqsim.models.serving.fast_forward import FastForwardScheduler
from sqsim.record.schema import TABLES, RunRecord
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Task
from sqsim.trace.store import write_tasks
from sqsim.trace.synthesis import synthesise
from tests.sqsim.kernel_records import write_kernel_record
from tests.sqsim.simulation.test_simulate import POLICIES
from tests.sqsim.simulation.test_simulate import scenarios as simulate_scenarios
from tests.sqsim.tasks import families

_TERM = "evidence: assumed, source: a test"


def dyadic_profile(model: str, slopes: Sequence[int]) -> str:
    """A profile of which every time is a whole number of 2 ** -24 seconds: sums stay below 2 ** 53 of them."""
    context, window, token, pair, prefix, request = (slope / 2.0**24 for slope in slopes)
    tick = 2.0**-10
    curve = f"{{{_TERM}, points: [[1, {tick}], [5, {2 * tick}], [9, {2 * tick}], [521, {16.75 * tick}]]}}"
    lines = [
        "schema: sqsim-profile/1",
        f"name: {model}-cpu-dyadic",
        f"model: {model}",
        "gpu: cpu",
        "engine: none",
        "version: none",
        "weights: bfloat16",
        "kv_dtype: bfloat16",
        "note: for a test",
        f"step: {{{_TERM}, fixed_s: {tick}, per_layer_s: {tick / 4}}}",
        f"dense: {curve}",
        f"lm_head: {curve}",
        f"decode_full: {{{_TERM}, points: [[1, {tick}]], per_token_s: {context}}}",
        f"prefill_full: {{{_TERM}, fixed_s: {tick}, per_request_s: {request}, per_token_s: {token}, per_pair_s: {pair}}}",
        f"prefix_read: {{{_TERM}, per_token_s: {prefix}}}",
    ]
    if model != "tiny-llama":
        lines += [
            f"moe: {curve}",
            f"decode_sliding: {{{_TERM}, points: [[1, {tick}]], per_token_s: {window}}}",
            f"prefill_sliding: {{{_TERM}, fixed_s: {tick}, per_request_s: {request}, per_token_s: {token}, per_pair_s: {pair}}}",
        ]
    return "\n".join(lines) + "\n"


@st.composite
def scenarios(draw: st.DrawFn, directory: Path) -> dict:
    page = draw(st.sampled_from([1, 1, 4, 16]))
    chosen = draw(st.sampled_from(POLICIES))
    model = draw(st.sampled_from(["tiny-llama", "tiny-gpt-oss"]))
    slopes = draw(st.lists(st.integers(0, 40), min_size=6, max_size=6))
    profile = directory / "profile.yaml"
    profile.write_text(dyadic_profile(model, slopes))
    fixed, per_token = draw(st.sampled_from([1, 40, 4000])) / 2.0**14, draw(st.integers(0, 40)) / 2.0**24
    engine = {
        "gpu": "cpu",
        "cache": chosen["cache"],
        "profile": str(profile),
        "kernel_costs": write_kernel_record(directory / "kernels.jsonl", fixed, per_token),
        "kv_capacity": draw(st.one_of(st.integers(60, 3000), st.integers(1000, 20_000))) * page,
        "page_size": page,
        "chunked_prefill": page * draw(st.sampled_from([16, 64, 512])),
        "max_running": draw(st.sampled_from([2, 4, 256])),
        "max_new_tokens": draw(st.sampled_from([64, 300, 6000])),
        "schedule_conservativeness": draw(st.sampled_from([0.1, 1.0])),
    }
    if model == "tiny-gpt-oss":
        engine |= draw(
            st.sampled_from(
                [{"swa_pool": False}, {"swa_full_tokens_ratio": 0.3}, {"swa_full_tokens_ratio": 0.8}]
            )
        )
    load = draw(
        st.one_of(
            st.integers(1, 8).map(lambda n: {"concurrency": n}),
            st.sampled_from([0.5, 4.0, 64.0]).map(lambda rate: {"rate_per_s": rate, "arrivals": "uniform"}),
            st.sampled_from([1.0, 4.0]).map(lambda speedup: {"as_recorded": True, "speedup": speedup}),
        )
    )
    return {
        "model": model,
        "engine": engine,
        "policy": chosen["policy"],
        "load": load,
        "apply": draw(st.sampled_from(["boundary", "turn_end"])),
        "max_turns": draw(st.sampled_from(["none", 3])),
        "seed": draw(st.integers(0, 3)),
    }


def arriving(found: Sequence[Task], sixteenths: Sequence[int]) -> list[Task]:
    """Root tasks with an arrival each."""
    return [
        task.model_copy(update={"arrival_s": sixteenths[index % len(sixteenths)] / 16})
        if task.parent is None
        else task
        for index, task in enumerate(found)
    ]


def both_ways(found: Sequence[Task], directory: Path, scenario: dict) -> tuple[RunRecord, RunRecord]:
    path = directory / "trace.jsonl"
    write_tasks(path, found)
    made = make_scenario({"traces": str(path), **scenario})
    return simulate(made), simulate(made, step_by_step=True)


def first_difference(a: pa.Table, b: pa.Table) -> str:
    for name in a.schema.names:
        for row, values in enumerate(zip(a[name].to_pylist(), b[name].to_pylist(), strict=False)):
            if values[0] != values[1]:
                return f"{name}, row {row}: {values[0]!r} at once, {values[1]!r} step by step"
    return f"{a.num_rows} rows at once, {b.num_rows} step by step"


def check_equal(at_once: RunRecord, step_by_step: RunRecord) -> None:
    for name in TABLES:
        a, b = at_once.table(name), step_by_step.table(name)
        assert a.equals(b), f"{name}: {first_difference(a, b)}"
    assert at_once.run == step_by_step.run


class Watched(FastForwardScheduler):
    """Counts the rounds that were taken together, and audits itself behind them (law 2)."""

    rounds = 0

    def next_batch(self):
        batch = super().next_batch()
        if batch is not None and batch.steps > 1:
            Watched.rounds += batch.steps
            self.check()
        return batch


def held_both_ways(tmp_path_factory, data, most) -> None:
    directory = tmp_path_factory.mktemp("run")
    sizes = {"max_tokens": data.draw(st.sampled_from([60, 60, 700])), **most}
    found = data.draw(families(**sizes))
    scenario = data.draw(scenarios(directory))
    found = arriving(found, data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqsim.simulation.engine.FastForwardScheduler", Watched)
        check_equal(*both_ways(found, directory, scenario))


@settings(max_examples=150)
@given(st.data())
def test_alike_rounds_at_once_equal_single_rounds(tmp_path_factory, data):
    held_both_ways(tmp_path_factory, data, {"max_tasks": 5})


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_alike_rounds_at_once_equal_single_rounds_in_ten_thousand_runs(tmp_path_factory, part):
    """In parts, which the cores share."""

    @seed(part)
    @settings(max_examples=500, database=None)
    @given(st.data())
    def hold(data):
        held_both_ways(tmp_path_factory, data, {"max_tasks": 10})

    hold()


def check_close(at_once: RunRecord, step_by_step: RunRecord) -> None:
    """Counts and names are equal, times and means to 1e-9."""
    for name, schema in TABLES.items():
        a, b = at_once.table(name), step_by_step.table(name)
        assert a.num_rows == b.num_rows, f"{name}: {first_difference(a, b)}"
        for column in schema:
            if column.type != pa.float64():
                assert a[column.name].equals(b[column.name]), f"{name}: {first_difference(a, b)}"
            elif a.num_rows:
                x, y = (table[column.name].to_numpy() for table in (a, b))
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"{name}.{column.name}")
    runs = [dict(record.run) for record in (at_once, step_by_step)]
    paused = [run.pop("paused", None) for run in runs]
    assert runs[0] == runs[1]
    assert paused[0] == (paused[1] and pytest.approx(paused[1], rel=1e-9))


@settings(max_examples=30)
@given(families(max_tokens=300), simulate_scenarios(), st.booleans())
def test_with_a_real_profile_both_agree_to_rounding(tmp_path_factory, found, scenario, measured):
    if measured:  # attention and MoE kernels of gpt-oss-20b on an H100, Poisson arrivals among the loads
        scenario = {
            **scenario,
            "model": "gpt-oss-20b",
            "engine": {**scenario["engine"], "gpu": "h100-sxm"},
        }
    scenario["engine"].setdefault("gpu", "cpu")
    check_close(*both_ways(found, tmp_path_factory.mktemp("run"), scenario))


def test_ordinary_agents_on_an_h100(tmp_path):
    """FRAMES-like tasks, where macro-steps cover nearly every step."""
    found = list(synthesise("frames", 12, seed=0, scale=0.3))
    for cache, policy in (
        ("radix", {"name": "keep_last", "n": 2, "after_eviction": "reprefill"}),
        ("session", {"name": "sidequest", "after_eviction": "in_place"}),
    ):
        for capacity in (20_000, 400_000):
            engine = {"gpu": "h100-sxm", "cache": cache, "kv_capacity": capacity}
            scenario = {"model": "gpt-oss-20b", "engine": engine, "policy": policy, "load": {"concurrency": 6}}
            Watched.rounds = 0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("sqsim.simulation.engine.FastForwardScheduler", Watched)
                at_once, step_by_step = both_ways(found, tmp_path, scenario)
            check_close(at_once, step_by_step)
            if capacity == 400_000:
                assert Watched.rounds > 0.9 * sum(at_once.engine["steps"].to_pylist())
