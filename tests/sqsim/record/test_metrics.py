# SPDX-License-Identifier: Apache-2.0
"""Metrics against values computed by hand from `tiny_record`, and the laws they obey on any record."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.record.definitions import DEFINITIONS
from sqsim.record.hindsight import judge_evictions
from sqsim.record.metrics import metrics
from sqsim.record.regret import regret_tokens
from sqsim.record.schema import AUX, ENGINE, EVICTIONS, TABLES, TASKS, TURNS, RunRecord
from tests.sqsim.tasks import CARRIES, chain
from tests.sqsim.tiny_record import table, tiny_record

# SPEC.md, "Metrics" (docs/METRICS.md).
CONTRACT = """tasks_total tasks_completed tasks_failed run_time_s output_tokens aux_output_tokens output_tok_s
total_tok_s output_tok_s_peak kv_capacity_tokens kv_usage_peak kv_usage_mean peak_tokens_mean peak_tokens_p50
peak_tokens_completed_mean kv_reads_main_tokens kv_reads_aux_tokens prefill_tokens cached_tokens evicted_tokens evictions
evicted_then_used evicted_uses aux_spawned aux_applied aux_late aux_cancelled retractions ttft_s_p50 ttft_s_p90 ttft_s_p99
tpot_s_p50 tpot_s_p90 tpot_s_p99 task_s_p50 task_s_p90 task_s_p99 simulated wall_s
kv_held_peak aux_malformed aux_ignored reclaimed_tokens released_sessions
aux_ttft_s_p50 aux_ttft_s_p90 aux_ttft_s_p99 aux_e2e_s_p50 aux_e2e_s_p90 aux_e2e_s_p99""".split()

BY_HAND = {
    "tasks_total": 2,
    "tasks_completed": 1,
    "tasks_failed": 1,
    "failed_context_limit": 1,
    "run_time_s": 20.0,  # a starts at 0, a ends at 20
    "output_tokens": 11 + 5,
    "aux_output_tokens": 6 + 4,
    "output_tok_s": 16 / 20,
    "total_tok_s": 26 / 20,
    "output_tok_s_peak": 11 / 10,  # from 1 s to 11 s all of turn 0, and turn 1 starts to speak at 12 s
    "kv_capacity_tokens": 1000,
    "kv_usage_peak": 300 / 1000,  # 1000 - 250 free - 450 evictable in the last row
    "kv_usage_mean": (1 * 100 + 2 * 200 + 7 * 110 + 10 * 300) / (20 * 1000),  # the last row is cut at 20 s
    "kv_held_peak": 750 / 1000,
    "peak_tokens_mean": 400.0,
    "peak_tokens_p50": 400.0,
    "peak_tokens_completed_mean": 300.0,
    "kv_reads_main_tokens": 1000,
    "kv_reads_aux_tokens": 50,
    "prefill_tokens": 190,
    "cached_tokens": 110,
    "aux_prefill_tokens": 20,
    "aux_cached_tokens": 300,
    "evicted_tokens": 40,
    "evictions": 1,
    "evicted_then_used": None,  # not judged
    "evicted_uses": None,
    "aux_spawned": 2,
    "aux_applied": 1,
    "aux_late": 0,
    "aux_cancelled": 1,
    "aux_malformed": 0,
    "aux_ignored": 0,
    "retractions": 1,
    "reclaimed_tokens": 35,
    "released_sessions": 2,
    "ttft_s_p50": 1.5,  # 1 and 2
    "ttft_s_p90": 1.9,
    "ttft_s_p99": 1.99,
    "tpot_s_p50": 1.1,  # 2 s / 10 and 8 s / 4
    "tpot_s_p90": 0.2 + 0.9 * 1.8,
    "tpot_s_p99": 0.2 + 0.99 * 1.8,
    "task_s_p50": 20.0,  # the failed task has no time of its own
    "task_s_p90": 20.0,
    "task_s_p99": 20.0,
    "aux_ttft_s_p50": 0.5,
    "aux_ttft_s_p90": 0.5,
    "aux_ttft_s_p99": 0.5,
    "aux_e2e_s_p50": 3.0,  # the cancelled one did not end by itself
    "aux_e2e_s_p90": 3.0,
    "aux_e2e_s_p99": 3.0,
    "pauses": None,
    "paused_s": None,
    "simulated": True,
    "wall_s": 0.5,
}


def test_every_key_of_the_contract_is_there_and_documented():
    assert set(CONTRACT) <= set(DEFINITIONS)
    assert all(metric.meaning for metric in DEFINITIONS.values())
    assert [key for key in metrics(tiny_record()) if not key.startswith("failed_")] == list(DEFINITIONS)


def test_every_metric_by_hand():
    found = metrics(tiny_record())
    assert set(found) == set(BY_HAND)
    for key, value in BY_HAND.items():
        assert found[key] == (value if value is None else pytest.approx(value, rel=1e-12)), key


def test_a_record_without_a_row_has_no_made_up_numbers():
    found = metrics(RunRecord(run={"kind": "real"}))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    zero = {
        "tasks_total",
        "output_tokens",
        "evictions",
        "evicted_then_used",
        "aux_spawned",
        "aux_late",
        "retractions",
    }
    assert all(found[key] == 0 for key in zero)
    undefined = {
        "run_time_s",
        "output_tok_s",
        "output_tok_s_peak",
        "kv_usage_peak",
        "kv_usage_mean",
        "ttft_s_p50",
        "reclaimed_tokens",
        "released_sessions",
        "wall_s",
    }
    assert all(found[key] is None for key in undefined)
    assert found["simulated"] is False


def test_a_server_without_a_step_log_tells_of_mains_retractions_only():
    """No engine table: turns say how often they were retracted, aux threads do not."""
    record = tiny_record()
    record.engine = ENGINE.empty_table()
    found = metrics(record)
    assert found["retractions"] is None
    assert {found[key] for key in ("kv_usage_peak", "kv_usage_mean", "kv_held_peak")} == {None}
    assert found["reclaimed_tokens"] is found["released_sessions"] is None
    record.aux = AUX.empty_table()
    assert metrics(record)["retractions"] == 1


def test_types_are_plain():
    """JSON needs no help: no numpy numbers."""
    assert {type(value) for value in metrics(tiny_record()).values()} <= {int, float, bool, type(None)}


# -- throughput


def turns(*rows):
    """(first token, end, output tokens) of one-turn tasks that are submitted at 0."""
    return table(
        TURNS,
        *(
            (f"t{i}", 0, 0.0, 0.0, first, end, None, 9, 0, 9, n, 9, 0, 0, 1)
            for i, (first, end, n) in enumerate(rows)
        ),
    )


def lasting(end_s, turn_table):
    tasks = table(TASKS, ("t0", 0.0, end_s, "completed", 1, 0, 0, 0, 0, None))
    return RunRecord(run={"kind": "simulated"}, tasks=tasks, turns=turn_table)


@pytest.mark.parametrize(
    ("end_s", "rows", "peak"),
    [
        (100.0, [(0.0, 10.0, 101)], 101 / 10),
        (100.0, [(0.0, 50.0, 101)], (1 + 20) / 10),  # the window begins with the first token
        (100.0, [(5.0, 5.0, 7)], 7 / 10),  # all at once
        (100.0, [(0.0, 1.0, 1), (10.0, 11.0, 1), (20.5, 21.0, 1)], 2 / 10),  # both ends belong to a window
        (4.0, [(0.0, 4.0, 9)], 9 / 4),  # a run shorter than the window
        (100.0, [(3.0, None, 1)], 1 / 10),  # died after its first token
        (100.0, [(None, None, 0)], None),
        (0.0, [(0.0, 0.0, 1)], None),  # no time passed
    ],
)
def test_peak_throughput_by_hand(end_s, rows, peak):
    assert metrics(lasting(end_s, turns(*rows)))["output_tok_s_peak"] == pytest.approx(peak)


def output_so_far(rows, at, including):
    """The curve itself, in fractions: a jump of one token, then a ramp of the others."""
    total = Fraction(0)
    for first, end, tokens in rows:
        if at > first or (including and at == first):
            total += 1
        total += (tokens - 1) * min(max(Fraction(at - first, end - first), 0), 1)
    return total


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(2, 50)), min_size=1, max_size=6))
def test_peak_throughput_is_exact(drawn):
    """No window of 10 s, wherever it begins, holds more; and one holds as much."""
    rows = [(first, first + length, tokens) for first, length, tokens in drawn]
    starts = {kink - shift for first, end, _ in rows for kink in (first, end) for shift in (0, 10)}
    grid = starts | {Fraction(start, 2) for start in range(-20, 140)}
    best = max(output_so_far(rows, at + 10, True) - output_so_far(rows, at, False) for at in grid)
    found = metrics(lasting(1000.0, turns(*((float(first), float(end), n) for first, end, n in rows))))
    assert found["output_tok_s_peak"] == pytest.approx(float(best / 10), rel=1e-9)


# -- aux threads


@pytest.mark.parametrize(
    ("applied", "state", "main_steps", "late"),
    [
        (1, "applied", 2, 0),  # spawned at 0, applied at the next boundary
        (2, "late", 3, 1),
        (None, "cancelled", 1, 0),  # there was no boundary after its spawn
        (None, "cancelled", 2, 1),  # main went on without it, then ended
        (1, "malformed", 2, 0),
        (3, "malformed", 4, 1),
    ],
)
def test_late_is_what_missed_the_boundary_after_its_spawn(applied, state, main_steps, late):
    record = tiny_record()
    record.aux = table(AUX, ("c", 0, 1.0, 1.5, 4.0, state, 100, 110, 100, 6, [0], 0, applied, None))
    record.turns = table(
        TURNS, *(("c", turn, 0.0, 0.0, 1.0, 2.0, None, 9, 0, 9, 2, 9, 0, 0, 1) for turn in range(main_steps))
    )
    found = metrics(record)
    assert found["aux_late"] == late
    assert found["aux_applied"] == (state in {"applied", "late"})
    assert found["aux_applied"] + found["aux_cancelled"] + found["aux_malformed"] == found["aux_spawned"] == 1


# -- hindsight


def evicted(*rows):
    """(task, turn, cursor) evictions that nobody has judged."""
    return table(
        EVICTIONS, *((task, turn, 1.0, cursor, 10, "oldest", 1, None, None) for task, turn, cursor in rows)
    )


def test_evictions_are_judged_by_the_steps_that_follow():
    """Cursor 0 is used at steps 1, 3 and by the answer (5); cursor 1 never, but it is read at step 2."""
    task = chain(5, uses={1: (0,), 3: (0,), 5: (0,)})
    table_ = evicted(("t", 2, 0), ("t", 3, 0), ("t", 4, 0), ("t", 5, 0), ("t", 3, 1))
    judged = judge_evictions(table_, {"t": task})
    assert judged.schema.equals(EVICTIONS)
    assert judged["used_later"].to_pylist() == [2, 2, 1, 1, 0]  # the eviction comes before the step of its turn
    assert judged["last_use_turn"].to_pylist() == [5, 5, 5, 5, 2]
    assert judged.drop_columns(["used_later", "last_use_turn"]).equals(
        table_.drop_columns(["used_later", "last_use_turn"])
    )


def test_a_cursor_counts_once_and_with_all_its_later_uses():
    record = tiny_record()
    tasks = {"t": chain(5, uses={1: (0,), 3: (0,), 5: (0,)}), "u": chain(3)}
    record.evictions = judge_evictions(evicted(("t", 2, 0), ("t", 4, 0), ("u", 2, 0)), tasks)
    found = metrics(record)
    assert (found["evictions"], found["evicted_tokens"]) == (3, 30)
    assert (found["evicted_then_used"], found["evicted_uses"]) == (1, 2)


def test_without_references_nothing_is_judged():
    task = chain(3, carries=CARRIES.model_copy(update={"references": "absent"}))
    judged = judge_evictions(evicted(("t", 2, 0)), {"t": task})
    assert judged["used_later"].to_pylist() == judged["last_use_turn"].to_pylist() == [None]
    record = tiny_record()
    record.evictions = judged
    assert metrics(record)["evicted_then_used"] is None


def test_no_evictions_to_judge():
    judged = judge_evictions(EVICTIONS.empty_table(), {})
    assert judged.schema.equals(EVICTIONS)
    assert not judged.num_rows


# -- regret


def holding(record, *resident):
    position = TURNS.get_field_index("resident_tokens_after")
    record.turns = record.turns.set_column(position, TURNS.field(position), pa.array(resident, pa.int64()))
    return record


def test_regret_by_hand():
    """Task a holds 110 tokens from 0 to 10 s and 205 until 20 s; the oracle 100 and 105. Task b did not complete."""
    held, best = 110 * 10 + 205 * 10, 100 * 10 + 105 * 10
    assert regret_tokens(tiny_record(), holding(tiny_record(), 100, 777, 105)) == pytest.approx(
        (held - best) / best
    )


def test_regret_is_zero_against_itself_and_undefined_against_nothing():
    assert regret_tokens(tiny_record(), tiny_record()) == 0
    assert regret_tokens(tiny_record(), holding(tiny_record(), 0, 0, 0)) is None
    assert regret_tokens(tiny_record(), RunRecord(run={})) is None


def test_regret_counts_tasks_that_completed_in_both():
    fewer = tiny_record()
    fewer.tasks = fewer.tasks.filter(pc.equal(fewer.tasks["task"], "b"))
    assert regret_tokens(tiny_record(), fewer) is None


# -- laws on any record

seconds = st.integers(0, 10**15).map(lambda ns: ns / 1e9)  # a run of 5e-324 s has an infinite throughput
counts = st.integers(0, 10**9)


@st.composite
def records(draw):
    """Random tables that respect order in time and the sum of the KV columns, nothing else."""
    capacity = draw(st.integers(1, 10**6))
    names = [f"t{index}" for index in range(draw(st.integers(0, 4)))]
    tasks, steps, engine = [], [], []
    for name in names:
        start, end = sorted((draw(seconds), draw(seconds)))
        outcome = draw(st.sampled_from(["completed", "context_limit", "kv_capacity"]))
        tasks.append((name, start, end, outcome, 1, 0, draw(counts), draw(counts), draw(counts), None))
        for turn in range(draw(st.integers(0, 3))):
            submit, first, last = sorted((draw(seconds), draw(seconds), draw(seconds)))
            prompt, cached = draw(counts), draw(counts)
            steps.append(
                (
                    name,
                    turn,
                    submit,
                    submit,
                    first,
                    last,
                    None,
                    prompt + cached,
                    cached,
                    prompt,
                    draw(st.integers(1, 99)),
                    9,
                    0,
                    0,
                    1,
                )
            )
    for _ in range(draw(st.integers(0, 4))):
        t0, t1 = sorted((draw(seconds), draw(seconds)))
        shares = sorted(draw(st.integers(0, capacity)) for _ in range(4))
        kv = [high - low for low, high in pairwise((0, *shares, capacity))]
        engine.append((t0, t1, "decode", 1, 1, 1, 1, 1, 0, *kv, float(sum(kv[:3])), None, 0, 0, 0, 0.5))
    return RunRecord(
        run={"kind": "simulated", "kv_capacity": {"tokens": capacity}},
        tasks=table(TASKS, *tasks),
        turns=table(TURNS, *steps),
        engine=table(TABLES["engine"], *engine),
    )


@given(records())
def test_laws(record):
    found = metrics(record)
    json.dumps(found, allow_nan=False)  # never nan
    for name in ("ttft_s", "tpot_s", "task_s"):
        low, middle, high = (found[f"{name}_p{p}"] for p in (50, 90, 99))
        assert low is None or 0 <= low <= middle <= high
    if found["kv_usage_peak"] is not None:
        assert 0 <= found["kv_usage_peak"] <= found["kv_held_peak"] <= 1
    if found["kv_usage_mean"] is not None:
        assert 0 <= found["kv_usage_mean"] <= found["kv_usage_peak"] * (1 + 1e-9)
    assert found["tasks_completed"] + found["tasks_failed"] == found["tasks_total"]
    assert sum(value for key, value in found.items() if key.startswith("failed_")) == found["tasks_failed"]
    assert (
        found["prefill_tokens"] + found["cached_tokens"]
        == pc.sum(record.turns["prompt_tokens"], min_count=0).as_py()
    )
