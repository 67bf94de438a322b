# SPDX-License-Identifier: Apache-2.0
"""The radix tree against a plain model, and its recency rules (RULES.md 10, 26, 28, 30-33)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.models.serving.radix import MatchHint, Place, RadixTree
from sqsim.models.serving.sliding_window import WindowTree
from sqsim.models.serving.tokens import Run, concat, count, literal, place, split, whole

A, B, C = whole(1, 10), whole(2, 10), whole(3, 10)

short_runs = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 5)).map(
    lambda t: (Run(t[0], t[1], t[1] + t[2]),)
)
contexts = st.one_of(
    st.lists(short_runs, min_size=1, max_size=5).map(lambda parts: concat(*parts)),
    st.lists(st.integers(1, 3), min_size=1, max_size=20).map(literal),
)


def spelled(tokens):
    return tuple((segment, index) for segment, start, stop in tokens for index in range(start, stop))


def shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(st.tuples(st.booleans(), contexts), max_size=20), st.sampled_from([1, 2, 4]))
def test_matches_what_a_list_of_sequences_would(operations, page):
    """A match is the longest common prefix with anything inserted, in whole pages."""
    tree, known = RadixTree(page), []
    for insert, context in operations:
        limit = count(context) // page * page
        expected = max((shared(spelled(context)[:limit], other) for other in known), default=0) // page * page
        assert tree.match(context, count(context)).tokens == expected
        if insert:
            found = tree.insert(context, limit)
            assert found.duplicates == expected
            known.append(spelled(context)[:limit])
        pages = {prefix[:end] for prefix in known for end in range(page, len(prefix) + 1, page)}
        assert tree.evictable == len(pages) * page
        assert sum(node.tokens for node in tree.nodes()) == len(pages) * page


@given(st.lists(contexts, min_size=1, max_size=8), st.sampled_from([1, 2]))
def test_eviction_empties_the_tree_leaf_by_leaf(all_contexts, page):
    tree = RadixTree(page)
    for context in all_contexts:
        tree.insert(context, count(context) // page * page)
    size = tree.evictable
    while (node := tree.evict()) is not None:
        assert not node.children
        size -= node.tokens
        assert tree.evictable == size
    assert size == 0
    assert not tree.root.children


@given(st.lists(contexts, min_size=2, max_size=8))
def test_a_locked_path_stays(all_contexts):
    tree = RadixTree()
    ends = [tree.insert(context, count(context)).node for context in all_contexts]
    held = all_contexts[0]
    lock = tree.lock(ends[0])
    assert tree.protected == count(held)
    assert tree.unlocked(ends[0]) == 0
    while tree.evict() is not None:
        pass
    assert tree.match(held, count(held)).tokens == count(held)
    assert tree.evictable == 0
    tree.unlock(lock)
    assert (tree.evictable, tree.protected) == (count(held), 0)


def test_a_split_of_a_locked_node_keeps_the_lock():
    tree = RadixTree()
    lock = tree.lock(tree.insert(A, 10).node)
    assert tree.match(A, 4).tokens == 4
    assert (tree.protected, tree.evictable) == (10, 0)
    tree.unlock(lock)
    assert (tree.protected, tree.evictable) == (0, 10)


def test_duplicates_are_the_rows_own_slots_that_the_tree_has():
    """Rule 26: when the inserted range already exists, the row's slots beyond its matched prefix are freed."""
    tree = RadixTree()
    tree.insert(concat(A, B), 20)
    found = tree.insert(concat(A, B, C), 30, owned_from=10)
    assert found.duplicates == 10
    assert tree.evictable == 30


def test_least_recently_used_leaf_goes_first():
    """Rules 31 and 32: whole leaves by their last access; a match refreshes."""
    tree = RadixTree()
    for branch in (A, B, C):
        tree.insert(branch, 10)
    tree.match(A, 10)
    assert [tree.evict().key for _ in range(3)] == [B, C, A]


def test_a_parent_becomes_a_candidate_with_its_own_age():
    """Rule 31: the parent joins when it becomes a leaf; here it is older than the other leaf."""
    tree = RadixTree()
    tree.insert(concat(A, B), 20)
    tree.insert(A, 10)  # splits behind A and stamps A anew
    tree.insert(C, 10)
    assert [tree.evict().key for _ in range(3)] == [B, A, C]


def test_of_one_conversation_the_output_goes_first_then_the_prompt():
    """Rules 28 and 33: a finished request is inserted as a whole, then split at its prompt's end."""
    tree = RadixTree()
    for prompt in (A, C):
        tree.insert(concat(prompt, B), 20)
        tree.insert(prompt, 10, owned_from=20)
    assert [tree.evict().key for _ in range(4)] == [B, A, B, C]


def test_a_match_refreshes_a_waiting_prefix():
    tree = RadixTree()
    tree.insert(concat(A, B), 20)
    tree.insert(C, 10)
    tree.match(concat(A, B), 15)  # splits in the middle of B; what is behind keeps the age of the split
    order = [tree.evict() for _ in range(3)]
    assert [node.tokens for node in order] == [10, 5, 15]


def test_pages_must_be_whole():
    with pytest.raises(AssertionError, match="insert of 10 tokens, page size 4"):
        RadixTree(4).insert(A, 10)
    tree = RadixTree(4)
    tree.insert(A, 8)
    assert tree.match(A, 10).tokens == 8
    assert tree.match(split(A, 7)[0], 7).tokens == 4
    assert tree.match(A, 3).tokens == 0


class Eager:
    """Recency as SGLang keeps it: a touch stamps every node of its path."""

    def _touch(self, node):
        super()._touch(node)
        stamp = node.stamp
        while node is not None:
            node.stamp, node.touched = stamp, 0
            node = node.parent


class EagerTree(Eager, RadixTree):
    pass


class EagerWindowTree(Eager, WindowTree):
    pass


operations = st.lists(
    st.one_of(
        st.tuples(st.just("match"), contexts, st.integers(0, 20)),
        st.tuples(st.just("insert"), contexts, st.integers(0, 20)),
        st.tuples(st.just("go on"), contexts, st.integers(0, 20)),  # the last context, and more
        st.tuples(st.just("evict"), st.just(()), st.just(0)),
        st.tuples(st.just("dead"), st.just(()), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(operations, st.sampled_from([1, 2]), st.sampled_from([None, 3]))
def test_recency_at_the_ends_orders_evictions_as_recency_everywhere(done, page, window):
    """Rules 31, 32; and a hint changes nothing."""
    trees = (
        (RadixTree(page), EagerTree(page))
        if window is None
        else (WindowTree(page, window), EagerWindowTree(page, window))
    )
    last, hint = (), None
    for what, context, number in done:
        if what == "evict":
            gone = [tree.evict() for tree in trees]
            keys = [None if node is None else node.key for node in gone]
            assert keys[0] == keys[1]
        elif what == "dead":
            if window is not None:
                for tree in trees:
                    for victim in list(tree.window_victims())[: number % 3]:
                        tree.evict_window(victim)
        else:
            if what == "go on":
                context = concat(last, context)
            total = count(context)
            found = trees[0].match(context, total, hint), trees[1].match(context, total)
            assert found[0][1:] == found[1][1:]
            if what == "insert" or number % 2:
                limit = min(total, number or total) // page * page
                start = Place(found[0].node, found[0].tokens, place(context, total, found[0].tokens))
                ends = (
                    trees[0].insert(context, limit, found[0].tokens, 0, start),
                    trees[1].insert(context, limit, found[1].tokens),
                )
                assert ends[0][1:] == ends[1][1:]
                hint = MatchHint(context, Place(ends[0].node, limit, place(context, total, limit)))
                last = context
    while (left := trees[0].evict()) is not None:
        assert left.key == trees[1].evict().key
    assert trees[1].evict() is None


def test_an_evicted_leaf_passes_its_last_touch_on_through_the_whole_chain():
    """Rule 32: a match touches the whole path, so A is as recent as the C below it that was evicted, and newer than the other."""
    other = whole(4, 10)
    tree = RadixTree()
    tree.insert(A, 10)
    tree.insert(concat(A, B), 20)
    lock = tree.lock(tree.insert(other, 10).node)
    tree.insert(concat(A, B, C), 30)
    assert [tree.evict().key for _ in range(2)] == [C, B]
    tree.unlock(lock)
    assert [tree.evict().key for _ in range(2)] == [other, A]
