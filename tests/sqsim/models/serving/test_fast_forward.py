# SPDX-License-Identifier: Apache-2.0
"""Law 7 in the scheduler: a macro-step leaves the same state as its rounds, formed one by one on a copy."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsim.models.serving.admission import QueueOrder
from sqsim.models.serving.fast_forward import FastForwardScheduler
from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.scheduler import Batch, Limits, Scheduler
from sqsim.models.serving.tokens import split, whole
from tests.sqsim.models.rounds import Server, fresh, request
from tests.sqsim.models.serving.test_scheduler import Agent

LIMITS = Limits(kv_capacity=1000, context_length=1000)


def state(scheduler: Scheduler) -> dict:
    """Everything that later rounds can depend on, and what requests have to show."""
    kv, tree = scheduler.kv, copy.deepcopy(scheduler.kv.tree)
    live = [(node.key, node.tokens) for node in tree.live_nodes()] if kv.pool.hybrid else []
    evicted = []
    while (node := tree.evict()) is not None:
        evicted.append(node.key)
    return {
        "requests": [
            (r.asked.rid, r.n_out, r.decode_steps, r.launched, r.prefix, r.branch, r.row.length, r.row.slid)
            for r in scheduler._in_flight()
        ],
        "waiting": [(r.asked.rid, r.prefix, r.n_out) for r in scheduler.waiting],
        "running": [r.asked.rid for r in scheduler.running],
        "unprocessed": [(b.number, [r.asked.rid for r in b.requests]) for b in scheduler._unprocessed],
        "pool": (kv.pool.free, kv.pool.window_free, kv.pool.rows_free),
        "usage": scheduler.usage(),
        "flags": (scheduler.full, scheduler.chunked, scheduler._left, scheduler.refresh_calls, scheduler.ratio),
        "tree": (tree.protected, evicted, live),
    }


@pytest.mark.parametrize("passes", [31, 32, 63, 64, 300])
def test_a_queue_is_left_as_every_pass_would_leave_it(passes):
    """A match that splits a node stamps its lower part; only a second one brings the others' stamps before it."""

    def leaves(arrange):
        kv, (a, b) = KvCache(LIMITS), (whole(1, 10), whole(2, 10))
        for text in (a, b):
            kv.tree.insert(text, 10)
        waiting = [request("b", (*split(b, 4)[0], *fresh(9))), request("a", (*a, *fresh(9)))]
        order = QueueOrder(kv, LIMITS)
        arrange(order, waiting)
        return order.refresh_calls, [node.key for node in iter(kv.tree.evict, None)]

    def one_by_one(order, waiting):
        for _ in range(passes):
            order.arrange(waiting)

    assert leaves(lambda order, waiting: order.skip(waiting, passes)) == leaves(one_by_one)


class TwinServer(Server):
    """Takes alike rounds together, and on a copy one by one; compares what both leave."""

    taken = 0

    def round(self) -> bool:
        scheduler, done = self.scheduler, self._pending
        copied, pending = copy.deepcopy((scheduler, done))
        batch = scheduler.next_batch()
        scheduler.check()
        if batch is not None and batch.macro_step is not None:
            self._compare(copied, pending, batch)
            self.taken += batch.steps
            done = done if batch.before is None else batch.before
        self._pending = batch
        if done is not None:
            self.ended += scheduler.process_result(done).finished
            scheduler.check()
        self.ended += scheduler.ended
        scheduler.ended.clear()
        return batch is not None or done is not None

    def _compare(self, copied: Scheduler, pending: Batch | None, batch: Batch) -> None:
        copied.__class__ = Scheduler
        formed = [] if pending is None else [pending]
        for step in range(batch.steps):
            if step:
                result = copied.process_result(formed.pop(0))
                assert result == ([], []), "the results within a macro-step start and end no request"
            single = copied.next_batch()
            formed.append(single)
            assert single.mode == "decode"
            assert not single.reclaimed + single.released_sessions + len(single.retracted)
            macro_step = batch.macro_step
            assert single.decode_context == macro_step.context + (step + 1) * macro_step.rows
            assert single.decode_window == macro_step.window + (step + 1) * macro_step.widening
        assert state(self.scheduler) == state(copied)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    page = draw(st.sampled_from([1, 1, 4, 16]))
    capacity = draw(st.one_of(st.integers(20, 400), st.integers(250, 800))) * 16
    hybrid = draw(st.integers(0, 3)) > 0
    return Limits(
        kv_capacity=capacity,
        swa_capacity=capacity * draw(st.integers(5, 10)) // 10 // 16 * 16 if hybrid else None,
        swa_window=draw(st.integers(8, 40)) if hybrid or draw(st.booleans()) else None,
        page_size=page,
        max_running=draw(st.sampled_from([2, 8, 16])),
        chunked_prefill=draw(st.integers(1, 20)) * 16,
        schedule_conservativeness=draw(st.sampled_from([0.01, 0.5, 1.0, 1.4])),
        mixed_chunk=draw(st.integers(0, 4)) == 0,
        schedule_policy=draw(st.sampled_from(["fcfs", "fcfs", "lpm"])),
        release_idle_sessions=draw(st.booleans()),
        refresh_calls=draw(st.integers(0, 31)),
    )


class LongWinded(Agent):
    """An agent whose turns say much, and ask for much more."""

    def _outputs(self) -> tuple[int, int]:
        says = self.draw(st.one_of(st.integers(1, 40), st.integers(1, 1500)))
        return says, says + self.draw(st.sampled_from([0, 100, 1000, 2000, 4000, 9000]))


def converse(bounds: Limits, data) -> TwinServer:
    server = TwinServer(FastForwardScheduler(bounds, lambda macro_step, most: min(most, 900)))
    agents = [LongWinded(server, f"s{i}", data.draw) for i in range(data.draw(st.integers(1, 9)))]
    idle = 0
    for _ in range(20_000):
        live = [agent.step() for agent in agents]
        busy = server.round()
        if not any(live) and not busy:
            return server
        idle = 0 if busy else idle + 1
        if idle > 3 and server.scheduler.waiting:
            server.scheduler.abort(server.scheduler.waiting[0].asked.rid)
        elif idle > 3 and server.scheduler.chunked is not None:
            server.scheduler.abort(server.scheduler.chunked.asked.rid)
    raise AssertionError("still busy")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(limits(), st.data())
def test_a_macro_step_leaves_the_state_that_its_rounds_leave(bounds, data):
    converse(bounds, data)
