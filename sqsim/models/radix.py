"""The radix tree that shares KV between contexts, and its least-recently-used eviction (rules 10, 25-33).

A node holds the KV of one run of tokens behind its parent's. Keys are `Tokens`, so match, insert and split cost runs
and not tokens. With pages, every boundary lies on a whole page and children are told apart by their whole first page.

Recency (rule 32) is a counter: a match stamps its end node now and each ancestor slightly older; an insert stamps
the nodes it walks one after the other, the new leaf newest; a split stamps the lower part at the split. Only leaves
without a lock can be evicted, oldest stamp first, whole nodes. They wait in a heap whose entries are checked when
popped: a stamp only grows, so an outdated entry is put back where it belongs now.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from sqsim.models.tokens import Run, Tokens

_TICK = 1 << 20  # room between two ticks for the ancestors of one match; deeper paths than this do not occur


class Node:
    """`tokens` tokens of KV behind the parent's, held by `locks` rows."""

    __slots__ = ("children", "key", "locks", "parent", "queued", "stamp", "tokens")

    def __init__(self, key: Tokens, tokens: int, parent: Node | None, stamp: int) -> None:
        self.key = key
        self.tokens = tokens
        self.parent = parent  # None for the root, and for a node that left the tree
        self.children: dict[Hashable, Node] = {}
        self.locks = 0
        self.stamp = stamp
        self.queued = False  # does the heap have an entry of it?


class Lock(NamedTuple):
    """A row's hold on the path from `node` to the root; `window` tokens at its end are held in the window pool too."""

    node: Node
    window: int = 0


class Match(NamedTuple):
    """The longest usable prefix; `branch`: full KV goes on up to here, but its window KV is gone (rule 40)."""

    node: Node
    tokens: int
    branch: int | None = None


class Insertion(NamedTuple):
    """Where an insertion ended and how many of the row's own slots it made superfluous (rule 26)."""

    node: Node
    duplicates: int
    window_duplicates: int


class RadixTree:
    """The tree over full-attention slots; sliding_window.py adds the window slots."""

    def __init__(self, page: int = 1) -> None:
        self._page = page
        self._clock = 0
        self._pushed = 0
        self._heap: list[tuple[int, int, Node]] = []
        self.evictable = 0  # tokens in nodes without a lock
        self.protected = 0  # tokens in nodes with one
        self.root = self._node((), 0, None)
        self.root.locks = 1

    def match(self, context: Tokens, limit: int) -> Match:
        """Longest prefix of the first `limit` tokens that is in the tree; refreshes its path, may split its end."""
        limit -= limit % self._page
        return self._match(context, limit) if limit else Match(self.root, 0)

    def insert(self, context: Tokens, limit: int, owned_from: int = 0, slid: int = 0) -> Insertion:
        """Put the first `limit` tokens (whole pages) of a row into the tree.

        The row owns its slots from `owned_from` on; where the tree has the tokens already, those are duplicates. Its
        window slots below `slid` are gone.
        """
        assert limit % self._page == 0, f"insert of {limit} tokens, page size {self._page}"
        self.root.stamp = self._tick()
        node, matched, window_duplicates = self.root, 0, 0
        at = (0, 0)
        while matched < limit:
            child = node.children.get(self._first(context, at))
            if child is None:
                break
            child.stamp = self._tick()
            shared, after = self._agree(child, context, at, limit - matched)
            if shared < child.tokens:
                child = self._split(child, shared)
                after = _advance(context, at, shared)
            if owned_from < matched + shared:
                window_duplicates += self._overlap(child, matched, slid)
            node, at = child, after
            matched += shared
        duplicates = max(0, matched - owned_from)
        if matched < limit:
            node = self._grow(node, _piece(context, at, limit - matched), limit - matched, matched, slid)
        self._touch_window(node)
        return Insertion(node, duplicates, window_duplicates)

    def lock(self, node: Node) -> Lock:
        """Hold the path from `node` to the root."""
        held = node
        while held.parent is not None:
            if not held.locks:
                self.evictable -= held.tokens
                self.protected += held.tokens
            held.locks += 1
            held = held.parent
        return Lock(node)

    def unlock(self, lock: Lock) -> None:
        """Undo a lock."""
        node = lock.node
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += node.tokens
                self.protected -= node.tokens
            node = node.parent
        self._offer(lock.node)

    def unlocked(self, node: Node) -> int:
        """Evictable tokens on the path from `node` to the root: what a lock on it would withdraw."""
        tokens = 0
        while not node.locks and node.parent is not None:
            tokens += node.tokens
            node = node.parent
        return tokens

    def unlocked_window(self, node: Node) -> int:  # noqa: ARG002
        """The same in window slots."""
        return 0

    def evict(self) -> Node | None:
        """Remove the least recently used leaf that nobody holds; None when there is none."""
        while self._heap:
            stamp, _, node = self._heap[0]
            if stamp == node.stamp and self.is_free_leaf(node):
                heapq.heappop(self._heap)
                node.queued = False
                self._remove(node)
                return node
            if self.is_free_leaf(node):
                heapq.heapreplace(self._heap, self._entry(node))
            else:
                heapq.heappop(self._heap)
                node.queued = False
        return None

    def is_free_leaf(self, node: Node) -> bool:
        """Whether this node may be evicted as a whole."""
        return not node.children and not node.locks and node.parent is not None

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # What a tree with window slots does more.

    def _node(self, key: Tokens, tokens: int, parent: Node | None) -> Node:
        return Node(key, tokens, parent, self._tick())

    def _overlap(self, node: Node, start: int, slid: int) -> int:  # noqa: ARG002
        return 0

    def _touch_window(self, node: Node) -> None:
        pass

    def _grow(self, parent: Node, key: Tokens, tokens: int, start: int, slid: int) -> Node:  # noqa: ARG002
        leaf = self._node(key, tokens, parent)
        parent.children[self._first(key, (0, 0))] = leaf
        self.evictable += tokens
        self._offer(leaf)
        return leaf

    def _match(self, context: Tokens, limit: int) -> Match:
        node, matched = self.root, 0
        at = (0, 0)
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
        self._stamp_path(node)
        return Match(node, matched)

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the new upper part is returned, the lower one keeps its identity."""
        assert node.parent is not None
        first = self._first(node.key, (0, 0))
        upper = self._node(_piece(node.key, (0, 0), at), at, node.parent)
        upper.locks = node.locks
        node.parent.children[first] = upper
        node.key, node.tokens = (
            _piece(node.key, _advance(node.key, (0, 0), at), node.tokens - at),
            node.tokens - at,
        )
        node.parent, node.stamp = upper, self._tick()
        upper.children[self._first(node.key, (0, 0))] = node
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._first(node.key, (0, 0))]
        node.parent = None
        self.evictable -= node.tokens
        self._offer(parent)

    # Recency.

    def _tick(self) -> int:
        self._clock += _TICK
        return self._clock

    def _stamp_path(self, node: Node | None) -> None:
        stamp = self._tick()
        while node is not None:
            node.stamp = stamp
            stamp -= 1
            node = node.parent

    def _entry(self, node: Node) -> tuple[int, int, Node]:
        self._pushed += 1
        return node.stamp, self._pushed, node

    def _offer(self, node: Node) -> None:
        if not node.queued and self.is_free_leaf(node):
            node.queued = True
            heapq.heappush(self._heap, self._entry(node))

    # Walking a context: `at` is (index of the run, tokens into it).

    def _first(self, context: Tokens, at: tuple[int, int]) -> Hashable:
        """What tells a child apart from its siblings: its first page of tokens."""
        if self._page == 1:
            segment, start, _ = context[at[0]]
            return segment, start + at[1]
        return _piece(context, at, self._page)

    def _agree(
        self, node: Node, context: Tokens, at: tuple[int, int], limit: int
    ) -> tuple[int, tuple[int, int]]:
        """How many tokens of the node the context repeats (whole pages), and where the context goes on.

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


def _advance(context: Tokens, at: tuple[int, int], tokens: int) -> tuple[int, int]:
    """The place `tokens` tokens behind `at`."""
    index, offset = at
    left = tokens + offset
    while left:
        size = context[index].stop - context[index].start
        if size > left:
            break
        left -= size
        index += 1
    return index, left


def _piece(context: Tokens, at: tuple[int, int], tokens: int) -> Tokens:
    """`tokens` tokens from `at` on, as a sequence of its own."""
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
