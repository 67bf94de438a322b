# SPDX-License-Identifier: Apache-2.0
"""The scheduler: worked examples of RULES.md, and laws under random workloads and limits."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsim.models.serving.scheduler import Limits, Scheduler
from sqsim.models.serving.tokens import concat, split
from tests.sqsim.models.rounds import Server, follow_up, fresh, request, serve

# Worked examples.


def test_a_request_alone():
    """Rules 1, 2, 22, 27: one prefill, n - 1 decodes, no overshoot; then one empty round."""
    alone = request("a", 100, 4)
    server = serve(alone, kv_capacity=1000)
    assert server.rows() == [[("a", 100, 0)], [("a", 1, 100)], [("a", 1, 101)], [("a", 1, 102)]]
    assert (alone.finish, alone.n_out, alone.kv_tokens) == ("length", 4, 103)


def test_a_stop_token_is_seen_one_step_late():
    """Rules 23 and 27: one extra row, n_in + n_out tokens of KV; without overlap none, and one token less (rule 44)."""
    late = request("a", 100, 4, cap=50)
    assert len(serve(late, kv_capacity=1000).batches) == 5
    assert (late.finish, late.n_out, late.kv_tokens) == ("stop", 4, 104)
    prompt = request("a", 100, 4, cap=50)
    assert len(serve(prompt, kv_capacity=1000, overlap=False).batches) == 4
    assert prompt.kv_tokens == 103


def test_an_identical_prompt_computes_its_last_token():
    """Rule 10: A2, prompt 400, cached 399."""
    server = Server(Scheduler(Limits(4096)))
    first = request("A1", 400, 20)
    server.submit(first)
    server.run()
    again = request("A2", first.asked.prompt, 20)
    server.submit(again)
    server.run()
    assert (first.cached_tokens, again.cached_tokens, again.computed_tokens) == (0, 399, 1)


def test_with_pages_the_match_is_floored():
    """Rule 10: K a0t2, 154 tokens in KV, cached 144."""
    server = Server(Scheduler(Limits(8000, page_size=16)))
    first = request("t1", 125, 30)
    server.submit(first)
    server.run()
    assert first.kv_tokens == 154
    second = request("t2", follow_up(first, 60), 5)
    server.submit(second)
    server.run()
    assert second.cached_tokens == 144


def test_the_next_turn_hits_all_but_the_last_token():
    """Rule 28: E a0t1 125 + 30 -> a0t2 cached 154; with a stop token 155."""
    for cap, cached in ((None, 154), (200, 155)):
        server = Server(Scheduler(Limits(8000)))
        first = request("t1", 125, 30, cap)
        server.submit(first)
        server.run()
        second = request("t2", follow_up(first, 60), 5)
        server.submit(second)
        server.run()
        assert second.cached_tokens == cached


def test_chunks_share_the_budget():
    """Rules 17 and 18: a budget of 256 goes to 150 + 106, then the rest of the chunked one first."""
    server = serve(
        request("a", 150), request("b", 300), request("c", 80), kv_capacity=2000, chunked_prefill=256
    )
    assert server.rows()[:2] == [[("a", 150, 0), ("b", 106, 0)], [("b", 194, 106), ("c", 62, 0)]]


def test_a_prompt_is_visible_from_the_round_after_its_result():
    """Rule 25: scheduled in step p or p + 1 the shared part is computed again, from p + 2 on it hits."""
    shared = fresh(300)
    server = Server(Scheduler(Limits(4096)))
    requests = [request(f"r{i}", concat(shared, fresh(10)), 30) for i in range(4)]
    server.submit(*requests[:2])
    server.round()
    for late in requests[2:]:
        server.submit(late)
        server.round()
    server.run()
    assert [r.cached_tokens for r in requests] == [0, 0, 0, 300]


@pytest.mark.parametrize(("prompt", "together"), [(248, False), (247, True)])
def test_admission_is_strict(prompt, together):
    """Rules 11 and 13: Q, q1 needs 349 with 349 left and is refused; q3 needs 348 and is admitted."""
    server = Server(Scheduler(Limits(500)))
    server.submit(request("q0", 100, 50, ignore_eos=True), request("q1", prompt, 100, ignore_eos=True))
    server.round()
    tests = [(test.need, test.remaining, test.admitted) for test in server.scheduler.round.tests]
    assert tests == [(151, 500, True), (prompt + 101, 349, together)]


def test_the_declared_length_is_capped_to_fit_alone():
    """Rule 13: q4, n_in 300, pool 500, cap 1000 -> 198, need 499 < 500."""
    alone = request("q4", 300, 10, cap=1000)
    server = serve(alone, kv_capacity=500)
    assert alone.max_new_tokens == 198
    assert alone.finish == "stop"
    assert server.batches[0].rows() == [("q4", 300, 0)]


def test_a_refusal_closes_admission_until_a_running_request_leaves():
    """Rules 6 and 7: set in the first round it is lost, set in the second it stays."""
    server = Server(Scheduler(Limits(500)))
    a, b, c = request("a", 100, 50, 60), request("b", 100, 50, 300), request("c", 250, 50, 60)
    server.submit(a, b, c)
    server.round()
    assert (server.scheduler.full, len(server.scheduler.round.tests)) == (True, 2)
    server.round()
    assert server.scheduler.round.tests
    server.run(until=lambda: server.scheduler.full and bool(server.scheduler.running))
    server.round()
    assert not server.scheduler.round.tests
    server.run()
    assert len(server.ended) == 3


def test_prefill_goes_first_and_mixed_chunks_carry_the_running_requests():
    """Rules 4 and 20."""
    for mixed in (False, True):
        server = Server(Scheduler(Limits(2000, chunked_prefill=128, mixed_chunk=mixed)))
        server.submit(request("a", 50, 20))
        server.round()
        server.round()
        server.submit(request("b", 300, 5))
        server.round()
        expected = [("b", 127, 0), ("a", 1, 51)] if mixed else [("b", 128, 0)]
        assert server.batches[-1].rows() == expected
        assert server.batches[-1].mode == ("mixed" if mixed else "extend")
        server.run()


def test_a_retraction_takes_the_fewest_outputs_and_goes_to_the_back():
    """Rule 34: order, place in the queue, ratio, and what it computes again; cached counts the first time only."""
    server = Server(Scheduler(Limits(400, schedule_conservativeness=0.01)))
    old, young = request("old", 100, 150, 160), request("young", 90, 150, 160)
    server.submit(old)
    for _ in range(4):
        server.round()
    server.submit(young)
    server.run(until=lambda: server.scheduler.ratio > 0.1)
    late = request("late", 50, 5)
    server.submit(late)
    assert server.scheduler.waiting == [young, late]
    batch = next(batch for batch in server.batches if batch.retracted)
    assert (batch.retracted, batch.requests, batch.mode) == ([young], [old], "decode")
    assert server.scheduler.ratio == pytest.approx((old.n_out - 1 + 20) / 161, abs=2 / 161)
    server.run()
    assert (young.retractions, old.retractions, young.finish) == (1, 0, "stop")
    assert young.computed_tokens > 90
    assert young.cached_tokens == 0


def test_the_prompt_of_a_retracted_request_becomes_a_node_of_its_own():
    """Rule 28: a retracted request computes prompt and output in one piece, and its end splits it behind the prompt.

    So the prompt of 150 tokens outlives its output, which is evicted first.
    """
    server = Server(Scheduler(Limits(400, schedule_conservativeness=0.01)))
    old, young, big = (
        request("old", 100, 150, 160),
        request("young", 90, 150, 160),
        request("big", 150, 20, 25),
    )
    for each, rounds in ((old, 4), (young, 6), (big, 0)):
        server.submit(each)
        for _ in range(rounds):
            server.round()
    server.run()
    tree = server.scheduler.kv.tree
    assert (big.retractions, tree.splits) == (1, 1)
    assert tree.match(big.context, big.known).tokens == 150


def test_the_ratio_decays_to_its_floor_and_resets_when_idle():
    """Rules 3 and 34: init 0.7, floor 0.14 of it after 600 steps."""
    server = serve(request("a", 10, 700), kv_capacity=1000)
    assert server.scheduler.ratio == pytest.approx(0.7 * 0.14)
    server.scheduler.became_idle()
    assert server.scheduler.ratio == pytest.approx(0.7)


def test_an_abort_matches_by_prefix_and_keeps_what_is_computed():
    """Rule 42: waiting ones at once, running ones with their next result; N: 200 + 54 -> 254 tokens of KV."""
    server = Server(Scheduler(Limits(1000, max_running=1)))
    a1, a10, b = request("a1", 200, 100), request("a10", 200, 10), request("b", 50, 10)
    server.submit(a1, a10, b)
    server.run(until=lambda: a1.n_out == 53)
    server.scheduler.abort("a1")
    assert (a10.finish, a1.finish) == ("abort", None)
    server.run()
    assert (a1.finish, a1.n_out, a1.kv_tokens) == ("abort", 54, 254)
    assert b.finish == "length"
    assert {r.asked.rid for r in server.ended} == {"a1", "a10", "b"}


def test_an_aborted_chunk_frees_its_row_without_publishing():
    """Rule 43."""
    server = Server(Scheduler(Limits(1000, chunked_prefill=64)))
    chunked = request("a", 300, 10)
    server.submit(chunked)
    server.round()
    server.scheduler.abort("a")
    server.run()
    assert chunked.finish == "abort"
    assert server.ended == [chunked]
    assert server.scheduler.usage().free == 1000


def test_what_can_never_fit_waits_without_a_loop():
    """The engine fails it by name; the scheduler keeps saying that there is nothing to run."""
    server = Server(Scheduler(Limits(500)))
    server.submit(request("big", 600, 5), request("small", 10, 5))
    for _ in range(5):
        assert not server.round()
    server.scheduler.abort("big")
    server.run()
    assert [r.asked.rid for r in server.ended] == ["big", "small"]


def test_batch_totals_are_those_of_its_rows():
    server = serve(request("a", 100, 50), request("b", 300, 50), kv_capacity=2000, swa_window=127)
    for batch in server.batches:
        lengths = [prefix + 1 for _, _, prefix in batch.rows()[len(batch.prefill) :]]
        assert batch.decode_context == sum(lengths)
        assert batch.decode_window == sum(min(length, 128) for length in lengths)


# Laws under random workloads.


@st.composite
def limits(draw):
    page = draw(st.sampled_from([1, 1, 4, 16]))
    capacity = draw(st.integers(20, 120)) * 16
    hybrid = draw(st.booleans())
    return Limits(
        kv_capacity=capacity,
        swa_capacity=capacity * draw(st.integers(3, 10)) // 10 // 16 * 16 if hybrid else None,
        swa_window=draw(st.integers(8, 40)) if hybrid else None,
        page_size=page,
        max_running=draw(st.integers(1, 8)),
        chunked_prefill=draw(st.integers(1, 20)) * 16,
        max_prefill_tokens=draw(st.sampled_from([100, 16384])),
        schedule_conservativeness=draw(st.sampled_from([0.01, 0.3, 1.0])),
        mixed_chunk=draw(st.booleans()),
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm"])),
        overlap=draw(st.booleans()),
        release_idle_sessions=draw(st.booleans()),
    )


class Agent:
    """One conversation driven by random choices: turns, drops, forks, an abort, the close at its end."""

    def __init__(self, server: Server, name: str, draw) -> None:
        self.server, self.name, self.draw = server, name, draw
        self.plugin = server.scheduler.limits.release_idle_sessions
        self.in_session = draw(st.booleans())
        self.turns_left = draw(st.integers(1, 4))
        self.context = fresh(draw(st.integers(1, 80)))
        self.publish = draw(st.integers(0, 80)) if self.plugin else None
        self.turn = self.aux = None
        self.number = 0
        self.all = []

    def step(self) -> bool:
        """Do what is due; False when the conversation is over."""
        draw, scheduler = self.draw, self.server.scheduler
        if self.aux is not None and self.aux.finish is not None:
            self.aux = None
        if self.turn is None or self.turn.finish is not None:
            if self.turn is not None and self.turn.finish not in ("stop", "length"):
                self.turns_left = 0
            if not self.turns_left:
                if self.in_session and (self.aux is None or draw(st.booleans())):
                    scheduler.close_session(self.name)
                    self.in_session = False
                return self.aux is not None
            if self.turn is not None:
                self.context = concat(self.turn.asked.prompt, split(self.turn.asked.output, self.turn.n_out)[0])
                self._maybe_drop()
                self.context = concat(self.context, fresh(draw(st.integers(1, 60))))
            self.turn = self._request(self.context, session=self.name if self.in_session else None)
            self.turns_left -= 1
        elif self.plugin and self.in_session and self.aux is None and draw(st.integers(0, 9)) == 0:
            context = concat(self.turn.asked.prompt, fresh(5))
            self.aux = self._request(context, role="aux", session=self.name, fork_tokens=self.turn.n_in)
        elif draw(st.integers(0, 60)) == 0:
            scheduler.abort(self.turn.asked.rid)
        return True

    def _request(self, context, **more):
        says, cap = self._outputs()
        self.number += 1
        asked = request(f"{self.name}.{self.number}.", context, says, cap, publish_tokens=self.publish, **more)
        self.all.append(asked)
        self.server.submit(asked)
        return asked

    def _outputs(self) -> tuple[int, int]:
        """What a turn says, and what it declares."""
        says = self.draw(st.integers(1, 40))
        return says, says + self.draw(st.sampled_from([0, 0, 5, 100]))

    def _maybe_drop(self) -> None:
        scheduler = self.server.scheduler
        if not (self.plugin and self.in_session and self.aux is None and self.draw(st.booleans())):
            return
        session = scheduler.kv.sessions.get(self.name)
        page = scheduler.limits.page_size
        if session is None or session.forks or session.row.length - session.row.shared < 3 * page:
            return
        start = -(-session.row.shared // page) * page + page * self.draw(st.integers(0, 1))
        stop = start + page * self.draw(st.integers(1, 3))
        if stop <= session.row.length - 1:
            assert scheduler.drop(self.name, [(start, stop)]) == stop - start
            self.context = concat(split(self.context, start)[0], split(self.context, stop)[1])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(limits(), st.data())
def test_random_conversations_keep_every_account(bounds, data):
    """Laws 1-3 and 6: audited after every event, everything ends, and everything is free at the end but the tree."""
    server = Server(Scheduler(bounds))
    agents = [Agent(server, f"s{i}", data.draw) for i in range(data.draw(st.integers(1, 5)))]
    idle = 0
    for _ in range(20_000):
        live = [agent.step() for agent in agents]
        busy = server.round()
        if not any(live) and not busy:
            break
        idle = 0 if busy else idle + 1
        if idle > 3 and server.scheduler.waiting:
            server.scheduler.abort(
                server.scheduler.waiting[0].asked.rid
            )  # as the engine fails what cannot start
        elif idle > 3 and server.scheduler.chunked is not None:
            server.scheduler.abort(server.scheduler.chunked.asked.rid)
    else:
        raise AssertionError("still busy")
    asked = [item for agent in agents for item in agent.all]
    assert all(item.finish is not None for item in asked)
    assert sorted(item.asked.rid for item in server.ended) == sorted(item.asked.rid for item in asked)
    usage = server.scheduler.usage()
    assert usage[:3] == (0, 0, 0)
    assert usage.free + usage.tree_evictable == bounds.kv_capacity
    assert usage.swa_used == 0
    computed: dict[str, int] = {}
    for batch in server.batches:
        for row in batch.prefill:
            computed[row.request.asked.rid] = computed.get(row.request.asked.rid, 0) + row.extend
    for item in asked:
        assert computed.get(item.asked.rid, 0) == item.computed_tokens
        if item.finish in ("stop", "length"):
            assert item.n_out == min(item.output_tokens, item.max_new_tokens) or item.max_new_tokens == 0
            if not item.retractions:
                assert item.computed_tokens == item.n_in - item.cached_tokens
            assert item.n_in + item.n_out - 1 <= item.kv_tokens + 1 <= item.n_in + item.n_out + 1


@settings(max_examples=40, deadline=None)
@given(limits(), st.integers(2, 100), st.integers(1, 30))
def test_cold_reuses_nothing_and_an_identical_repeat_all_but_a_token_or_page(bounds, n_in, says):
    server = Server(Scheduler(bounds))
    first = request("first", n_in, says)
    server.submit(first)
    server.run()
    again = request("again", first.asked.prompt, says)
    server.submit(again)
    server.run()
    assert first.cached_tokens == 0
    if first.finish == "length" and first.n_out == says:
        assert again.cached_tokens == (n_in - 1) // bounds.page_size * bounds.page_size


def test_a_pass_ends_when_nothing_remains():
    """Rule 15: two requests promise (32 + 16 + 15) + (48 + 16 + 33) = 160 tokens, all there is; no third is tested."""
    server = Server(Scheduler(Limits(kv_capacity=160, page_size=16)))
    server.submit(request("a", 17, 15), request("b", 33, 33), request("c", 17, 4))
    server.round()
    tests = server.scheduler.round.tests
    assert [(test.request.asked.rid, test.admitted) for test in tests] == [("a", True), ("b", True)]
