"""The radix tree of a hybrid sliding-window pool (rules 38-41).

Beside full-attention slots a node may hold the window slots of its tokens: all of them or none ("dead"). A prefix is
reusable only where `window` tokens with window slots lie before it, so a lock holds just that much of the path's end.

Window slots have their own recency list, most recent first, of the nodes that have them; a match or an insertion
moves its end node and the ancestors within a window (and a page) to the front, the node first. Under window pressure
the list is walked from its old end: a leaf that nobody holds goes as a whole, an inner node only loses its window.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqsim.models.radix import Lock, Match, Node, RadixTree
from sqsim.models.tokens import Tokens


class WindowNode(Node):
    """A node that may hold window slots, of which `window_locks` rows hold on to."""

    __slots__ = ("live", "newer", "older", "window_locks")

    def __init__(self, key: Tokens, tokens: int, parent: Node | None, stamp: int) -> None:
        super().__init__(key, tokens, parent, stamp)
        self.live = False
        self.window_locks = 0
        self.newer: WindowNode = self  # neighbours in the recency list; itself when not in it
        self.older: WindowNode = self


def _window_node(node: Node | None) -> WindowNode:
    assert isinstance(node, WindowNode), "a window tree holds window nodes only"
    return node


class WindowTree(RadixTree):
    """A radix tree with window slots; `window` tokens before a position make it reusable."""

    def __init__(self, page: int, window: int) -> None:
        self._window = window
        self._tail = -(-window // page) * page  # a window in whole pages
        self._ends = WindowNode(
            (), 0, None, 0
        )  # between the most recent (its `older`) and the oldest (its `newer`)
        self.window_evictable = 0
        self.window_protected = 0
        super().__init__(page)
        _window_node(self.root).window_locks = 1

    def lock(self, node: Node) -> Lock:
        """Hold the path in the full pool, and a window of it (whole nodes) in the window pool."""
        super().lock(node)
        covered = 0
        held = node
        while held.parent is not None and covered < self._window:
            self._hold_window(_window_node(held))
            covered += held.tokens
            held = held.parent
        return Lock(node, covered)

    def unlock(self, lock: Lock) -> None:
        """Undo a lock; splits since then cut nodes, but the tokens that were covered are the same."""
        covered = lock.window
        held = lock.node
        while covered > 0:
            self._drop_window(_window_node(held))
            covered -= held.tokens
            assert held.parent is not None
            held = held.parent
        super().unlock(lock)

    def unlocked_window(self, node: Node) -> int:
        """Evictable window slots that a lock on `node` would withdraw."""
        tokens = covered = 0
        while node.parent is not None and covered < self._window:
            window_node = _window_node(node)
            if window_node.live and not window_node.window_locks:
                tokens += node.tokens
            covered += node.tokens
            node = node.parent
        return tokens

    def is_free_leaf(self, node: Node) -> bool:
        """Whether this node may be evicted as a whole: not while a row holds its window slots."""
        return super().is_free_leaf(node) and not _window_node(node).window_locks

    def window_victims(self) -> Iterator[WindowNode]:
        """Nodes with window slots nobody holds, oldest first; the caller evicts each before it asks for the next."""
        node = self._older_end(self._ends)
        while node is not self._ends:
            following = self._older_end(node)
            yield node
            node = following

    def evict_window(self, node: WindowNode) -> None:
        """Free a node's window slots only."""
        self.window_evictable -= node.tokens
        node.live = False
        self._unlink(node)

    def evict_leaf(self, node: WindowNode) -> None:
        """Free a leaf as a whole."""
        assert self.is_free_leaf(node)
        self._remove(node)

    def live_nodes(self) -> Iterator[WindowNode]:
        """The recency list, most recent first."""
        node = self._ends.older
        while node is not self._ends:
            yield node
            node = node.older

    # The hooks of RadixTree.

    def _node(self, key: Tokens, tokens: int, parent: Node | None) -> Node:
        return WindowNode(key, tokens, parent, self._tick())

    def _match(self, context: Tokens, limit: int) -> Match:
        node, matched = self.root, 0
        usable, usable_tokens = self.root, 0
        run: float = float("inf")  # live tokens without a gap up to here; everything, while nothing is dead
        at = (0, 0)
        while matched < limit:
            child = node.children.get(self._first(context, at))
            if child is None:
                break
            shared, at = self._agree(child, context, at, limit - matched)
            partial = shared < child.tokens
            node = self._split(child, shared) if partial else child
            matched += shared
            run = run + node.tokens if _window_node(node).live else 0
            if run >= self._window:
                usable, usable_tokens = node, matched
            if partial:
                break
        self._touch_window(usable)
        self._stamp_path(usable)
        return Match(usable, usable_tokens, matched if matched > usable_tokens else None)

    def _split(self, node: Node, at: int) -> Node:
        upper, lower = _window_node(super()._split(node, at)), _window_node(node)
        upper.live, upper.window_locks = lower.live, lower.window_locks
        if upper.live:
            self._link(upper, lower)
        return upper

    def _overlap(self, node: Node, start: int, slid: int) -> int:
        """The tree has [start, start + n) already: how many of the row's window slots there are superfluous.

        A dead node takes over the row's live window slots instead.
        """
        known = _window_node(node)
        if known.live:
            return known.tokens - min(max(slid - start, 0), known.tokens)
        live_from = max(start, slid)
        if live_from < start + known.tokens:
            if live_from > start:
                self._split(known, live_from - start)
            self._revive(known)
        return 0

    def _grow(self, parent: Node, key: Tokens, tokens: int, start: int, slid: int) -> Node:
        """A new leaf: what slid out is dead, and the last window is a node of its own so that locking it is cheap."""
        leaf = _window_node(super()._grow(parent, key, tokens, start, slid))
        live_from = max(start, slid)
        if live_from < start + tokens:
            if live_from > start:
                self._split(leaf, live_from - start)
            if leaf.tokens > self._tail:
                self._revive(_window_node(self._split(leaf, leaf.tokens - self._tail)))
            self._revive(leaf)
        return leaf

    def _remove(self, node: Node) -> None:
        gone = _window_node(node)
        super()._remove(gone)
        if gone.live:
            self.window_evictable -= gone.tokens
            self._unlink(gone)

    def _touch_window(self, node: Node) -> None:
        behind, covered = self._ends, 0
        while node.parent is not None and covered < self._window + self._page:
            recent = _window_node(node)
            if recent.live:
                self._unlink(recent)
                self._link(recent, behind)
                behind = recent
            covered += node.tokens
            node = node.parent

    # Window slots and locks of one node.

    def _revive(self, node: WindowNode) -> None:
        node.live = True
        self._link(node, self._ends)
        if node.window_locks:
            self.window_protected += node.tokens
        else:
            self.window_evictable += node.tokens

    def _hold_window(self, node: WindowNode) -> None:
        if node.live and not node.window_locks:
            self.window_evictable -= node.tokens
            self.window_protected += node.tokens
        node.window_locks += 1

    def _drop_window(self, node: WindowNode) -> None:
        node.window_locks -= 1
        if node.live and not node.window_locks:
            self.window_evictable += node.tokens
            self.window_protected -= node.tokens

    # The recency list.

    def _link(self, node: WindowNode, behind: WindowNode) -> None:
        """Insert a node as the next older one behind another."""
        node.newer, node.older = behind, behind.older
        behind.older.newer = node
        behind.older = node

    def _unlink(self, node: WindowNode) -> None:
        node.newer.older, node.older.newer = node.older, node.newer
        node.newer = node.older = node

    def _older_end(self, node: WindowNode) -> WindowNode:
        """The next newer node nobody holds, or the end."""
        node = node.newer
        while node is not self._ends and node.window_locks:
            node = node.newer
        return node
