# SPDX-License-Identifier: Apache-2.0
"""The laws of LAWS.md on whole runs, under hypothesis: random tasks, memory, pages, caches, policies, loads."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import ScenarioError
from sqsim.models.serving.fast_forward import FastForwardScheduler
from sqsim.models.serving.scheduler import Scheduler
from sqsim.record.files import identity, write_record
from sqsim.record.metrics import metrics
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation import engine as engine_module
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Task
from sqsim.trace.store import write_tasks
from tests.sqsim.kernel_records import write_kernel_record
from tests.sqsim.tasks import call, chain, families, task, turn

POLICIES = [
    {"cache": "radix", "policy": {"name": "none"}},
    {"cache": "session", "policy": {"name": "none"}},
    {"cache": "radix", "policy": {"name": "keep_last", "n": 1, "after_eviction": "reprefill"}},
    {"cache": "session", "policy": {"name": "keep_last", "n": 1, "after_eviction": "in_place"}},
    {"cache": "radix", "policy": {"name": "oracle", "after_eviction": "reprefill"}},
    {"cache": "session", "policy": {"name": "oracle", "after_eviction": "in_place"}},
    *(
        {
            "cache": cache,
            "policy": {
                "name": "sidequest",
                "k": 2,
                "recall": 0.7,
                "false_rate": 0.2,
                "aux_tokens": 20,
                "after_eviction": after,
                "aux_start": start,
            },
        }
        for cache, after in (("radix", "reprefill"), ("session", "in_place"))
        for start in ("after_main_prefill", "with_main")
    ),
    *(
        {"cache": cache, "policy": policy}
        for cache in ("radix", "session")
        for policy in (
            {"name": "compaction", "trigger_tokens": 150, "summary_tokens": 20},
            {"name": "pause", "above": 0.5, "below": 0.3},
        )
    ),
    {"cache": "session", "policy": {"name": "pin_ttl", "ttl_s": 1.5}},
]


def run(made: Sequence[Task], directory: Path, *, step_by_step: bool = False, **changes) -> RunRecord:
    """Replay tasks on the tiny model; `changes` are top-level scenario keys, `engine` merges into the defaults."""
    path = directory / "trace.jsonl"
    write_tasks(path, made)
    engine = {"gpu": "cpu", "kv_capacity": 20_000, "max_new_tokens": 128, **changes.pop("engine", {})}
    content = {"traces": str(path), "model": "tiny-llama", "engine": engine, **changes}
    return simulate(make_scenario(content), step_by_step=step_by_step)


def rows(table) -> list[dict]:
    return table.to_pylist()


@st.composite
def scenarios(draw: st.DrawFn) -> dict:
    page = draw(st.sampled_from([1, 1, 4, 16]))
    chosen = draw(st.sampled_from(POLICIES))
    model = draw(st.sampled_from(["tiny-llama", "tiny-gpt-oss"]))
    load = draw(
        st.one_of(
            st.integers(1, 6).map(lambda n: {"concurrency": n}),
            st.sampled_from([0.5, 4.0, 64.0]).map(lambda rate: {"rate_per_s": rate}),
        )
    )
    return {
        "model": model,
        "engine": {
            "cache": chosen["cache"],
            "kv_capacity": draw(st.integers(60, 3000)) * page,
            "page_size": page,
            "chunked_prefill": page * draw(st.sampled_from([16, 64, 512])),
            "max_running": draw(st.sampled_from([2, 4, 256])),
            "max_new_tokens": draw(st.sampled_from([64, 300])),
            "schedule_conservativeness": draw(st.sampled_from([0.1, 1.0])),
            "swa_full_tokens_ratio": draw(st.sampled_from([0.3, 0.8])) if model == "tiny-gpt-oss" else 0.8,
        },
        "policy": chosen["policy"],
        "load": load,
        "apply": draw(st.sampled_from(["boundary", "turn_end"])),
        "max_turns": draw(st.sampled_from(["none", 3])),
        "seed": draw(st.integers(0, 3)),
    }


class Watched:
    """A scheduler that audits itself after everything that happens to it (law 2, and law 3's progress)."""

    rounds = 0

    def next_batch(self):
        batch = super().next_batch()
        self.check()
        Watched.rounds += 1
        assert Watched.rounds < 200_000, "no end in sight"
        return batch

    def process_result(self, batch):
        result = super().process_result(batch)
        self.check()
        return result

    def drop(self, session, spans):
        freed = super().drop(session, spans)
        self.check()
        return freed


class WatchedSteps(Watched, Scheduler):
    pass


class WatchedMacroSteps(Watched, FastForwardScheduler):
    pass


@settings(max_examples=120, deadline=None)
@given(families(), scenarios(), st.booleans())
def test_laws_on_random_runs(tmp_path_factory, found, scenario, step_by_step):
    audited_run(tmp_path_factory, found, scenario, step_by_step=step_by_step)


@pytest.mark.long
@settings(max_examples=5000, deadline=None)
@given(families(max_tasks=8, max_turns=10), scenarios(), st.booleans())
def test_laws_on_many_random_runs(tmp_path_factory, found, scenario, step_by_step):
    audited_run(tmp_path_factory, found, scenario, step_by_step=step_by_step)


def audited_run(tmp_path_factory, found, scenario, *, step_by_step: bool) -> None:
    directory = tmp_path_factory.mktemp("run")
    Watched.rounds = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqsim.simulation.engine.Scheduler", WatchedSteps)
        patch.setattr("sqsim.simulation.engine.FastForwardScheduler", WatchedMacroSteps)
        record = run(found, directory, step_by_step=step_by_step, **scenario)
    check_laws(record, found, scenario)


def check_laws(record: RunRecord, found: Sequence[Task], scenario: dict) -> None:
    # Law 1: every task ends exactly once, completed or by a known name.
    tasks = {row["task"]: row for row in rows(record.tasks)}
    assert sorted(tasks) == sorted(t.task_id for t in found)
    assert {t["outcome"] for t in tasks.values()} <= {
        "completed",
        "context_limit",
        "kv_capacity",
        "turn_limit",
        "parent_ended",
        "out_of_memory",
    }
    # Law 2: memory is conserved in every row, and all of it free or in the tree at the end.
    capacity = record.run["kv_capacity"]["tokens"]
    engine = rows(record.engine)
    for row in engine:
        held = [row[f"kv_{part}"] for part in ("running", "idle_sessions", "aux", "tree_evictable", "free")]
        assert min(held) >= 0
        assert sum(held) == capacity
        assert 0 <= row["kv_used_mean"] <= capacity
    # Law 3: time goes forward, rows do not overlap.
    for before, after in itertools.pairwise(engine):
        assert before["t0_s"] < before["t1_s"] <= after["t0_s"] + 1e-12
    # Law 6: tokens add up.
    by_id = {t.task_id: t for t in found}
    for row in rows(record.turns):
        if row["first_token_s"] is None or tasks[row["task"]]["outcome"] in {"kv_capacity", "out_of_memory"}:
            continue
        assert row["submit_s"] <= row["admit_s"] < row["first_token_s"] <= row["end_s"]
        if row["retractions"] == 0:
            assert row["cached_tokens"] + row["computed_tokens"] == row["prompt_tokens"]
        step = by_id[row["task"]]
        recorded = step.turns[row["turn"]] if row["turn"] < len(step.turns) else step.answer
        assert row["output_tokens"] == recorded.output_tokens
        assert row["resident_tokens_after"] - row["prompt_tokens"] - row["output_tokens"] in {
            -1,
            0,
        }  # RULES.md, rule 27
    if scenario["policy"]["name"] == "none" and all(t["outcome"] == "completed" for t in tasks.values()):
        assert pc.sum(record.turns["output_tokens"]).as_py() == sum(
            sum(s.output_tokens for s in (*t.turns, *([t.answer] if t.answer else []))) for t in found
        )
        assert record.evictions.num_rows == 0
    # Law 8: an aux thread's cost is counted, cancelled or not, and it never names what came after its fork.
    for row in rows(record.aux):
        opened = {
            c.cursor: at
            for at, s in enumerate(by_id[row["task"]].turns)
            for c in s.calls
            if c.cursor is not None
        }
        assert all(opened[cursor] < row["spawn_turn"] for cursor in row["named"])
        assert row["prompt_tokens"] > row["fork_tokens"]
        if row["state"] in {"applied", "late"}:
            assert row["output_tokens"] > 0
            awaited = scenario["policy"]["name"] == "compaction"  # the main step waits for its summary
            assert (
                row["applied_turn"] == row["spawn_turn"] if awaited else row["applied_turn"] > row["spawn_turn"]
            )
    # Law 9: evictions at boundaries, never of what no main step has read, each cursor once.
    seen = set()
    for row in rows(record.evictions):
        assert row["age_turns"] >= 2
        assert (row["task"], row["cursor"]) not in seen
        seen.add((row["task"], row["cursor"]))
    found_metrics = metrics(record)
    assert found_metrics["tasks_total"] == len(found)
    json.dumps(found_metrics, allow_nan=False)


@settings(max_examples=15, deadline=None)
@given(families(), scenarios())
def test_the_same_scenario_gives_the_same_bytes(tmp_path_factory, found, scenario):
    """Law 5."""
    base = tmp_path_factory.mktemp("twice")
    marks = []
    for name in ("a", "b"):
        write_record(run(found, base, **scenario), base / name)
        marks.append(identity(base / name))
    assert marks[0] == marks[1]


def test_a_cold_request_reuses_nothing_and_a_repeat_all_but_its_last_token(tmp_path):
    same = [chain(1, name="a"), chain(1, name="b")]
    cold = run(same, tmp_path, load={"concurrency": 1})
    first = rows(cold.turns)[0]
    assert first["cached_tokens"] == 0
    shared = next(r for r in rows(cold.turns) if r["task"] == "b" and r["turn"] == 0)
    assert shared["cached_tokens"] == 40  # the shared prefix; the question is another text


def test_ttft_ends_with_the_last_chunk(tmp_path):
    """LAWS.md, "Faults reported of other simulators": they take a chunked request's TTFT at its first chunk."""
    made = task(answer=20, question=chain(1).question.model_copy(update={"tokens": 1000}))
    row = rows(run([made], tmp_path, engine={"chunked_prefill": 128}).turns)[0]
    chunked = run([made], tmp_path, engine={"chunked_prefill": 128})
    prefills = [r for r in rows(chunked.engine) if r["mode"] == "prefill"]
    assert row["prefill_chunks"] == 9  # 1,040 tokens by 128
    assert row["first_token_s"] == prefills[-1]["t1_s"]
    assert len(prefills) == 9


def test_what_can_never_fit_fails_by_name_and_the_run_goes_on(tmp_path):
    big = task(answer=20, name="big", question=chain(1).question.model_copy(update={"tokens": 5000}))
    record = run([big, chain(2, name="small")], tmp_path, engine={"kv_capacity": 1000})
    outcomes = {r["task"]: r["outcome"] for r in rows(record.tasks)}
    assert outcomes == {"big": "kv_capacity", "small": "completed"}
    assert metrics(record)["failed_kv_capacity"] == 1


def test_kv_far_below_the_peak_demand_does_not_livelock(tmp_path):
    made = [chain(6, name=f"t{n}") for n in range(8)]
    record = run(
        made, tmp_path, engine={"kv_capacity": 1200, "schedule_conservativeness": 0.1}, load={"concurrency": 8}
    )
    assert metrics(record)["tasks_completed"] == 8


def test_an_eviction_in_place_takes_its_time_on_the_gpu(tmp_path):
    """One agent alone: each eviction holds its next step up, by a fixed time and for each token behind what goes."""
    settings = {
        "policy": {"name": "keep_last", "n": 1, "after_eviction": "in_place"},
        "load": {"concurrency": 1},
    }
    ends, records = [], []
    for fixed_s, per_token_s in ((2.0**-10, 0.0), (1.0, 0.0), (1.0, 2.0**-10)):
        costs = write_kernel_record(tmp_path / "kernels.jsonl", fixed_s, per_token_s)
        engine = {"cache": "session", "kernel_costs": costs}
        records.append(run([chain(6)], tmp_path, engine=engine, **settings))
        ends.append(rows(records[-1].tasks)[0]["end_s"])
    boundaries = {row["turn"] for row in rows(records[0].evictions)}
    assert len(boundaries) == len(rows(records[0].evictions)) == 5
    assert ends[1] - ends[0] == pytest.approx(5 * (1 - 2.0**-10))
    # From the cut on the row holds what goes, a call of 10 and its response of 100, and the 35 tokens that main said last.
    assert ends[2] - ends[1] == pytest.approx(5 * (10 + 100 + 35) / 2**10)
    assert records[2].run["kernel_costs"]["in_place"] == {
        "fixed_s": 1.0, "per_token_s": 2.0**-10, "evidence": "measured", "source": "compact_spans in kernels.jsonl",
    }  # fmt: skip


def test_what_an_eviction_costs_is_assumed_until_it_is_measured(tmp_path):
    policy = {"name": "keep_last", "n": 1, "after_eviction": "in_place"}
    record = run([chain(3)], tmp_path, engine={"cache": "session"}, policy=policy)
    assert record.run["kernel_costs"]["in_place"]["evidence"] == "assumed"
    assert run([chain(3)], tmp_path).run["kernel_costs"] == {}  # nothing is evicted in place


def test_in_place_computes_only_what_is_new_and_reprefill_what_is_behind_the_cut(tmp_path):
    made = chain(6, response=200)
    computed = {}
    for cache, after in (("session", "in_place"), ("radix", "reprefill")):
        policy = {"name": "keep_last", "n": 1, "after_eviction": after}
        record = run([made], tmp_path, engine={"cache": cache}, policy=policy)
        computed[after] = [r["computed_tokens"] for r in rows(record.turns)]
        prompts = [r["prompt_tokens"] for r in rows(record.turns)]
    assert (
        computed["in_place"][1:] == [200] * 6
    )  # the response; the extra decode row behind the stop token left all of the output (rule 27)
    assert computed["reprefill"][1] == 200
    cut = 70 + 25  # what stands before the first evicted span
    assert computed["reprefill"][2] == prompts[2] - cut


def test_positions_count_all_that_was_dropped_in_place(tmp_path):
    policy = {"name": "keep_last", "n": 1, "after_eviction": "in_place"}
    record = run([chain(6, response=200)], tmp_path, engine={"cache": "session"}, policy=policy)
    evicted = rows(record.evictions)
    assert len(evicted) > 1
    for each in rows(record.turns):
        assert each["shift"] == sum(gone["tokens"] for gone in evicted if gone["turn"] <= each["turn"])


def test_aux_shares_the_whole_context_after_main_prefill(tmp_path):
    for cache, after in (("session", "in_place"), ("radix", "reprefill")):
        policy = {"name": "sidequest", "k": 2, "after_eviction": after, "aux_tokens": 20}
        record = run([chain(5)], tmp_path, engine={"cache": cache}, policy=policy)
        for row in rows(record.aux):
            assert row["cached_tokens"] == row["fork_tokens"]
            assert row["prompt_tokens"] == row["fork_tokens"] + 12


def test_sub_agents_run_beside_the_loop_and_the_parent_waits(tmp_path):
    from sqsim.trace.schema import Parent, Spawn

    child = chain(4, name="child").model_copy(
        update={"parent": Parent(task_id="p", turn=0), "spawn": Spawn(turn=0, join_turn=1)}
    )
    record = run([chain(2, name="p"), child], tmp_path, load={"concurrency": 1})
    tasks = {r["task"]: r for r in rows(record.tasks)}
    turns = [r for r in rows(record.turns) if r["task"] == "p"]
    assert tasks["child"]["parent"] == "p"
    assert tasks["child"]["start_s"] == turns[0]["end_s"]
    assert turns[1]["submit_s"] == tasks["child"]["end_s"]


def test_a_parent_that_fails_takes_unstarted_sub_agents_with_it_by_name(tmp_path):
    from sqsim.trace.schema import Parent, Spawn

    child = chain(1, name="child").model_copy(
        update={"parent": Parent(task_id="p", turn=1), "spawn": Spawn(turn=1, join_turn=2)}
    )
    record = run([chain(3, name="p"), child], tmp_path, max_turns=1)
    assert {r["task"]: r["outcome"] for r in rows(record.tasks)} == {"p": "turn_limit", "child": "parent_ended"}


def test_loads_start_tasks_when_they_say(tmp_path):
    made = [chain(1, name=f"t{n}", arrival_s=10.0 + 4 * n) for n in range(4)]
    starts = lambda record: [r["start_s"] for r in sorted(rows(record.tasks), key=lambda r: r["task"])]  # noqa: E731
    assert starts(run(made, tmp_path, load={"as_recorded": True, "speedup": 2.0})) == [0.0, 2.0, 4.0, 6.0]
    assert starts(run(made, tmp_path, load={"rate_per_s": 0.25, "arrivals": "uniform"})) == [
        4.0,
        8.0,
        12.0,
        16.0,
    ]
    poisson = starts(run(made, tmp_path, load={"rate_per_s": 0.25}))
    assert poisson == sorted(poisson)
    closed = run(made, tmp_path, load={"concurrency": 1})
    ends = sorted(r["end_s"] for r in rows(closed.tasks))
    assert starts(closed)[1:] == ends[:-1]


def test_resampling_draws_with_replacement_and_keeps_shared_prefixes(tmp_path):
    record = run(
        [chain(1, name="a"), chain(2, name="b")], tmp_path, tasks=7, resample=True, load={"concurrency": 7}
    )
    names = [r["task"] for r in rows(record.tasks)]
    assert len(set(names)) == 7
    assert {name.split("#")[0] for name in names} <= {"a", "b"}
    with pytest.raises(ScenarioError, match=r"^scenario: tasks: .* resample"):
        run([chain(1)], tmp_path, tasks=2)


def test_context_resets_rewrite_history(tmp_path):
    from sqsim.trace.schema import Reset

    made = task(turn(call(0)), turn(call(1)), turn(call(2), reset=Reset(keep_tokens=60)), turn(call(3)))
    for cache in ("radix", "session"):
        turns = rows(run([made], tmp_path, engine={"cache": cache}).turns)
        assert [r["prompt_tokens"] for r in turns] == [70, 205, 100, 235, 370]
        assert turns[2]["cached_tokens"] == 40  # the prefix, from the tree


def test_references_that_a_policy_needs_must_be_there(tmp_path):
    made = chain(2)
    bare = made.model_copy(update={"carries": made.carries.model_copy(update={"references": "absent"})})
    with pytest.raises(ScenarioError, match=r"^scenario: policy\.name: .* references"):
        run([bare], tmp_path, engine={"cache": "session"}, policy={"name": "oracle"})
    with pytest.raises(ScenarioError, match=r"^scenario: load\.as_recorded: .* arrival_s"):
        run([made], tmp_path, load={"as_recorded": True})


def test_the_engine_has_no_clock_of_its_own():
    assert dataclasses.is_dataclass(engine_module.Submission)


def test_oracle_never_evicts_what_is_used_later_and_sidequest_pays_for_its_threads(tmp_path):
    made = [chain(8, name=f"t{n}", uses={7: (0, 3), 8: (1,)}) for n in range(4)]
    oracle = metrics(
        run(made, tmp_path, engine={"cache": "session"}, policy={"name": "oracle"}, load={"concurrency": 4})
    )
    assert oracle["evicted_then_used"] == 0
    assert oracle["evictions"] > 0
    careless = {"name": "sidequest", "k": 1, "recall": 1.0, "false_rate": 1.0, "aux_tokens": 20}
    wrong = metrics(run(made, tmp_path, engine={"cache": "session"}, policy=careless, load={"concurrency": 4}))
    assert wrong["evicted_then_used"] == 12
    assert wrong["evicted_uses"] == 12
    assert wrong["aux_output_tokens"] > 0


def test_a_prefills_context_is_its_prefix_and_its_new_tokens(tmp_path):
    """One task alone, whose prompts are 40 + 30, then 135 and 135 more: 35 tokens of output and 100 of response a turn."""
    found = rows(run([chain(2)], tmp_path, load={"concurrency": 1}).engine)
    prefills = [row for row in found if row["mode"] == "prefill"]
    assert [row["context_tokens"] for row in prefills] == [70, 205, 340]
    assert prefills[0]["new_tokens"] == 70
    assert prefills[1]["new_tokens"] < 205  # the rest was cached: a context counts it too
