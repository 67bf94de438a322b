# SPDX-License-Identifier: Apache-2.0
"""Window slots in the tree (RULES.md 38-41)."""

from __future__ import annotations

from sqsim.models.serving.admission import Budget
from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import Limits
from sqsim.models.serving.sliding_window import WindowTree
from sqsim.models.serving.tokens import concat, whole

WINDOW = 127
A, B = whole(1, 300), whole(2, 300)


def tree() -> WindowTree:
    return WindowTree(page=1, window=WINDOW)


def live(nodes) -> list[tuple[int, bool]]:
    return sorted((node.tokens, node.live) for node in nodes.nodes())


def test_a_new_leaf_keeps_its_last_window_as_one_node():
    """Rule 39: a new leaf longer than W is split so that its last W tokens are one node."""
    tested = tree()
    tested.insert(A, 300)
    assert live(tested) == [(127, True), (173, True)]
    assert tested.window_evictable == 300


def test_what_slid_out_is_dead():
    """Rule 39: tokens freed before are nodes without window KV."""
    tested = tree()
    tested.insert(A, 300, slid=172)
    assert live(tested) == [(1, True), (127, True), (172, False)]
    assert (tested.evictable, tested.window_evictable) == (300, 128)


def test_a_match_needs_a_whole_live_window_before_its_end():
    """Rule 40: the deepest node such that the W tokens above it have window KV."""
    tested = tree()
    tested.insert(A, 300, slid=172)
    assert tested.match(A, 300).tokens == 300
    short = tested.match(A, 250)  # 78 live tokens before it
    assert (short.tokens, short.branch) == (0, 250)


def test_a_short_prefix_is_usable_while_everything_from_the_root_is_live():
    tested = tree()
    tested.insert(A, 50)
    assert tested.match(A, 50).tokens == 50


def test_a_prefix_without_window_is_not_reused_though_its_full_kv_is_there():
    """Rule 40 (J2 s76: 252 tokens of full KV present, cached 0)."""
    tested = tree()
    tested.insert(A, 252)
    for victim in list(tested.live_nodes()):
        tested.evict_window(victim)
    assert (tested.evictable, tested.window_evictable) == (252, 0)
    assert tested.match(A, 300) == (tested.root, 0, 252)


def test_a_dead_node_takes_over_a_rows_window_slots():
    """Its full slots are duplicates, its live window slots are not."""
    tested = tree()
    tested.insert(A, 300, slid=172)
    found = tested.insert(concat(A, B), 600, slid=100)
    assert found.duplicates == 300
    assert found.window_duplicates == 128  # of the part that was live already; [100, 172) came to life
    assert sorted((n.tokens, n.live) for n in tested.nodes() if n.key[0].segment == 1) == [
        (1, True),
        (72, True),
        (100, False),
        (127, True),
    ]


def test_a_lock_holds_one_window_of_the_path():
    """Rule 41: window locks cover only the last W tokens of the locked path."""
    tested = tree()
    end = tested.insert(A, 300).node
    assert (tested.unlocked(end), tested.unlocked_window(end)) == (300, 127)
    lock = tested.lock(end)
    assert (tested.protected, tested.window_protected, tested.window_evictable) == (300, 127, 173)
    tested.match(A, 250)  # a split inside the held window
    tested.unlock(lock)
    assert (tested.evictable, tested.window_evictable, tested.window_protected) == (300, 300, 0)


def test_window_pressure_takes_inner_nodes_windows_and_whole_leaves():
    """Rule 41: along the window's recency, oldest first; an unlocked leaf goes whole, an inner node loses its window."""
    tested = tree()
    tested.insert(A, 300)
    tested.insert(B, 100)
    tested.match(A, 300)
    seen = []
    for victim in tested.window_victims():
        seen.append((victim.tokens, tested.is_free_leaf(victim)))
        if tested.is_free_leaf(victim):
            tested.evict_leaf(victim)
        else:
            tested.evict_window(victim)
    # The match refreshed A's last window and, a page further, the node before it.
    assert seen == [(100, True), (173, False), (127, True)]
    assert tested.window_evictable == 0
    assert tested.evictable == 173


def test_held_windows_are_passed_over():
    tested = tree()
    lock = tested.lock(tested.insert(A, 300).node)
    assert [victim.tokens for victim in tested.window_victims()] == [173]
    tested.unlock(lock)


def test_a_need_of_the_whole_window_pool_is_one_that_it_can_never_meet():
    """Rule 38 is strict as rule 11 is: 499 tokens and a page need all 500 slots, so the request starts with a chunk."""
    limits = Limits(kv_capacity=4000, swa_capacity=500, swa_window=WINDOW, chunked_prefill=512)
    budget = Budget(KvCache(limits), limits, [], 0.7)
    assert budget.window_need(499, 20, budget.chunk_left) == 500
    assert budget.window_chunk(499, 20, 0) > 0
    assert budget.window_chunk(498, 20, 0) == 0  # it fits once others leave, so it waits
