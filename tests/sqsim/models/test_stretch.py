"""Law 7 in the scheduler: a stretch leaves what its rounds, taken one by one on a copy, leave."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Server
from test_batching import Agent

from sqsim.models.batching import Limits
from sqsim.models.stretch import StretchingScheduler


def state(scheduler: StretchingScheduler) -> dict:
    """Everything that later rounds can depend on, and what requests have to show."""
    last = scheduler._unprocessed
    tree = copy.deepcopy(scheduler.kv.tree)
    live = [(node.key, node.tokens) for node in tree.live_nodes()] if scheduler.kv.pool.hybrid else []
    evicted = []
    while (node := tree.evict()) is not None:
        evicted.append(node.key)
    return {
        "requests": [
            (r.rid, r.n_out, r.decode_steps, r.launched, r.prefix, r.branch, r.row and vars_of(r.row))
            for r in scheduler._in_flight()
        ],
        "waiting": [(r.rid, r.prefix, r.n_out) for r in scheduler.waiting],
        "running": [r.rid for r in scheduler.running],
        "batches": [(b.number, b.rows(), b.decode_context, b.decode_window) for b in last[-1:]],
        "unprocessed": [(b.number, [r.rid for r in b.requests]) for b in last],
        "pool": (scheduler.kv.pool.free, scheduler.kv.pool.window_free, scheduler.kv.pool.rows_free),
        "usage": scheduler.usage(),
        "flags": (scheduler.full, scheduler.chunked, scheduler._left, scheduler.refresh_calls, scheduler.ratio),
        "tree": (tree.protected, evicted, live),
    }


def vars_of(row) -> tuple:
    return row.length, row.shared, row.slid


class TwinServer(Server):
    """Takes what is alike both ways, and compares."""

    stretched = 0

    def round(self) -> bool:
        scheduler, done = self.scheduler, self._pending
        batch = scheduler.next_batch()
        if done is not None and batch is not None and (rounds := scheduler.alike(done, batch)):
            rounds = min(rounds, 900)
            one_by_one, *pending = copy.deepcopy((scheduler, done, batch))
            for _ in range(rounds):
                result = one_by_one.process_result(pending.pop(0))
                assert result == ([], []), "a result of a stretch starts and ends nobody"
                pending.append(one_by_one.next_batch())
                assert pending[-1].mode == "decode"
                assert not pending[-1].reclaimed + pending[-1].released_sessions + len(pending[-1].retracted)
            growth = scheduler.growth(batch)
            done = scheduler.stretch(batch, rounds, growth)
            scheduler.check()
            assert state(scheduler) == state(one_by_one)
            self.stretched += rounds
        self._pending = batch
        if done is not None:
            self.ended += scheduler.process_result(done).finished
            scheduler.check()
        self.ended += scheduler.ended
        scheduler.ended.clear()
        return batch is not None or done is not None


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
    server = TwinServer(StretchingScheduler(bounds))
    agents = [LongWinded(server, f"s{i}", data.draw) for i in range(data.draw(st.integers(1, 9)))]
    idle = 0
    for _ in range(20_000):
        live = [agent.step() for agent in agents]
        busy = server.round()
        if not any(live) and not busy:
            return server
        idle = 0 if busy else idle + 1
        if idle > 3 and server.scheduler.waiting:
            server.scheduler.abort(server.scheduler.waiting[0].rid)
        elif idle > 3 and server.scheduler.chunked is not None:
            server.scheduler.abort(server.scheduler.chunked.rid)
    raise AssertionError("still busy")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(limits(), st.data())
def test_a_stretch_leaves_what_its_rounds_leave(bounds, data):
    converse(bounds, data)
