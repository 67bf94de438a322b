# SPDX-License-Identifier: Apache-2.0
"""Admission to the next prefill batch: one pass over the queue (rules 5, 9-19, 37, 38).

`QueueOrder` arranges the queue, `Budget` counts the tokens that one pass may still promise, and `AdmissionPass` applies
the budget to the chunked request and then to the candidates in queue order.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import CLIP_NEW_TOKENS, QUEUE_MATCH_MAX, REFRESH_INTERVAL, Limits
from sqsim.models.serving.radix import Node, RadixTree
from sqsim.models.serving.request import Request

_LPM_SHARE = 32  # lpm's in-batch check: a cached prefix this short, a shared one this long (rule 37)


class Verdict(Enum):
    """The outcome of testing a candidate: whether and why the pass stops."""

    CONTINUE = auto()
    NO_TOKEN = auto()  # memory is short: closes admission until a running request leaves
    OTHER = auto()  # the pass's compute budget is spent


class AdmissionTest(NamedTuple):
    """One test of a pass: the request fits when `need` tokens are below `remaining`; a chunk has `extend` and `more`.

    `locked`: evictable tokens of the request's own prefix, which `remaining` leaves out; `prefix`: tokens that it need
    not compute.
    """

    request: Request
    need: int
    remaining: float
    admitted: bool
    extend: int
    chunk: bool = False
    more: bool = False
    locked: int = 0
    prefix: int = 0


class Budget:
    """Tokens that one pass may still promise.

    `_reserved` counts the expected outputs of running requests and the admitted requests with their outputs (rules 12
    and 13), `_current` only the slots that the pass itself allocates (rule 15), `_window` window slots (rule 38).
    """

    def __init__(self, kv: KvCache, limits: Limits, running: list[Request], ratio: float) -> None:
        self._kv, self._page, self._window_size = kv, limits.page_size, kv.pool.window
        riding = len(running) if limits.mixed_chunk else 0
        self.chunk_left = limits.chunked_prefill - riding
        self._input_left = limits.max_prefill_tokens - riding
        self._current = riding
        self._window = 0
        self._reserved: float = riding + sum(
            [
                # a comparison takes a third of the time of `min`, and every pass does it for every running request
                (
                    left
                    if (left := request.max_new_tokens - request.n_out) < CLIP_NEW_TOKENS
                    else CLIP_NEW_TOKENS
                )
                * (1.0 if request.asked.ignore_eos else ratio)
                for request in running
            ]
        )

    def remaining(self) -> float:
        """Count the full-attention tokens that are neither held nor promised."""
        return self._kv.remaining() - self._reserved

    def remaining_window(self) -> int:
        """Count the window slots that are neither held nor promised."""
        return self._kv.remaining_window() - self._window

    def state(self) -> Verdict:
        """Whether the pass may go on (rule 15)."""
        spent = self.remaining() <= 0 or self._kv.remaining() - self._current <= 0
        if spent or (self._kv.pool.hybrid and self.remaining_window() <= 0):
            return Verdict.NO_TOKEN
        if self._input_left <= 0 or self.chunk_left <= 0:
            return Verdict.OTHER
        return Verdict.CONTINUE

    def window_need(self, extend: int, new_tokens: int, chunk: int | None = None) -> int:
        """Count the window slots at a request's peak: its extend in this pass, then one window (rule 38)."""
        allocated = extend if chunk is None else min(extend, chunk)
        window = self._window_size
        return max(allocated - window, 0) + min(extend + new_tokens, window) + self._page

    def window_short(self, extend: int, new_tokens: int, held_back: int) -> int:
        """Count the window slots that a request lacks (rule 38), negative if it fits; `held_back`: those of its prefix."""
        if not self._kv.pool.hybrid:
            return -1
        return self.window_need(extend, new_tokens, self.chunk_left) - (self.remaining_window() - held_back)

    def window_chunk(self, extend: int, new_tokens: int, held_back: int) -> int:
        """Find the largest chunk with which a refused request may start nevertheless.

        A smaller chunk helps only a request whose need the whole window pool could never meet; 0: it has to wait.
        """
        if self.window_need(extend, new_tokens, self.chunk_left) < self._kv.pool.swa_capacity:
            return 0
        room = self.remaining_window() - held_back - self.window_need(0, new_tokens)
        return min(self.chunk_left, self._kv.pool.floor(max(0, room)))

    def reserve(self, extend: int, new_tokens: int) -> None:
        """Charge an admitted extend and the output that may follow it."""
        pages = self._kv.pool.ceil(extend)
        immediate = pages + self._page
        self._reserved += immediate + new_tokens
        self._current += immediate
        if self._kv.pool.hybrid:
            self._window += self.window_need(pages, new_tokens, self.chunk_left)
        self._input_left -= pages
        self.chunk_left -= pages


class AdmissionPass:
    """One pass over the queue: the requests that it admitted, in order, and the tests that it made."""

    def __init__(self, kv: KvCache, limits: Limits, running: list[Request], ratio: float) -> None:
        self._kv, self._limits = kv, limits
        self.budget = Budget(kv, limits, running, ratio)
        self.admitted: list[Request] = []
        self.tests: list[AdmissionTest] = []
        self.chunked: Request | None = None  # the admitted request that does not fit whole

    def resume(self, request: Request) -> bool:
        """Give the chunked request its next chunk (rule 18); returns whether it needs another one.

        When slots are short the request is parked: it gets nothing this round.
        """
        left = request.known - request.prefix
        request.extend_end = request.prefix
        limit = self._chunk_limit(request, left)
        while limit <= 0 and self._release_idle(request):
            limit = self._chunk_limit(request, left)
        more = left > limit
        extend = max(0, min(left, limit))
        self.tests.append(
            AdmissionTest(
                request, 0, 0, admitted=extend > 0, extend=extend, chunk=True, more=more, prefix=request.prefix
            )
        )
        if extend:
            request.extend_end = request.prefix + extend
            self.admitted.append(request)
            self.budget.reserve(extend, 0 if more else min(request.max_new_tokens, CLIP_NEW_TOKENS))
        return more

    def consider(self, request: Request, *, may_chunk: bool) -> Verdict:
        """Test one candidate and admit it if it fits (rules 10, 11, 13, 17, 38)."""
        kv, budget, page = self._kv, self.budget, self._limits.page_size
        node = kv.match(request)
        prefix = request.prefix
        extend = request.known - prefix
        new_tokens = min(max(request.max_new_tokens - request.n_out, 0), CLIP_NEW_TOKENS)
        need = extend + new_tokens + page
        chunk = self._fit(request, node, need, new_tokens)
        locked = kv.tree.unlocked(node)
        remaining = budget.remaining() - locked
        if chunk is None:
            self.tests.append(
                AdmissionTest(
                    request, need, remaining, admitted=False, extend=0, locked=locked, prefix=request.prefix
                )
            )
            return Verdict.NO_TOKEN
        reserve = min(request.max_new_tokens, CLIP_NEW_TOKENS)
        chunked = kv.pool.ceil(extend) > chunk
        if chunked:
            extend = kv.pool.floor(request.prefix + kv.pool.floor(chunk)) - request.prefix
            reserve = 0
            # One chunked request at a time. A request that the window pool cut short leaves chunk budget for a second
            # one, for which SGLang would lose the first.
            if extend <= 0 or not may_chunk or self.chunked is not None:
                self.tests.append(
                    AdmissionTest(request, need, remaining, admitted=False, extend=0, prefix=prefix)
                )
                return Verdict.OTHER
        request.extend_end = request.prefix + extend
        kv.admit(request, node)
        self.admitted.append(request)
        if chunked:
            self.chunked = request
        budget.reserve(extend, reserve)
        self.tests.append(AdmissionTest(request, need, remaining, admitted=True, extend=extend, prefix=prefix))
        return budget.state()

    def _fit(self, request: Request, node: Node, need: int, new_tokens: int) -> int | None:
        """Find the chunk limit under which a candidate is admitted; None when memory is short (rules 11, 38).

        With the plugin, idle sessions are released for the candidate, least recently used first, unless all of them
        together would not suffice.
        """
        kv, budget = self._kv, self.budget
        pages = kv.pool.ceil(request.known - request.prefix)
        while True:
            short = need - (budget.remaining() - kv.tree.unlocked(node))
            held_back = kv.tree.unlocked_window(node)
            window_short = budget.window_short(pages, new_tokens, held_back)
            if short < 0:
                if window_short < 0:
                    return budget.chunk_left
                if chunk := budget.window_chunk(pages, new_tokens, held_back):
                    return chunk
            if not self._release_idle(request, short, window_short):
                return None

    def _chunk_limit(self, request: Request, left: int) -> int:
        """Count the tokens that the chunked request may compute this round; 0 or less parks it.

        A single pool lets the request go on even when its budget is spent, so that it can finish and free its KV, but
        never beyond the existing slots (SGLang would fail there).
        """
        budget, pool = self.budget, self._kv.pool
        limit = min(budget.chunk_left, int(budget.remaining()))
        if pool.hybrid:
            limit = min(limit, budget.remaining_window() - pool.page)
        elif limit <= 0:
            limit = budget.chunk_left
        end = request.prefix + min(left, limit)
        return limit if pool.ceil(end) - pool.ceil(request.prefix) <= self._kv.remaining() else 0

    def _release_idle(self, request: Request, short: float = 0, window_short: int = 0) -> bool:
        """Release the least recently used idle session for a request that lacks slots; returns whether it did.

        False without the plugin, and when all idle sessions together could not close the gap.
        """
        if not self._limits.release_idle_sessions:
            return False
        pool = self._kv.pool
        idle = self._kv.sessions.releasable(request)
        gain = sum(session.row.length for session in idle)
        window_gain = sum(pool.owned_window(session.row) + pool.window for session in idle)
        if not idle or gain <= short or (pool.hybrid and window_gain <= window_short):
            return False
        return self._kv.release_oldest(request)


class QueueOrder:
    """The order of the waiting queue before a pass: fcfs refreshes it every 32 passes, lpm sorts it."""

    def __init__(self, kv: KvCache, limits: Limits) -> None:
        self._kv, self._policy = kv, limits.schedule_policy
        self.refresh_calls = limits.refresh_calls
        self.touched: list[int] = []  # of this round: lengths of the requests re-matched

    def arrange(self, waiting: list[Request]) -> None:
        """Sort (lpm, rule 37) or refresh (fcfs and long queues, rule 32) the queue in place."""
        if self._policy == "lpm" and len(waiting) <= QUEUE_MATCH_MAX:
            self._sort_by_prefix(waiting)
        elif waiting:
            if self.refresh_calls % REFRESH_INTERVAL == 0:
                self._refresh(waiting)
            self.refresh_calls += 1

    def skip(self, waiting: list[Request], passes: int) -> bool:
        """Account for fcfs passes that admitted no request; returns whether one of them re-matched the queue.

        Nothing else touches the tree between these passes, so one re-match has the effect of all. Only where it split a
        node, which stamps the node's lower part in that pass alone, a second re-match is needed.
        """
        first, splits = -self.refresh_calls % REFRESH_INTERVAL, self._kv.tree.splits
        due = first < passes
        if due:
            self._refresh(waiting)
            if first + REFRESH_INTERVAL < passes and self._kv.tree.splits > splits:
                self._refresh(waiting)
        self.refresh_calls += passes
        return due

    def _refresh(self, waiting: list[Request]) -> None:
        for request in reversed(waiting[:QUEUE_MATCH_MAX]):
            self._kv.tree.match(request.context, request.known, request.match_hint)
            self.touched.append(request.known)

    def _sort_by_prefix(self, waiting: list[Request]) -> None:
        """Sort the queue by cached prefix, longest first.

        A request with nearly nothing cached moves to the end if it shares a prefix with an earlier such request, so
        that it may find that request's KV later.
        """
        seen = RadixTree()
        last: set[Request] = set()
        cached: dict[Request, int] = {}
        for request in waiting:
            session = self._kv.sessions.get(request.asked.session)
            if session is not None and request.asked.role == "main":
                prefix = min(session.row.length, request.known)
            else:
                prefix = self._kv.tree.match(request.context, request.known).tokens
            cached[request] = min(prefix, request.known - 1)
            if prefix <= _LPM_SHARE:
                if seen.match(request.context, request.known).tokens >= _LPM_SHARE:
                    last.add(request)
                else:
                    seen.insert(request.context, request.known)
        waiting.sort(key=lambda request: (1, 0) if request in last else (0, -cached[request]))
