# SPDX-License-Identifier: Apache-2.0
"""The radix tree of a hybrid sliding-window pool (rules 38-41).

In addition to full-attention slots a node may hold the window slots of its tokens: all of them or none ("dead"). A
prefix is reusable only where the `window` tokens before its end have window slots, so a lock holds only that part of
the path's end in the window pool.

The nodes with window slots form a recency list of their own, most recent first. A match or an insertion moves its end
node and the ancestors within a window (and a page) to the front, the end node first. Under window pressure the list is
walked from its old end: a leaf without a lock is evicted as a whole, an inner node loses only its window slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from sqsim.models.serving.radix import Lock, Match, Node, RadixTree
from sqsim.models.serving.tokens import Tokens


class WindowTree(RadixTree):
    """A radix tree with window slots; `window` tokens with window slots before a position make it reusable."""

    def __init__(self, page: int, window: int) -> None:
        self._window = window
        self._tail = -(-window // page) * page  # a window in whole pages
        self._ends = Node((), 0, None)  # between the most recent (its `older`) and the oldest (its `newer`)
        self._ends.newer = self._ends.older = self._ends
        self.window_evictable = 0
        self.window_protected = 0
        super().__init__(page)
        self.root.window_locks = 1

    def lock(self, node: Node) -> Lock:
        """Lock the path in the full pool, and a window of its end (whole nodes) in the window pool."""
        super().lock(node)
        covered = 0
        held = node
        while held.parent is not None and covered < self._window:
            self._hold_window(held)
            covered += held.tokens
            held = held.parent
        return Lock(node, covered)

    def unlock(self, lock: Lock) -> None:
        """Undo a lock; splits since then divided nodes, but the covered tokens are the same."""
        covered = lock.window
        held = lock.node
        while covered > 0:
            self._drop_window(held)
            covered -= held.tokens
            assert held.parent is not None
            held = held.parent
        super().unlock(lock)

    def unlocked_window(self, node: Node) -> int:
        """Count the evictable window slots that a lock on `node` would withdraw."""
        tokens = covered = 0
        while node.parent is not None and covered < self._window:
            if node.live and not node.window_locks:
                tokens += node.tokens
            covered += node.tokens
            node = node.parent
        return tokens

    def window_victims(self) -> Iterator[Node]:
        """Iterate over nodes with unlocked window slots, oldest first; the caller evicts each before it takes the next."""
        node = self._older_end(self._ends)
        while node is not self._ends:
            following = self._older_end(node)
            yield node
            node = following

    def evict_window(self, node: Node) -> None:
        """Free only a node's window slots."""
        self.window_evictable -= node.tokens
        node.live = False
        self._unlink(node)

    def evict_leaf(self, node: Node) -> None:
        """Free a leaf as a whole."""
        assert self.is_free_leaf(node)
        self._remove(node)

    def live_nodes(self) -> Iterator[Node]:
        """Iterate over the recency list, most recent first."""
        node = self._ends.older
        while node is not self._ends:
            yield node
            node = node.older

    # The hooks of RadixTree.

    def _found(self, node: Node, matched: int) -> Match:
        """Find the deepest node of the path whose end has a live window before it, or a live path from the root."""
        usable, tokens = node, matched
        live = 0
        at, start = node, matched
        while at.parent is not None and live < self._window:
            live += at.tokens
            start -= at.tokens
            if not at.live:
                live, usable, tokens = 0, at.parent, start
            at = at.parent
        self._touch(usable)
        return Match(usable, tokens, matched if matched > tokens else None)

    def _split(self, node: Node, at: int) -> Node:
        upper = super()._split(node, at)
        upper.live, upper.window_locks = node.live, node.window_locks
        if upper.live:
            self._link(upper, node)
        return upper

    def _overlap(self, node: Node, start: int, slid: int) -> int:
        """Count the row's window slots that duplicate those of a node from `start` on.

        A dead node takes over the row's live window slots instead.
        """
        if node.live:
            return node.tokens - min(max(slid - start, 0), node.tokens)
        live_from = max(start, slid)
        if live_from < start + node.tokens:
            if live_from > start:
                self._split(node, live_from - start)
            self._revive(node)
        return 0

    def _grow(self, parent: Node, first: Hashable, key: Tokens, tokens: int, start: int, slid: int) -> Node:
        """Add a leaf: the part that slid out is dead, and the last window is a node of its own, which is cheap to lock."""
        leaf = super()._grow(parent, first, key, tokens, start, slid)
        live_from = max(start, slid)
        if live_from < start + tokens:
            if live_from > start:
                self._split(leaf, live_from - start)
            if leaf.tokens > self._tail:
                self._revive(self._split(leaf, leaf.tokens - self._tail))
            self._revive(leaf)
        return leaf

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        if node.live:
            self.window_evictable -= node.tokens
            self._unlink(node)

    def _touch(self, node: Node) -> None:
        super()._touch(node)
        newer, covered = self._ends, 0
        while node.parent is not None and covered < self._window + self._page:
            if node.live:
                self._unlink(node)
                self._link(node, newer)
                newer = node
            covered += node.tokens
            node = node.parent

    # Window slots and locks of one node.

    def _revive(self, node: Node) -> None:
        node.live = True
        self._link(node, self._ends)
        if node.window_locks:
            self.window_protected += node.tokens
        else:
            self.window_evictable += node.tokens

    def _hold_window(self, node: Node) -> None:
        if node.live and not node.window_locks:
            self.window_evictable -= node.tokens
            self.window_protected += node.tokens
        node.window_locks += 1

    def _drop_window(self, node: Node) -> None:
        node.window_locks -= 1
        if node.live and not node.window_locks:
            self.window_evictable += node.tokens
            self.window_protected -= node.tokens

    # The recency list.

    def _link(self, node: Node, newer: Node) -> None:
        """Insert a node into the list directly after the node `newer`."""
        node.newer, node.older = newer, newer.older
        newer.older.newer = node
        newer.older = node

    def _unlink(self, node: Node) -> None:
        node.newer.older, node.older.newer = node.older, node.newer
        del node.newer, node.older

    def _older_end(self, node: Node) -> Node:
        """Find the next newer node without a window lock, or the end of the list."""
        node = node.newer
        while node is not self._ends and node.window_locks:
            node = node.newer
        return node
