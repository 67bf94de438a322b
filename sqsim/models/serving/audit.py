# SPDX-License-Identifier: Apache-2.0
"""Audit of KV conservation by a walk that shares no counter with the scheduler (LAWS.md, law 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import Limits
from sqsim.models.serving.pool import Row
from sqsim.models.serving.radix import Node, RadixTree
from sqsim.models.serving.request import Request
from sqsim.models.serving.sliding_window import WindowTree
from sqsim.models.serving.tokens import count, normal


def audit(kv: KvCache, waiting: Sequence[Request], in_flight: Sequence[Request], limits: Limits) -> None:
    """Raise an AssertionError that names a wrong account."""
    for request in waiting:
        assert request.row is None, f"waiting request {request.asked.rid} holds a row"
        assert request.finish is None, f"request {request.asked.rid} waits and has ended by {request.finish}"
    rows = _rows(kv, in_flight)
    tree = kv.tree
    _audit_structure(tree, limits.page_size)
    _audit_locks(tree, rows)
    if isinstance(tree, WindowTree):
        _audit_windows(tree, rows, limits)
    _audit_pool(kv, rows, limits)
    kv.sessions.check()
    aux = {request for request in in_flight if request.asked.role == "aux"}
    assert aux == set(kv.aux), f"aux requests in flight {_rids(aux)}, counted {_rids(kv.aux)}"


def _rids(requests: object) -> list[str]:
    assert isinstance(requests, set | dict)
    return sorted(request.asked.rid for request in requests)


def _rows(kv: KvCache, in_flight: Sequence[Request]) -> list[Row]:
    """List every row once, as a session and its turn share one row."""
    rows: dict[int, Row] = {}
    for request in in_flight:
        assert request.row is not None, f"request {request.asked.rid} is in flight without a row"
        assert request.finish is None, (
            f"request {request.asked.rid} is in flight and has ended by {request.finish}"
        )
        rows[id(request.row)] = request.row
    for row in kv.sessions.rows():
        rows[id(row)] = row
    for row in rows.values():
        assert row.shared <= row.length, f"a row of {row.length} tokens shares {row.shared}"
        assert row.slid <= row.length, f"a row of {row.length} tokens slid {row.slid}"
        assert row.held, "a row in use was never allocated"
    return list(rows.values())


def _audit_structure(tree: RadixTree, page: int) -> None:
    evictable = protected = 0
    for node in tree.nodes():
        assert node.tokens == count(node.key), f"a node of {count(node.key)} tokens counts {node.tokens}"
        assert node.tokens > 0, "an empty node"
        assert node.tokens % page == 0, f"a node of {node.tokens} tokens breaks a page of {page}"
        assert node.key == normal(node.key), f"the key {node.key} is not in normal form"
        parent = node.parent
        assert parent is not None
        assert node in parent.children.values(), "a node its parent does not know"
        assert parent.locks or not node.locks, "a node is held and its parent is not"
        if node.locks:
            protected += node.tokens
        else:
            evictable += node.tokens
        if tree.is_free_leaf(node):
            assert node.queued, "an evictable leaf is not in the heap"
    assert evictable == tree.evictable, f"{evictable} evictable tokens in the tree, counted {tree.evictable}"
    assert protected == tree.protected, f"{protected} locked tokens in the tree, counted {tree.protected}"


def _audit_locks(tree: RadixTree, rows: Sequence[Row]) -> None:
    expected: Counter[Node] = Counter()  # rows that lock a node, and its locked children
    held: set[Node] = set()
    for row in rows:
        if row.lock is None:
            continue
        node, depth = row.lock.node, 0
        expected[node] += 1
        while node.parent is not None:
            depth += node.tokens
            if node not in held:
                held.add(node)
                expected[node.parent] += 1
            node = node.parent
        assert depth == row.shared, f"a row shares {row.shared} tokens and locks {depth}"
    for node in tree.nodes():
        assert node.locks == expected[node], f"a node with {node.locks} locks is held {expected[node]} times"


def _audit_windows(tree: WindowTree, rows: Sequence[Row], limits: Limits) -> None:
    window = limits.swa_window or 0
    held: Counter[Node] = Counter()
    for row in rows:
        node = row.lock.node if row.lock is not None else tree.root
        covered = row.lock.window if row.lock is not None else 0
        assert covered >= min(window, row.shared) or row.lock is None, (
            f"a lock covers {covered} tokens of the window"
        )
        while covered > 0:
            held[node] += 1
            covered -= node.tokens
            assert node.parent is not None
            node = node.parent
        assert covered == 0, "a window lock ends inside a node"
    live = set(tree.live_nodes())
    evictable = protected = 0
    for node in tree.nodes():
        assert node.window_locks == held[node], (
            f"a node with {node.window_locks} window locks is held by {held[node]} rows"
        )
        assert node.live == (node in live), "the recency list and the tree disagree on a node's window"
        live.discard(node)
        if node.live and node.window_locks:
            protected += node.tokens
        elif node.live:
            evictable += node.tokens
    assert not live, "the recency list holds nodes that left the tree"
    assert evictable == tree.window_evictable, (
        f"{evictable} evictable window slots, counted {tree.window_evictable}"
    )
    assert protected == tree.window_protected, (
        f"{protected} locked window slots, counted {tree.window_protected}"
    )


def _audit_pool(kv: KvCache, rows: Sequence[Row], limits: Limits) -> None:
    page = limits.page_size
    in_tree = sum(node.tokens for node in kv.tree.nodes())
    owned = sum(-(-row.length // page) * page - row.shared for row in rows)
    total = kv.pool.free + in_tree + owned
    assert total == limits.kv_capacity, (
        f"{kv.pool.free} free + {in_tree} in the tree + {owned} in rows is {total}, not {limits.kv_capacity}"
    )
    assert kv.pool.free >= 0, f"{kv.pool.free} free slots"
    if limits.swa_capacity is not None:
        in_tree = sum(node.tokens for node in kv.tree.nodes() if node.live)
        owned = sum(-(-row.length // page) * page - max(row.shared, row.slid) for row in rows)
        total = kv.pool.window_free + in_tree + owned
        assert total == limits.swa_capacity, (
            f"{kv.pool.window_free} free + {in_tree} in the tree + {owned} in rows is {total} window slots, "
            f"not {limits.swa_capacity}"
        )
        assert kv.pool.window_free >= 0, f"{kv.pool.window_free} free window slots"
    assert kv.pool.rows_free == limits.max_running - len(rows), (
        f"{kv.pool.rows_free} rows free, {len(rows)} of {limits.max_running} in use"
    )
