# SPDX-License-Identifier: Apache-2.0
"""The KV cache, which joins pool, tree and sessions (rules 10, 25-31, 36, 39-41).

A request gets a row at admission, grows it, publishes it to the tree when a result is in (a *checkpoint* in SGLang),
and gives it back at its end.
"""

from __future__ import annotations

from sqsim.models.serving.limits import SLIDE_INTERVAL, Limits
from sqsim.models.serving.pool import Pool, Row
from sqsim.models.serving.radix import MatchHint, Node, Place, RadixTree
from sqsim.models.serving.request import Request
from sqsim.models.serving.session import Sessions
from sqsim.models.serving.sliding_window import WindowTree
from sqsim.models.serving.tokens import place


class KvCache:
    """The pool, the tree, the sessions, and every operation that moves KV between them."""

    def __init__(self, limits: Limits) -> None:
        self.pool = Pool(limits)
        self._windows = WindowTree(limits.page_size, self.pool.window) if self.pool.hybrid else None
        self.tree: RadixTree = self._windows or RadixTree(limits.page_size)
        self.sessions = Sessions(self.pool, self.tree)
        self._stock_sessions = not limits.release_idle_sessions
        self.evictions: list[list[int]] = []  # of this round: per eviction, the sizes of the evicted leaves
        self.released = 0  # of this round: idle sessions released
        self.aux: dict[Request, None] = {}  # aux requests with a row (a set that keeps its order)

    def remaining(self) -> int:
        """Count the full-attention slots that are free or evictable (rule 11)."""
        return self.pool.free + self.tree.evictable

    def remaining_window(self) -> int:
        """Count the window slots that are free or evictable."""
        return 0 if self._windows is None else self.pool.window_free + self._windows.window_evictable

    # Prefixes.

    def match(self, request: Request) -> Node:
        """Find the prefix of a waiting request; returns the tree node that an admission has to lock.

        A session's turn continues on its row, a fork reads its session's row, and any other request asks the tree. The
        last token is always computed again (rule 10).
        """
        request.branch = request.lender = None
        session = self.sessions.get(request.asked.session)
        if session is not None and request.asked.role == "main":
            request.lender = session
            request.prefix = self.sessions.lend(session, request)
            return self.tree.root
        if request.asked.role == "aux":
            request.prefix = self.sessions.readable(request)
            if request.prefix:
                request.lender = session
                return self.tree.root
        tokens, hint = request.known - 1, request.match_hint
        if request.asked.role == "main" and (limit := self.sessions.publish_limit(request)) is not None:
            # A first turn takes at most as many tokens from the tree as it may publish, so that the rest of its row can
            # be dropped.
            tokens, hint = min(tokens, limit), None
        node, request.prefix, request.branch = self.tree.match(request.context, tokens, hint)
        return node

    def admit(self, request: Request, node: Node) -> None:
        """Give a matched request its row; `allocate` adds the slots."""
        lender = request.lender
        request.fresh = lender is None or request.asked.role == "aux"
        if request.asked.role == "aux":
            self.aux[request] = None
        if lender is None:
            request.row = Row(request.prefix, request.prefix, lock=self.tree.lock(node))
        elif request.asked.role == "main":
            self.sessions.resume(lender, request)
            request.row = lender.row
        else:
            request.row = Row(request.prefix, request.prefix)
            self.sessions.fork(lender, request)

    def allocate(self, requests: list[Request]) -> None:
        """Allocate the slots for the extends of one prefill (rule 31: one reclaim for all of them)."""
        demand = sum(request.extend for request in requests)
        if self.pool.page > 1:
            demand += len(requests) * self.pool.page
        self.make_room(demand)
        for request in requests:
            row = request.row
            assert row is not None
            if request.asked.role == "main" and request.asked.session is not None and request.lender is None:
                self.sessions.start(request)
            self.pool.extend(row, request.extend_end)

    def publish(self, request: Request, upto: int) -> None:
        """Insert the first `upto` tokens of an unfinished request into the tree, as far as allowed (rule 25)."""
        if request.asked.session is not None:
            lender = request.lender
            if request.asked.role == "aux" or lender is None or not lender.publishes:
                return
            limit = self.sessions.publish_limit(request)
            if limit is not None:
                upto = min(upto, limit)
        row = request.row
        assert row is not None
        if upto > row.shared:
            self._insert(request, row, upto, running=True)

    # Ends.

    def finish(self, request: Request) -> None:
        """End a request that ran: publish or keep its KV according to its kind (rules 27, 28, 36, 42)."""
        row = request.row
        assert row is not None
        length = row.length
        finished = request.finished_tokens()
        if finished is not None:
            length = min(length, request.n_in + finished)
        request.kv_tokens = length
        if request.asked.session is None:
            self._insert(request, row, length, running=False)
            self._free(request, row)
            return
        lender = request.lender
        if request.asked.role == "main" and lender is not None:
            if request.finish != "abort":
                self.sessions.keep(lender, request.n_in + (finished or 0))
                request.row = None
            elif self.sessions.lose(lender):
                if self._stock_sessions:
                    self._insert(request, row, length, running=False)
                self._free(request, row)
            request.row = request.lender = None
        else:
            self._free(request, row)
        self.sessions.finish(request)

    def retract(self, request: Request) -> None:
        """Take the KV from a request that returns to the queue (rule 34)."""
        row, lender = request.row, request.lender
        assert row is not None
        if request.asked.role == "main" and lender is not None:
            if self._stock_sessions:
                self.sessions.keep(lender, request.known)
            elif self.sessions.lose(lender):
                self._free(request, row)
            request.row = request.lender = None
        else:
            self._free(request, row)

    def discard(self, request: Request) -> None:
        """Take the KV from a request that has ended, without publishing it (rules 34, 43)."""
        row, lender = request.row, request.lender
        assert row is not None
        request.kv_tokens = row.length
        if request.asked.role != "main" or lender is None:
            self._free(request, row)
        elif self._stock_sessions and request.finish == "out_of_memory":
            self.sessions.keep(lender, request.known)
        elif self.sessions.lose(lender):
            self._free(request, row)
        request.row = request.lender = None
        if request.asked.session is not None:
            self.sessions.finish(request)

    def _free(self, request: Request, row: Row) -> None:
        self.pool.release(row)
        if row.lock is not None:
            self.tree.unlock(row.lock)
            row.lock = None
        if request.asked.role == "aux":
            del self.aux[request]
            if request.lender is not None:
                self.sessions.unfork(request)
        request.row = None

    # Room.

    def make_room(self, slots: int) -> None:
        """Evict least recently used leaves until `slots` slots of both kinds are free (rules 31, 41)."""
        pool, windows = self.pool, self._windows
        if pool.fits(slots):
            return
        leaves: list[int] = []
        window_wanted = slots - pool.window_free
        window_freed = 0
        while pool.free < slots:
            node = self.tree.evict()
            if node is None:
                break
            window_freed += self._reclaimed(node, leaves)
        if windows is not None and window_freed < window_wanted and pool.window_free < slots:
            for victim in windows.window_victims():
                if windows.is_free_leaf(victim):
                    windows.evict_leaf(victim)
                    window_freed += self._reclaimed(victim, leaves)
                else:
                    windows.evict_window(victim)
                    pool.give(0, victim.tokens)
                    window_freed += victim.tokens
                if window_freed >= window_wanted or pool.window_free >= slots:
                    break
        self.evictions.append(leaves)

    def room_for_decode(self, requests: list[Request]) -> bool:
        """Make room for one more token of each request; returns whether that was possible (rule 24).

        With the plugin, idle sessions are released before any request is retracted.
        """
        page = self.pool.page
        if page == 1:
            slots = len(requests)
        else:
            slots = page * sum(
                1 for request in requests if request.row is None or not request.row.length % page
            )
        self.make_room(slots)
        if not self.pool.fits(slots) and not self._stock_sessions:
            while not self.pool.fits(slots) and self.release_oldest():
                self.make_room(slots)
        return self.pool.fits(slots)

    def release_oldest(self, spare: Request | None = None) -> bool:
        """Release the least recently used idle session without forks, except that of `spare`; returns whether it did."""
        idle = self.sessions.releasable(spare)
        if idle:
            self.sessions.release(idle[0])
            self.released += 1
        return bool(idle)

    def slide(self, request: Request) -> None:
        """Free window slots of a decoding request once enough have slid out (rule 39)."""
        row = request.row
        assert row is not None
        length = request.known - 1
        if request.decode_steps and length - self.pool.window >= row.slid + SLIDE_INTERVAL:
            self.pool.slide(row, length, self._window_floor(request))

    def slide_through(self, request: Request, rounds: int) -> None:
        """Free the window slots that `slide` would free in `rounds` decode rounds from this one on."""
        row, pool = request.row, self.pool
        assert row is not None
        floor = self._window_floor(request)
        # A first decode step frees nothing.
        length, last = request.known - (1 if request.decode_steps else 0), request.known + rounds - 2
        while (length := max(length, row.slid + pool.window + SLIDE_INTERVAL)) <= last:
            before = row.slid
            pool.slide(row, length, floor)
            if row.slid == before and floor is not None and length - pool.window >= floor + pool.page:
                break  # a fork still reads the slots that would be freed
            length += 1

    # Details.

    def _window_floor(self, request: Request) -> int | None:
        if request.asked.session is None or request.asked.role == "aux":
            return None
        return self.sessions.window_floor(request.asked.session)

    def _reclaimed(self, node: Node, leaves: list[int]) -> int:
        """Give back the slots of a leaf that left the tree; returns its window slots."""
        window = node.tokens if node.live else 0
        self.pool.give(node.tokens, window)
        leaves.append(node.tokens)
        return window

    def _insert(self, request: Request, row: Row, upto: int, *, running: bool) -> None:
        """Insert the row's first `upto` tokens (whole pages) into the tree, and move the row's lock to their end."""
        pool, tree = self.pool, self.tree
        branch = request.branch
        if branch is not None and row.shared < branch <= upto:
            upto = branch  # rule 40: the tree already has full KV up to here, and takes no more for now
        else:
            branch = None
        if pool.hybrid and running:
            pool.slide(row, upto - 1, self._window_floor(request))
        aligned = pool.floor(upto)
        context, total = request.context, request.n_in + request.output_tokens
        start = None
        if row.lock is not None:
            start = Place(row.lock.node, row.shared, place(context, total, row.shared))
        inserted = tree.insert(context, aligned, row.shared, row.slid, start)
        pool.give(inserted.duplicates, inserted.window_duplicates)
        if not pool.hybrid and 0 < pool.floor(request.n_in) < aligned:
            # Output and prompt become nodes of their own (rule 28); the walk refreshes the prompt's recency.
            tree.insert(context, pool.floor(request.n_in), aligned, start=start)
        released, row.lock = row.lock, tree.lock(inserted.node)
        if released is not None:
            tree.unlock(released)
        row.shared = aligned
        request.match_hint = MatchHint(context, Place(inserted.node, aligned, place(context, total, aligned)))
        if branch is not None:
            request.branch = None
            if running:
                pool.slide(row, request.extend_end - 1, self._window_floor(request))
