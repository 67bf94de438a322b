# SPDX-License-Identifier: Apache-2.0
"""Sessions (RULES.md 36), and what the plugin adds: release, drop, fork."""

from __future__ import annotations

import pytest

from sqsim.models.serving.scheduler import Limits, Scheduler
from sqsim.models.serving.tokens import concat, split
from tests.sqsim.models.rounds import Server, follow_up, fresh, request


def server(**limits) -> Server:
    return Server(Scheduler(Limits(**{"kv_capacity": 4000, "release_idle_sessions": True, **limits})))


def turn(at: Server, rid: str, prompt, says: int = 10, session: str = "s", **more):
    """Run one turn to its end."""
    asked = request(rid, prompt, says, session=session, **more)
    at.submit(asked)
    at.run()
    assert asked.finish is not None
    return asked


def test_a_turn_continues_on_the_sessions_row():
    """Rule 36 (I a2t1: 160 + 25 -> a2t2 `61@184`; protected stays 160)."""
    stock = server(release_idle_sessions=False)
    first = turn(stock, "a2t1", 160, 25)
    assert first.kv_tokens == 184
    second = turn(stock, "a2t2", follow_up(first, 60))
    assert (second.cached_tokens, second.computed_tokens) == (184, 61)
    assert (first.fresh, second.fresh) == (True, False)
    assert stock.scheduler.kv.tree.protected == 160


def test_only_the_first_prompt_is_published():
    """Rule 36; another request finds the prompt, not what came behind it."""
    stock = server(release_idle_sessions=False)
    first = turn(stock, "t1", 100)
    second = turn(stock, "t2", follow_up(first, 50))
    other = request("other", follow_up(second, 5))
    stock.submit(other)
    stock.run()
    assert other.cached_tokens == 100


def test_publish_tokens_bounds_what_the_tree_gets():
    plugin = server()
    first = turn(plugin, "t1", 300, publish_tokens=120)
    assert plugin.scheduler.kv.tree.protected == 120
    assert plugin.scheduler.usage().idle_sessions == first.kv_tokens - 120


def test_closing_frees_the_row_and_unlocks_the_prompt():
    stock = server(release_idle_sessions=False)
    turn(stock, "t1", 100)
    stock.scheduler.close_session("s")
    stock.scheduler.check()
    usage = stock.scheduler.usage()
    assert (usage.free, usage.tree_evictable, usage.idle_sessions) == (3900, 100, 0)
    assert not stock.scheduler.has_session("s")


def test_closing_during_a_turn_waits_for_its_end():
    stock = server(release_idle_sessions=False)
    stock.submit(request("t1", 100, 10, session="s"))
    stock.round()
    stock.scheduler.close_session("s")
    assert stock.scheduler.has_session("s")
    stock.run()
    assert not stock.scheduler.has_session("s")


def test_pinned_sessions_block_everything_in_stock_sglang():
    """Rule 36 (I2): three idle sessions leave 103; a turn that needs 122 waits, and everything behind it."""
    stock = server(kv_capacity=1000, release_idle_sessions=False)
    first = [turn(stock, f"s{i}t1", 280, 20, f"s{i}") for i in range(3)]
    assert stock.scheduler.usage().free == 103
    blocked = request("s0t2", follow_up(first[0], 80), 40, session="s0")
    small = request("p1", 20, 10)
    stock.submit(blocked, small)
    for _ in range(50):
        assert not stock.round()
    test = stock.scheduler.round.tests[0]
    assert (test.need, test.remaining, test.admitted) == (122, 103, False)
    stock.scheduler.close_session("s2")
    stock.run()
    assert (blocked.finish, small.finish) == ("length", "length")


def test_the_plugin_releases_the_least_recently_used_idle_session():
    plugin = server(kv_capacity=1000)
    first = [turn(plugin, f"s{i}t1", 280, 20, f"s{i}") for i in range(3)]
    asked = request("s0t2", follow_up(first[0], 80), 40, session="s0")
    plugin.submit(asked)
    plugin.run()
    assert asked.cached_tokens == 299
    assert [plugin.scheduler.has_session(f"s{i}") for i in range(3)] == [True, False, True]
    assert sum(batch.released_sessions for batch in plugin.batches) == 1


def test_nothing_is_released_in_vain():
    plugin = server(kv_capacity=1000)
    turn(plugin, "t1", 100)
    plugin.submit(request("busy", 500, 100))
    plugin.round()
    plugin.submit(request("big", 800, 10))
    plugin.round()
    assert plugin.scheduler.round.tests
    assert not plugin.scheduler.round.tests[0].admitted
    assert plugin.scheduler.has_session("s")


def test_a_session_that_holds_exactly_what_is_lacking_is_not_released():
    """Admission is strict (rule 11): a gain equal to the shortage leaves the request outside, so the release is in vain."""
    for less, released in ((0, False), (1, True)):
        plugin = server(kv_capacity=1000)
        pinned, held = (turn(plugin, name, 100, session=name).kv_tokens for name in ("pinned", "s"))
        plugin.scheduler.pin("pinned", pinned=True)
        remaining = 1000 - pinned - held
        plugin.submit(request("new", remaining + held - less - 11, 10))  # 10 of output, and one more (rule 11)
        plugin.round()
        test = plugin.scheduler.round.tests[0]
        assert (test.need, test.admitted) == (remaining + held - less, released)
        assert plugin.scheduler.has_session("s") is not released


def test_a_released_sessions_next_turn_starts_anew():
    """It finds what its first prompt left in the tree, and publishes no more than then."""
    plugin = server(kv_capacity=1000)
    first = turn(plugin, "t1", 300, publish_tokens=120)
    turn(plugin, "other", 700, session="o")
    assert not plugin.scheduler.has_session("s")
    plugin.scheduler.close_session("o")
    second = turn(plugin, "t2", follow_up(first, 50))
    assert second.cached_tokens in {0, 120}  # the prompt may have been reclaimed as well
    assert plugin.scheduler.kv.sessions.get("s").row.shared == 120


def test_drop_frees_at_once_and_the_next_turn_goes_on_behind():
    """SGLANG.md: free the spans, compact the row, shorten its lengths."""
    plugin = server()
    first = turn(plugin, "t1", 300, publish_tokens=100)
    free = plugin.scheduler.usage().free
    assert plugin.scheduler.drop("s", [(120, 150), (200, 270)]) == 100
    plugin.scheduler.check()
    assert plugin.scheduler.usage().free == free + 100
    left = concat(
        split(first.asked.prompt, 120)[0],
        split(split(first.asked.prompt, 200)[0], 150)[1],
        split(first.asked.prompt, 270)[1],
    )
    second = turn(plugin, "t2", concat(left, first.asked.output, fresh(50)))
    assert second.n_in == 260
    assert second.cached_tokens == first.kv_tokens - 100


def test_drop_in_a_hybrid_pool_frees_only_live_window_slots():
    plugin = server(swa_capacity=3000, swa_window=127, kv_capacity=4000)
    first = turn(plugin, "t1", 600, 150, publish_tokens=100)
    slid = plugin.scheduler.kv.sessions.get("s").row.slid
    assert 300 < slid < 700
    window_free = plugin.scheduler.kv.pool.window_free
    assert plugin.scheduler.drop("s", [(150, 250), (slid - 10, slid + 20)]) == 130
    plugin.scheduler.check()
    assert plugin.scheduler.kv.pool.window_free == window_free + 20
    assert plugin.scheduler.kv.sessions.get("s").row.slid == slid - 110
    assert first.kv_tokens - 130 == plugin.scheduler.kv.sessions.get("s").row.length


def test_positions_count_every_dropped_token_wherever_the_window_stands():
    """SGLANG.md: dropped tokens count for positions; the part whose window slots had slid out does so too."""
    plugin = server(swa_capacity=3000, swa_window=127, kv_capacity=4000)
    turn(plugin, "t1", 600, 150, publish_tokens=100)
    plugin.scheduler.drop("s", [(150, 250)])
    assert plugin.scheduler.kv.sessions.shift("s") == 100
    row = plugin.scheduler.kv.sessions.get("s").row
    plugin.scheduler.drop("s", [(row.slid - 10, row.slid + 20)])
    assert plugin.scheduler.kv.sessions.shift("s") == 130


def test_a_session_without_kv_drops_nothing():
    assert server().scheduler.drop("nobody", [(5, 10)]) == 0


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(50, 120)], r"\(50, 120\) is unsorted, overlaps, or is tree-owned"),
        ([(150, 200), (180, 220)], r"\(180, 220\) is unsorted"),
        ([(150, 150)], r"\(150, 150\) is empty"),
        ([(150, 900)], "900 lies beyond its 309 tokens"),
    ],
)
def test_impossible_drops_are_named(spans, message):
    plugin = server()
    turn(plugin, "t1", 300, publish_tokens=100)
    with pytest.raises(AssertionError, match=message):
        plugin.scheduler.drop("s", spans)


def forked(at: Server, says: int = 40, **more):
    """A turn in flight whose prompt an aux request reads."""
    main = request("main", 300, 200, session="s", publish_tokens=100, **more)
    at.submit(main)
    at.run(until=lambda: main.n_out > 0)
    aux = request("aux", concat(main.asked.prompt, fresh(12)), says, role="aux", session="s", fork_tokens=300)
    at.submit(aux)
    return main, aux


def test_a_fork_computes_its_trigger_only():
    plugin = server()
    main, aux = forked(plugin)
    plugin.run(until=lambda: aux.n_out > 5)
    assert (aux.cached_tokens, aux.computed_tokens) == (300, 12)
    assert plugin.scheduler.usage().aux > 12
    plugin.run()
    assert (main.finish, aux.finish) == ("length", "length")
    assert aux.kv_tokens == 300 + 12 + 40 - 1
    assert plugin.scheduler.usage().aux == 0
    other = request("other", concat(aux.asked.prompt, aux.asked.output, fresh(1)))
    plugin.submit(other)
    plugin.run()
    assert other.cached_tokens == 100  # nothing of a fork is in the tree


def test_a_fork_in_mains_own_prefill_batch_computes_what_the_row_lacks():
    """SPEC.md, `with_main`: one step later it hits."""
    plugin = server()
    first = turn(plugin, "t1", 300, publish_tokens=100)
    prompt = follow_up(first, 50)
    main = request("t2", prompt, 30, session="s")
    aux = request("x2", concat(prompt, fresh(12)), 20, role="aux", session="s", fork_tokens=main.n_in)
    plugin.submit(main, aux)
    plugin.round()
    assert plugin.batches[-1].rows() == [("t2", 51, 309), ("x2", 63, 309)]
    plugin.run()


def test_a_fork_of_a_session_without_kv_is_a_plain_request():
    plugin = server()
    prompt = fresh(200)
    seen = request("seen", prompt)
    plugin.submit(seen)
    plugin.run()
    aux = request("aux", concat(prompt, fresh(12)), role="aux", session="gone", fork_tokens=200)
    plugin.submit(aux)
    plugin.run()
    assert aux.cached_tokens == 200


def test_a_fork_of_less_than_the_live_window_computes_everything():
    """Rule 40 for a fork: the 127 tokens before its end have slid out of the row's window, so it reads nothing of it."""
    plugin = server(swa_capacity=3000, swa_window=127, kv_capacity=4000)
    main = turn(plugin, "t1", 600, 150, publish_tokens=100)
    slid = plugin.scheduler.kv.sessions.get("s").row.slid
    prompt = split(main.asked.prompt, 300)[0]
    for tokens, reads in ((slid + 127, slid + 127), (slid + 126, 0), (300, 0)):
        context = split(concat(main.asked.prompt, main.asked.output), tokens)[0]
        fork = request("f", concat(context, fresh(12)), 5, session="s", role="aux", fork_tokens=tokens)
        assert plugin.scheduler.kv.sessions.readable(fork) == reads
    assert slid > 300 > len(prompt)


def test_a_pin_ends_with_the_next_turn():
    """A pin protects an idle session until its next turn is admitted; after that turn it may be released again."""
    plugin = server(kv_capacity=1000)
    first = turn(plugin, "t1", 100)
    plugin.scheduler.pin("s", pinned=True)
    assert plugin.scheduler.kv.sessions.pins == 1
    turn(plugin, "t2", follow_up(first, 50))
    assert plugin.scheduler.kv.sessions.pins == 0
    turn(plugin, "other", 950, session="o")
    assert not plugin.scheduler.has_session("s")


def test_a_fork_keeps_its_session():
    """It is neither dropped nor released, and what the fork reads outlives its closing."""
    plugin = server(kv_capacity=1000)
    main, aux = forked(plugin, says=260)
    plugin.run(until=lambda: main.finish is not None)
    assert aux.finish is None
    with pytest.raises(AssertionError, match="while a fork reads it"):
        plugin.scheduler.drop("s", [(150, 200)])
    assert plugin.scheduler.kv.sessions.releasable() == []
    plugin.scheduler.close_session("s")
    plugin.scheduler.check()
    assert plugin.scheduler.usage().idle_sessions == 200
    plugin.run()
    assert aux.finish == "length"
    assert plugin.scheduler.usage().idle_sessions == 0


def test_an_aborted_turn_loses_the_row_but_for_what_its_fork_reads():
    plugin = server(kv_capacity=1000)
    main, aux = forked(plugin, says=150)
    plugin.run(until=lambda: aux.n_out > 5)
    plugin.scheduler.abort("main")
    plugin.run(until=lambda: main.finish is not None)
    assert main.finish == "abort"
    assert not plugin.scheduler.has_session("s")
    assert plugin.scheduler.usage().idle_sessions == 200
    again = turn(plugin, "again", main.asked.prompt)
    assert again.cached_tokens == 100  # the first prompt, from the tree
    assert aux.finish == "length"
    assert plugin.scheduler.usage().idle_sessions == again.kv_tokens - 100


def test_mains_window_waits_for_the_fork():
    """Window slots a fork still reads are not freed while main decodes on."""
    plugin = server(swa_capacity=3000, swa_window=127)
    main, aux = forked(plugin, says=190)
    plugin.run(until=lambda: main.n_out > 170)
    assert aux.cached_tokens == 300
    assert plugin.scheduler.kv.sessions.get("s").row.slid <= 300 - 127
    plugin.run()


def test_what_a_fork_reads_is_what_the_row_held_when_it_started():
    """Asked for more than main's row had: the window is kept for less, and survives main's abort."""
    plugin = server(swa_capacity=3000, swa_window=127)
    first = turn(plugin, "t1", 300, publish_tokens=100)
    prompt = follow_up(first, 50)
    main = request("t2", prompt, 300, session="s")
    aux = request("x2", concat(prompt, fresh(12)), 290, role="aux", session="s", fork_tokens=main.n_in)
    plugin.submit(main, aux)
    plugin.run(until=lambda: main.n_out > 200)
    assert aux.cached_tokens == first.kv_tokens == 309
    assert plugin.scheduler.kv.sessions.get("s").row.slid <= 309 - 127
    plugin.scheduler.abort("t2")
    plugin.run(until=lambda: main.finish is not None)
    [left] = plugin.scheduler.kv.sessions.closed
    assert left.row.length == 309
    plugin.run()


def test_a_fork_does_not_read_what_publishing_may_replace():
    """Two sessions start alike: the tree takes one copy of the prompt, and the other's slots are freed."""
    plugin = server()
    prompt = fresh(300)
    first, second = (request(f"m{i}", prompt, 60, session=f"s{i}", publish_tokens=300) for i in range(2))
    plugin.submit(first, second)
    plugin.round()
    aux = request("aux", concat(prompt, fresh(12)), 20, role="aux", session="s1", fork_tokens=300)
    plugin.submit(aux)
    plugin.round()
    assert plugin.batches[-1].rows() == [("aux", 312, 0)]
    plugin.run()


def test_what_was_dropped_counts_for_the_context_but_not_for_the_pool():
    plugin = server(context_length=1000)
    first = turn(plugin, "t1", 300, publish_tokens=100)
    assert plugin.scheduler.drop("s", [(110, 210)]) == 100
    head, rest = split(concat(first.asked.prompt, first.asked.output), 110)
    prompt = concat(head, split(rest, 100)[1], fresh(40))
    second = request("t2", prompt, 900, 2000, session="s")
    plugin.submit(second)
    assert second.max_new_tokens == 1000 - 2 - 250 - 100
    plugin.run()


def test_a_first_turn_takes_no_more_from_the_tree_than_it_may_give():
    plugin = server()
    prompt = fresh(300)
    plain = request("plain", prompt)
    plugin.submit(plain)
    plugin.run()
    first = turn(plugin, "t1", concat(prompt, fresh(20)), publish_tokens=120)
    assert first.cached_tokens == 120
    assert plugin.scheduler.drop("s", [(120, 300)]) == 180


def test_an_announced_fork_keeps_its_window():
    plugin = server(swa_capacity=3000, swa_window=127)
    first = turn(plugin, "t1", 300, publish_tokens=100)
    prompt = follow_up(first, 50)
    main = request("t2", prompt, 300, session="s", forked=360)
    plugin.submit(main)
    plugin.run(until=lambda: main.n_out > 290)
    assert plugin.scheduler.kv.sessions.get("s").row.slid <= 360 - 127
    aux = request("x2", concat(prompt, fresh(12)), 20, role="aux", session="s", fork_tokens=main.n_in)
    plugin.submit(aux)
    plugin.run()
    assert aux.cached_tokens == main.n_in == 360


def test_retraction_of_a_turn_keeps_its_kv_in_stock_and_frees_it_with_the_plugin():
    """Rule 36 (src), and SGLANG.md's soft eviction."""
    for plugin, kept in ((False, True), (True, False)):
        at = server(kv_capacity=460, schedule_conservativeness=0.01, release_idle_sessions=plugin)
        requests = [request(f"r{i}", 100, 150, 200, session=f"s{i}") for i in range(2)]
        at.submit(*requests)
        at.run(rounds=200, until=lambda asked=requests: any(r.retractions for r in asked))
        lost = next(r for r in requests if r.retractions)
        assert at.scheduler.has_session(lost.asked.session) is kept
