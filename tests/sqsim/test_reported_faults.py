# SPDX-License-Identifier: Apache-2.0
"""Faults that users report of other simulators and replay tools, each kind held here by a test.

`HELD` names the test of every kind that applies to a simulation; those without a better place stand below.
Kinds that need a real server (a warm cache against a cold one, a server that dies) belong to sqreal.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sqsim.errors import RunError
from sqsim.record.metrics import metrics
from tests.sqsim.simulation.test_simulate import rows, run
from tests.sqsim.tasks import chain, task

TESTS = Path(__file__).parent

HELD = {
    # liveness
    "needs more KV than exists: endless requeue, drop, clip or crash": "simulation/test_simulate.py::test_what_can_never_fit_fails_by_name_and_the_run_goes_on",
    "KV far below peak demand livelocks": "simulation/test_simulate.py::test_kv_far_below_the_peak_demand_does_not_livelock",
    "preempted requests lose all progress": "test_reported_faults.py::test_a_retracted_request_goes_on_from_what_it_had_said",
    "a step with no work loops at dt = 0": "models/cost/test_step_cost.py::test_a_step_takes_time_whatever_is_in_it",
    "a fully cached batch that costs nothing": "test_reported_faults.py::test_a_fully_cached_prompt_still_takes_a_step",
    # wrong results
    "a cold request reuses a prefix, a repeat does not": "test_reported_faults.py::test_a_cold_prompt_reuses_nothing_and_an_identical_one_all_but_a_token_or_page",
    "prefix matched only on the first chunk": "test_reported_faults.py::test_a_chunked_prompt_is_cached_or_computed_once",
    "prefix hits of preempted requests counted as throughput": "test_reported_faults.py::test_throughput_counts_outputs_whatever_was_retracted",
    "TTFT taken at the first chunk": "simulation/test_simulate.py::test_ttft_ends_with_the_last_chunk",
    "token counts that exclude the prefix": "simulation/test_simulate.py::test_laws_on_random_runs",
    # input
    "zero tokens, NaN, garbage, negative or missing timestamps": "trace/test_store.py::test_a_line_of_bad_form_is_named",
    "an empty trace exits 0": "trace/test_store.py::test_a_bad_file_is_named",
    "unsorted arrivals": "test_reported_faults.py::test_arrivals_need_no_order",
    "a context beyond the model's": "test_reported_faults.py::test_a_context_beyond_the_models_fails_by_name",
    # scheduler rules
    "prefill first, retracted to the back, new_token_ratio": "fidelity/test_lockstep.py::test_every_recording_is_replayed_without_a_difference",
    # reports
    "a single-rate report is empty": "report/test_awkward_pages.py::test_few_points_never_give_an_empty_page",
    "values in the HTML differ from the JSON": "report/test_page.py::test_side_by_side_values_equal_the_json_at_every_concurrency",
    "two runs cannot be compared": "cli/test_cli.py::test_run_compare_report",
    # replay
    "tool waits cannot be capped": "agent/test_turn_loop.py::test_the_wait_is_tools_and_user_and_may_be_capped",
}


@pytest.mark.parametrize("place", HELD.values())
def test_every_kind_has_its_test(place):
    file, name = place.split("::")
    functions = {
        node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


TIGHT = {
    "engine": {"kv_capacity": 1000, "schedule_conservativeness": 0.05, "max_new_tokens": 400},
    "load": {"rate_per_s": 500.0, "arrivals": "uniform"},  # one round each: a queue would close admission
}


def crowd() -> list:
    """Eight answers that grow together past the pool: admission trusts the ratio, and some are taken back."""
    return [task(answer=150, name=f"t{n}", question=chain(1).question) for n in range(8)]


def test_a_retracted_request_goes_on_from_what_it_had_said(tmp_path):
    record = run(crowd(), tmp_path, **TIGHT)
    turns = rows(record.turns)
    again = [row for row in turns if row["retractions"]]
    assert again
    for row in again:
        # It prefills prompt and what it had said once more, and says only the rest.
        assert (
            row["prompt_tokens"]
            < row["computed_tokens"]
            <= row["retractions"] * (70 + 150) + row["prompt_tokens"]
        )
    assert {row["output_tokens"] for row in turns} == {150}


def test_throughput_counts_outputs_whatever_was_retracted(tmp_path):
    found = metrics(run(crowd(), tmp_path, **TIGHT))
    assert found["retractions"] > 0
    assert found["output_tokens"] == 8 * 150
    assert found["output_tok_s"] == 8 * 150 / found["run_time_s"]


@pytest.mark.parametrize("page", [1, 16])
def test_a_cold_prompt_reuses_nothing_and_an_identical_one_all_but_a_token_or_page(tmp_path, page):
    question = chain(1).question.model_copy(update={"tokens": 512, "hash_ids": (1, 2), "block_tokens": 256})
    same = [task(answer=9, name=name, question=question) for name in ("a", "b")]
    first, second = rows(run(same, tmp_path, engine={"page_size": page}, load={"concurrency": 1}).turns)
    assert first["cached_tokens"] == 0
    assert second["prompt_tokens"] == 552
    assert second["cached_tokens"] == 551 // page * page


def test_a_fully_cached_prompt_still_takes_a_step(tmp_path):
    question = chain(1).question.model_copy(update={"tokens": 512, "hash_ids": (1, 2), "block_tokens": 256})
    same = [task(answer=1, name=f"t{n}", question=question) for n in range(4)]
    turns = rows(run(same, tmp_path, load={"concurrency": 1}).turns)
    assert all(row["end_s"] > row["submit_s"] for row in turns)


def test_a_chunked_prompt_is_cached_or_computed_once(tmp_path):
    question = chain(1).question.model_copy(update={"tokens": 2048, "hash_ids": (1, 2), "block_tokens": 1024})
    longer = question.model_copy(update={"tokens": 3072, "hash_ids": (1, 2, 3)})
    made = [task(answer=4, name="a", question=question), task(answer=4, name="b", question=longer)]
    _, second = rows(run(made, tmp_path, engine={"chunked_prefill": 256}, load={"concurrency": 1}).turns)
    assert second["cached_tokens"] == 40 + 2048
    assert second["computed_tokens"] == 1024
    assert second["prefill_chunks"] == 4


def test_arrivals_need_no_order(tmp_path):
    made = [chain(1, name=f"t{at}", arrival_s=float(at)) for at in (7, 3, 5)]
    starts = {
        row["task"]: row["start_s"] for row in rows(run(made, tmp_path, load={"as_recorded": True}).tasks)
    }
    assert starts == {"t7": 4.0, "t3": 0.0, "t5": 2.0}


def test_a_context_beyond_the_models_fails_by_name(tmp_path):
    big = task(answer=20, name="big", question=chain(1).question.model_copy(update={"tokens": 5000}))
    record = run([big, chain(2, name="small")], tmp_path, engine={"context_length": 4096})
    assert {r["task"]: r["outcome"] for r in rows(record.tasks)} == {
        "big": "context_limit",
        "small": "completed",
    }


@pytest.mark.parametrize(
    "load",
    [
        {"rate_per_s": 1e-14},
        {"rate_per_s": 1e-14, "arrivals": "uniform"},
        {"rate_per_s": 5e-324},
        {"as_recorded": True, "speedup": 1e-15},
        {"as_recorded": True, "speedup": 5e-324},
    ],
)
def test_a_clock_that_cannot_tell_steps_apart_stops_the_run(tmp_path, load):
    """At 10^14 s a float64 second has no milliseconds: steps would take no time and latencies be 0, or nan."""
    with pytest.raises(
        RunError, match=r"clock stands at .* s, and beyond .* raise load\.rate_per_s or load\.speedup"
    ):
        run([chain(2, arrival_s=10.0 * n, name=f"t{n}") for n in range(3)], tmp_path, load=load)
