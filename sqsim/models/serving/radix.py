"""The radix tree that shares KV between contexts, and its least-recently-used eviction (rules 10, 25-33).

A node holds the KV of one run of tokens behind its parent's. Keys are `Tokens`, so match, insert and split cost runs
and not tokens. With pages, every boundary lies on a whole page and children are told apart by their whole first page.

Recency (rule 32): a match or an insertion touches the whole path to its end; a split stamps the lower part just before.
Only leaves without a lock can be evicted, least recent first, whole nodes, so an inner node's recency counts for nothing
until it becomes a leaf. It is written down at the end of a touched path only, and handed up when a leaf goes: by then a
node has heard of every touch that went through it. Candidates wait in a heap whose entries are checked when popped: a
stamp only grows, so an outdated entry is put back where it belongs now.

Nor do locks walk the whole path: a node counts its own and, as one each, its children that are held.

A conversation comes back to where it was. Whoever keeps its `Trail` spares the walk down from the root.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from sqsim.models.serving.tokens import Run, Tokens, common_prefix, split

At = tuple[int, int]
"""A place in a context: (index of the run, tokens into it)."""


class Node:
    """`tokens` tokens of KV behind the parent's; `locks`: rows that hold it, and children that are held.

    The last four are for a tree with window slots (sliding_window.py).
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
        self.touched = 0  # the last touch that ended here, or below in a leaf that is gone
        self.queued = False  # does the heap have an entry of it?
        self.gone = False  # it left the tree
        self.live = False  # does it hold window slots?
        self.window_locks = 0  # rows that hold on to them
        self.newer: Node  # neighbours in the recency list of window slots, while it is in it
        self.older: Node


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


class Place(NamedTuple):
    """The end of a node: `tokens` from the root, at `at` of the context that is looked up."""

    node: Node
    tokens: int
    at: At


class Trail(NamedTuple):
    """Where a conversation's last insertion ended, and what it had inserted: where its next match may begin.

    It changes no result. Nodes that left the tree since are stepped over, a context that has changed is compared.
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
        self.splits = 0  # how often a node was cut in two
        self.root = Node((), 0, None)
        self.root.locks = 1

    def match(self, context: Tokens, limit: int, trail: Trail | None = None) -> Match:
        """Longest prefix of the first `limit` tokens that is in the tree; refreshes its path, may split its end."""
        limit -= limit % self._page
        if not limit:
            return Match(self.root, 0)
        node, matched, at = self._begin(context, limit, trail)
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

        The row owns its slots from `owned_from` on; where the tree has the tokens already, those are duplicates. Its
        window slots below `slid` are gone. `start`: a node that these tokens are known to reach.
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
        """Hold the path from `node` to the root."""
        tokens = 0
        held: Node | None = node
        while held is not None:
            held.locks += 1
            if held.locks > 1:
                break  # its ancestors are held already; the root always is
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
        """Every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # What a tree with window slots does more.

    def _overlap(self, node: Node, start: int, slid: int) -> int:  # noqa: ARG002
        return 0

    def _touch(self, node: Node) -> None:
        """The path to `node` was used just now."""
        node.stamp = node.touched = self._tick()

    def _found(self, node: Node, matched: int) -> Match:
        """What a match that reached `node` may use."""
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
        """Cut a node in two; the new upper part is returned, the lower one keeps its identity."""
        parent, (head, tail) = node.parent, split(node.key, at)
        assert parent is not None
        self.splits += 1
        upper = parent.children[node.first] = Node(head, at, parent, node.first, self._tick())
        upper.locks = 1 if node.locks else 0
        upper.touched = node.touched
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

    def _begin(self, context: Tokens, limit: int, trail: Trail | None) -> Place:
        """Where a match may begin: the deepest node of a trail that is in the tree and agrees with the context."""
        if trail is None:
            return Place(self.root, 0, (0, 0))
        known, place = trail
        index, offset = place.at
        same = not offset and context[:index] == known[:index]
        return self._climb(context, place, limit if same else min(limit, common_prefix(context, known)), same)

    def _climb(self, context: Tokens, place: Place, limit: int, same: bool = True) -> Place:
        """The deepest node on the way up from a place that is in the tree and ends within `limit` tokens.

        `same`: the place's `at` holds for this context.
        """
        node, tokens, at = place
        while node.gone or tokens > limit:
            assert node.parent is not None, "the root stays, and ends at 0"
            tokens -= node.tokens
            node, same = node.parent, False
        return Place(node, tokens, at if same else _advance(context, (0, 0), tokens))

    def _first(self, context: Tokens, at: At) -> Hashable:
        """What tells a child apart from its siblings: its first page of tokens."""
        if self._page == 1:
            segment, start, _ = context[at[0]]
            return segment, start + at[1]
        return _piece(context, at, self._page)

    def _agree(self, node: Node, context: Tokens, at: At, limit: int) -> tuple[int, At]:
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


def _advance(context: Tokens, at: At, tokens: int) -> At:
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


def _piece(context: Tokens, at: At, tokens: int) -> Tokens:
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
