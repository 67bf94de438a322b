# SPDX-License-Identifier: Apache-2.0
"""Compaction, TTL pinning and pausing: what each does on chains made by hand, what it costs and what it may harm."""

from __future__ import annotations

import pytest

from sqsim.agent.turn_loop import Await, Clear, Finish, RunMain, Spawn
from sqsim.errors import ScenarioError
from sqsim.models.serving.tokens import count
from sqsim.policies.base import CursorView, View
from sqsim.policies.compaction import Compaction
from sqsim.policies.pause import MemoryGate
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import make_scenario
from tests.sqsim.agent.test_turn_loop import Drive, loop
from tests.sqsim.simulation.test_simulate import rows, run
from tests.sqsim.tasks import call, chain, task, turn

SESSION = {"engine": {"cache": "session", "kv_capacity": 20_000}}


def compacted(made, trigger: int, summary: int = 30, **options) -> Drive:
    drive = Drive(loop(made, Compaction(trigger_tokens=trigger, summary_tokens=summary), **options))
    while not isinstance(drive.log[-1], Finish):
        if isinstance(drive.log[-1], Await):
            drive.aux()
            drive._take(drive.loop.summarised(drive.log[-1].aux))
        else:
            drive.turn(aux=False)
    return drive


def test_a_summary_takes_the_place_of_all_that_was_read():
    """Prompts of this chain grow by 135 a turn from 70 on: 475 at boundary 3, where two responses of three were read."""
    drive = compacted(chain(4), trigger=400)
    assert drive.kinds()[:10] == ["RunMain", "RunTools"] * 3 + ["Spawn", "Await", "Clear", "RunMain"]
    assert drive.clears() == [(3, (0, 1))]
    prompts = [count(action.prompt) for action in drive.log if isinstance(action, RunMain)]
    # 475 becomes question 70 + summary 30 + the newest turn's 135.
    assert prompts == [70, 205, 340, 235, 370]
    assert [action.restart for action in drive.log if isinstance(action, RunMain)] == [False] * 3 + [
        True,
        False,
    ]


def test_the_summary_reads_all_of_the_context_and_its_cost_is_an_aux_threads(tmp_path):
    policy = {"name": "compaction", "trigger_tokens": 400, "summary_tokens": 30}
    record = run([chain(4, uses={4: (0,)})], tmp_path, policy=policy)
    (aux,) = rows(record.aux)
    assert (aux["prompt_tokens"], aux["output_tokens"], aux["named"]) == (475 + 50, 30, [0, 1])
    assert (aux["state"], aux["spawn_turn"], aux["applied_turn"]) == ("applied", 3, 3)
    turns = rows(record.turns)
    assert turns[3]["submit_s"] >= aux["end_s"] > aux["submit_s"] >= turns[2]["tool_end_s"]
    found = metrics(record)
    assert found["aux_output_tokens"] == 30
    assert found["kv_reads_aux_tokens"] > 0
    assert found["evictions"] == 2
    assert found["evicted_then_used"] == 1  # step 4 refers to cursor 0, which stands in the summary at best
    assert record.run["assumed"] == ["policy.summary_tokens"]


@pytest.mark.parametrize("cache", ["radix", "session"])
def test_behind_a_summary_only_what_stays_is_found_in_the_cache(tmp_path, cache):
    policy = {"name": "compaction", "trigger_tokens": 400, "summary_tokens": 30}
    record = run([chain(4)], tmp_path, policy=policy, engine={"cache": cache})
    behind = rows(record.turns)[3]
    assert behind["prompt_tokens"] == 235
    assert behind["cached_tokens"] == 70  # prefix and question
    assert rows(record.tasks)[0]["outcome"] == "completed"


def test_nothing_is_compacted_below_the_threshold_or_before_anything_was_read():
    assert compacted(chain(4), trigger=10_000).clears() == []
    view = View(1, 500, (CursorView(0, 0, 100, None),))
    assert Compaction(trigger_tokens=300).summarise(view) == 0


def test_a_summary_that_the_context_has_no_room_for_is_not_asked_for():
    drive = compacted(chain(4), trigger=300, summary=2000, context_length=1000)
    assert not [action for action in drive.log if isinstance(action, Spawn)]
    assert drive.log[-1] == Finish("completed", None)


def test_the_newest_turn_stays_even_if_its_call_failed():
    made = task(turn(call(0)), turn(call(None, 77)), turn(call(1)), name="t")
    drive = compacted(made, trigger=250)
    (clear,) = [action for action in drive.log if isinstance(action, Clear)][:1]
    assert [eviction.cursor for eviction in clear.clearing.evicted] == [0]
    prompts = [count(action.prompt) for action in drive.log if isinstance(action, RunMain)]
    assert prompts[2] == 70 + 30 + (20 + 5 + 10 + 77)


def two_agents(wait_s: float):
    """Each of two agents needs most of the pool, and waits for a tool between its turns."""
    return [
        task(turn(call(0, 900, latency_s=wait_s)), turn(call(1, 100, latency_s=wait_s)), name=name)
        for name in ("a", "b")
    ]


def pinned(tmp_path, policy, capacity=1900):
    engine = {"cache": "session", "kv_capacity": capacity, "max_new_tokens": 64}
    record = run(two_agents(2.0), tmp_path, policy=policy, engine=engine, load={"concurrency": 2})
    assert {row["outcome"] for row in rows(record.tasks)} == {"completed"}
    return record


def test_a_pin_keeps_an_idle_session_for_its_time_and_others_wait(tmp_path):
    """First come, first served: who waits for pinned memory also holds up the pin's owner, until the pin expires."""
    none, held = (pinned(tmp_path, policy) for policy in ({"name": "none"}, {"name": "pin_ttl", "ttl_s": 30.0}))
    first = [
        next(row["t0_s"] for row in rows(record.engine) if row["released_sessions"]) for record in (none, held)
    ]
    assert first[0] < 5
    assert first[1] > 30
    assert metrics(held)["evictions"] == 0


def test_a_pin_of_no_time_is_no_pin(tmp_path):
    """Known answer: `ttl_s: 0` is policy none on pinned sessions."""
    both = [metrics(pinned(tmp_path, policy)) for policy in ({"name": "none"}, {"name": "pin_ttl", "ttl_s": 0})]
    for found in both:
        del found["wall_s"]
    assert both[0] == both[1]


def test_pins_that_fill_the_pool_end_with_their_time(tmp_path):
    """Liveness: what waits for pinned memory gets it when the pins expire, and nothing fails by name."""
    found = metrics(pinned(tmp_path, {"name": "pin_ttl", "ttl_s": 50.0}, capacity=1300))
    assert found["run_time_s"] > 50


def test_pins_need_sessions():
    with pytest.raises(
        ScenarioError, match=r"pins sessions, and engine\.cache 'radix' has none; set engine\.cache"
    ):
        make_scenario({"traces": "t.jsonl", "policy": {"name": "pin_ttl"}})


def test_the_gate_lets_in_what_fits_and_wakes_the_first_who_paused():
    gate = MemoryGate(above_tokens=100, below_tokens=80)
    assert gate.ask("a", 60)
    assert gate.ask("b", 40)
    assert not gate.ask("c", 1)  # 101
    assert not gate.ask("d", 0)  # it is new, and c waits
    assert gate.resume() == []
    assert not gate.ask("b", 50)  # 110 at its next boundary: it gives up its place
    assert gate.resume() == ["c", "d"]
    gate.leave("a")
    assert gate.resume() == ["b"]


def test_one_agent_always_goes_on():
    gate = MemoryGate(above_tokens=10, below_tokens=10)
    assert gate.ask("a", 500)
    assert gate.ask("a", 900)
    assert not gate.ask("b", 1)
    assert gate.ask("sub", 500, may_pause=False)
    gate.leave("a")
    gate.leave("sub")
    assert gate.resume() == ["b"]


@pytest.mark.parametrize("cache", ["radix", "session"])
def test_pausing_keeps_contexts_within_the_pool_and_counts_its_cost(tmp_path, cache):
    made = [chain(6, 200, name=f"t{n}") for n in range(6)]
    engine = {"cache": cache, "kv_capacity": 3000, "max_new_tokens": 64}
    none, paused = (
        run(made, tmp_path, policy=policy, engine=dict(engine), load={"concurrency": 6})
        for policy in ({"name": "none"}, {"name": "pause"})
    )
    before, after = metrics(none), metrics(paused)
    assert after["tasks_completed"] == 6
    assert after["pauses"] > 0
    assert after["paused_s"] > 0
    assert (before["pauses"], before["paused_s"]) == (None, None)
    key = "reclaimed_tokens" if cache == "radix" else "released_sessions"
    assert after[key] < before[key], "those that go on find their KV"


def test_a_pool_with_room_for_all_pauses_nobody(tmp_path):
    made = [chain(6, name=f"t{n}") for n in range(4)]
    none, pause = (
        run(made, tmp_path, policy={"name": name}, load={"concurrency": 4}) for name in ("none", "pause")
    )
    assert metrics(pause)["pauses"] == 0
    assert none.turns == pause.turns


def test_where_agents_resume_is_below_where_they_pause():
    policy = {"name": "pause", "above": 0.5, "below": 0.6}
    with pytest.raises(ScenarioError, match=r"policy\.below: 0\.6 is above policy\.above 0\.5"):
        make_scenario({"traces": "t.jsonl", "policy": policy})
