# SPDX-License-Identifier: Apache-2.0
"""The radix tree that shares KV between contexts, and its least-recently-used eviction (rules 10, 25-33).

A node holds the KV of one run of tokens after its parent's. Keys are `Tokens`, so match, insert and split cost runs
and not tokens. With pages, every boundary lies on a whole page and children differ in their whole first page.

Recency (rule 32): a match or an insertion touches the whole path to its end; a split stamps the lower part just before.
Only leaves without a lock can be evicted, as whole nodes, least recent first, so the recency of an inner node matters
only once it becomes a leaf. Therefore a touch stamps only the end of its path. When a leaf is evicted, it passes its
last touch on to its parent, so a node that becomes a leaf knows every touch that went through it. Candidates wait in a
heap whose entries are checked when popped: a stamp only grows, so an outdated entry is put back with the present stamp.

A lock does not walk the whole path either: a node counts its own locks, and each locked child as one.

A conversation returns to the place where it ended. A request that keeps its `MatchHint` saves the walk from the root.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from sqsim.models.serving.tokens import Run, Tokens, common_prefix, split

At = tuple[int, int]
"""A place in a context: (index of the run, tokens into it)."""


class Node:
    """A node of the tree: `tokens` tokens of KV after the parent's; `locks`: rows that lock it, and locked children.

    The last four attributes are for a tree with window slots (sliding_window.py).
    """

    __slots__ = (
        *("children", "first", "gone", "key", "locks", "parent", "queued", "stamp", "tokens", "touched"),
        *("live", "newer", "older", "window_locks"),
    )

    def __init__(
        self, key: Tokens, tokens: int, parent: Node | None, first: Hashable = None, stamp: int = 0
    ) -> None:
        self.key = key
        self.first = first  # its name among its parent's children
        self.tokens = tokens
        self.parent = parent  # None for the root
        self.children: dict[Hashable, Node] = {}
        self.locks = 0
        self.stamp = stamp  # its recency, once it is a leaf
        self.touched = 0  # the last touch that ended here, or in an evicted leaf below
        self.queued = False  # the heap has an entry of it
        self.gone = False  # it left the tree
        self.live = False  # it holds window slots
        self.window_locks = 0  # rows that lock its window slots
        self.newer: Node  # neighbours in the recency list of window slots, while it is in it
        self.older: Node


class Lock(NamedTuple):
    """A row's lock on the path from `node` to the root; it also locks the window slots of the path's last `window` tokens."""

    node: Node
    window: int = 0


class Match(NamedTuple):
    """The longest usable prefix; `branch`: the tree has full KV up to here, but no window KV (rule 40)."""

    node: Node
    tokens: int
    branch: int | None = None


class Insertion(NamedTuple):
    """The end of an insertion, and the row's own slots that duplicate slots of the tree (rule 26)."""

    node: Node
    duplicates: int
    window_duplicates: int


class Place(NamedTuple):
    """The end of a node: `tokens` tokens from the root, at place `at` of the context that is looked up."""

    node: Node
    tokens: int
    at: At


class MatchHint(NamedTuple):
    """The end of a conversation's last insertion, from which its next match may begin.

    It saves time and changes no result: a match skips nodes that have left the tree, and compares a changed context.
    """

    context: Tokens
    place: Place


class RadixTree:
    """The tree over full-attention slots; sliding_window.py adds the window slots."""

    def __init__(self, page: int = 1) -> None:
        self._page = page
        self._clock = 0
        self._pushed = 0
        self._heap: list[tuple[int, int, Node]] = []
        self.evictable = 0  # tokens in nodes without a lock
        self.protected = 0  # tokens in nodes with one
        self.splits = 0  # number of splits so far
        self.root = Node((), 0, None)
        self.root.locks = 1

    def match(self, context: Tokens, limit: int, hint: MatchHint | None = None) -> Match:
        """Find the longest prefix of the first `limit` tokens in the tree; refreshes its path, may split its end."""
        limit -= limit % self._page
        if not limit:
            return Match(self.root, 0)
        node, matched, at = self._begin(context, limit, hint)
        while matched < limit:
            child = node.children.get(self._first(context, at))
            if child is None:
                break
            shared, at = self._agree(child, context, at, limit - matched)
            matched += shared
            if shared < child.tokens:
                node = self._split(child, shared)
                break
            node = child
        return self._found(node, matched)

    def insert(
        self, context: Tokens, limit: int, owned_from: int = 0, slid: int = 0, start: Place | None = None
    ) -> Insertion:
        """Put the first `limit` tokens (whole pages) of a row into the tree.

        The row owns its slots from `owned_from` on; those whose tokens the tree already has are duplicates. Its window
        slots below `slid` have been freed. `start`: a node that these tokens are known to reach.
        """
        assert limit % self._page == 0, f"insert of {limit} tokens, page size {self._page}"
        node, matched, at = Place(self.root, 0, (0, 0)) if start is None else self._climb(context, start, limit)
        window_duplicates = 0
        while matched < limit:
            first = self._first(context, at)
            child = node.children.get(first)
            if child is None:
                piece = _piece(context, at, limit - matched)
                leaf = self._grow(node, first, piece, limit - matched, matched, slid)
                self._touch(leaf)
                return Insertion(leaf, max(0, matched - owned_from), window_duplicates)
            shared, after = self._agree(child, context, at, limit - matched)
            if shared < child.tokens:
                child = self._split(child, shared)
                after = _advance(context, at, shared)
            if owned_from < matched + shared:
                window_duplicates += self._overlap(child, matched, slid)
            node, at = child, after
            matched += shared
        self._touch(node)
        return Insertion(node, max(0, matched - owned_from), window_duplicates)

    def lock(self, node: Node) -> Lock:
        """Lock the path from `node` to the root."""
        tokens = 0
        held: Node | None = node
        while held is not None:
            held.locks += 1
            if held.locks > 1:
                break  # its ancestors are locked already; the root always is
            tokens += held.tokens
            held = held.parent
        self.evictable -= tokens
        self.protected += tokens
        return Lock(node)

    def unlock(self, lock: Lock) -> None:
        """Undo a lock."""
        tokens = 0
        node: Node | None = lock.node
        while node is not None:
            node.locks -= 1
            if node.locks:
                break
            tokens += node.tokens
            node = node.parent
        self.evictable += tokens
        self.protected -= tokens
        self._offer(lock.node)

    def unlocked(self, node: Node) -> int:
        """Count the evictable tokens on the path from `node` to the root, which a lock on `node` would withdraw."""
        tokens = 0
        while not node.locks and node.parent is not None:
            tokens += node.tokens
            node = node.parent
        return tokens

    def unlocked_window(self, node: Node) -> int:  # noqa: ARG002
        """Count the evictable window slots that a lock on `node` would withdraw."""
        return 0

    def evict(self) -> Node | None:
        """Remove and return the least recently used leaf without a lock; None when there is none."""
        heap = self._heap
        while heap:
            stamp, _, node = heap[0]
            if not self.is_free_leaf(node):
                heapq.heappop(heap)
                node.queued = False
            elif stamp != node.stamp:
                heapq.heapreplace(heap, self._entry(node))
            else:
                heapq.heappop(heap)
                node.queued = False
                self._remove(node)
                return node
        return None

    def is_free_leaf(self, node: Node) -> bool:
        """Whether this node may be evicted as a whole."""
        return not (node.children or node.locks or node.window_locks or node.gone)

    def nodes(self) -> Iterator[Node]:
        """Iterate over every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # Hooks that the tree with window slots extends.

    def _overlap(self, node: Node, start: int, slid: int) -> int:  # noqa: ARG002
        return 0

    def _touch(self, node: Node) -> None:
        """Stamp the path to `node` as used now."""
        node.stamp = node.touched = self._tick()

    def _found(self, node: Node, matched: int) -> Match:
        """Return the part that a match which reached `node` may use."""
        self._touch(node)
        return Match(node, matched)

    def _grow(
        self,
        parent: Node,
        first: Hashable,
        key: Tokens,
        tokens: int,
        start: int,  # noqa: ARG002
        slid: int,  # noqa: ARG002
    ) -> Node:
        leaf = parent.children[first] = Node(key, tokens, parent, first, self._tick())
        self.evictable += tokens
        self._offer(leaf)
        return leaf

    def _split(self, node: Node, at: int) -> Node:
        """Split a node in two and return the new upper part; the lower part keeps its identity."""
        parent, (head, tail) = node.parent, split(node.key, at)
        assert parent is not None
        self.splits += 1
        upper = parent.children[node.first] = Node(head, at, parent, node.first, self._tick())
        upper.locks = 1 if node.locks else 0
        node.key, node.tokens = tail, node.tokens - at
        node.parent, node.stamp, node.first = upper, self._tick(), self._first(tail, (0, 0))
        upper.children[node.first] = node
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.first]
        node.gone = True
        touched = node.touched
        parent.touched = max(parent.touched, touched)
        parent.stamp = max(parent.stamp, touched)
        self.evictable -= node.tokens
        if not parent.children:
            self._offer(parent)

    # Recency.

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _entry(self, node: Node) -> tuple[int, int, Node]:
        self._pushed += 1
        return node.stamp, self._pushed, node

    def _offer(self, node: Node) -> None:
        if not node.queued and self.is_free_leaf(node):
            node.queued = True
            heapq.heappush(self._heap, self._entry(node))

    # Walking a context.

    def _begin(self, context: Tokens, limit: int, hint: MatchHint | None) -> Place:
        """Find the start of a match: the deepest node of a hint that is in the tree and agrees with the context."""
        if hint is None:
            return Place(self.root, 0, (0, 0))
        known, place = hint
        index, offset = place.at
        same = not offset and context[:index] == known[:index]
        return self._climb(context, place, limit if same else min(limit, common_prefix(context, known)), same)

    def _climb(self, context: Tokens, place: Place, limit: int, same: bool = True) -> Place:
        """Climb from a place to the deepest node that is in the tree and ends within `limit` tokens.

        `same`: the place's `at` holds for this context.
        """
        node, tokens, at = place
        while node.gone or tokens > limit:
            assert node.parent is not None, "the root stays, and ends at 0"
            tokens -= node.tokens
            node, same = node.parent, False
        return Place(node, tokens, at if same else _advance(context, (0, 0), tokens))

    def _first(self, context: Tokens, at: At) -> Hashable:
        """Key of a child among its siblings: its first page of tokens."""
        if self._page == 1:
            segment, start, _ = context[at[0]]
            return segment, start + at[1]
        return _piece(context, at, self._page)

    def _agree(self, node: Node, context: Tokens, at: At, limit: int) -> tuple[int, At]:
        """Count the tokens of the node that the context repeats (whole pages), and find where the context continues.

        The place is only meaningful when the whole node agrees.
        """
        index, offset = at
        key = node.key
        if not offset and node.tokens <= limit and context[index : index + len(key)] == key:
            return node.tokens, (index + len(key), 0)
        shared = 0
        for segment, start, stop in key:
            while start < stop and index < len(context):
                other = context[index]
                if other.segment != segment or other.start + offset != start:
                    break
                step = min(stop - start, other.stop - start)
                start += step
                shared += step
                offset += step
                if other.start + offset == other.stop:
                    index, offset = index + 1, 0
            if start < stop:
                break
        shared = min(shared, limit)
        return shared - shared % self._page, (index, offset)


def _advance(context: Tokens, at: At, tokens: int) -> At:
    """Return the place `tokens` tokens after `at`."""
    index, offset = at
    left = tokens + offset
    while left:
        size = context[index].stop - context[index].start
        if size > left:
            break
        left -= size
        index += 1
    return index, left


def _piece(context: Tokens, at: At, tokens: int) -> Tokens:
    """Cut `tokens` tokens from `at` on out of a context, as a sequence of its own."""
    index, offset = at
    stop, rest = _advance(context, at, tokens)
    if stop == index:
        run = context[index]
        return (Run(run.segment, run.start + offset, run.start + rest),)
    head = context[index:stop]
    if offset:
        head = (Run(head[0].segment, head[0].start + offset, head[0].stop), *head[1:])
    if rest:
        tail = context[stop]
        return (*head, Run(tail.segment, tail.start, tail.start + rest))
    return head
