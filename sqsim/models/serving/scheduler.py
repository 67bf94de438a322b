# SPDX-License-Identifier: Apache-2.0
"""The scheduler: one round forms one batch, as SGLang 0.5.23 does (RULES.md).

Where each rule lives:
    scheduler.py        1-8 the round, its order, rows; 20-24 mixed chunks, decode, stop tokens seen late;
                       29, 42-44 results, aborts, no overlap
    admission.py       9-15, 17-19 the admission test and chunks; 32 (refresh), 37 queue order; 38 window test
    kv_cache.py        10, 25-28, 31 matching, publishing, freeing, reclaiming; 39-41 for rows
    pool.py            8 rows; 38 both pools; 39 sliding a row's window
    radix.py           26, 28, 30-33 the tree, splits, recency, eviction
    sliding_window.py  39-41 window slots in the tree
    session.py         36 sessions; release, drop and fork of our plugin
    retraction.py      34, 35 retraction and the new-token ratio
    audit.py           conservation (LAWS.md, law 2), by an independent walk
Rule 16 (radix cache disabled) does not occur here: there is always a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.models.serving.admission import AdmissionPass, QueueOrder, Verdict
from sqsim.models.serving.audit import audit
from sqsim.models.serving.batch import Batch, Mode, PrefillRow, Result, Round, Usage
from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import SLIDE_INTERVAL, Limits
from sqsim.models.serving.request import Request
from sqsim.models.serving.retraction import NewTokenRatio, retract

__all__ = ["Batch", "Limits", "PrefillRow", "Result", "Round", "Scheduler", "Usage"]


class Scheduler:
    """The scheduler, which forms batches round by round.

    Round k is `next_batch()`, then the launch, then `process_result` of batch k-1 (with overlap) or k (without).
    `ended` collects requests that ended without a result: aborted in the queue or between two chunks, or out of memory
    when alone; the caller empties it.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KvCache(limits)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.full = False  # admission is closed until a running request leaves (rules 6, 7)
        self.chunked: Request | None = None
        self.ended: list[Request] = []
        self.round = Round()
        self._order = QueueOrder(self.kv, limits)
        self._ratio = NewTokenRatio(limits)
        self._last: Batch | None = None  # the batch of the previous round
        self._unprocessed: list[Batch] = []  # batches whose results are pending, oldest first
        self._launched = 0
        self._abort_chunk = False
        self._left = False  # a running request has ended since the last round

    @property
    def ratio(self) -> float:
        """The new-token ratio (rule 34)."""
        return self._ratio.value

    @property
    def refresh_calls(self) -> int:
        """Phase of the 32-pass counter (rule 32); settable, for logs that leave out idle rounds."""
        return self._order.refresh_calls

    @refresh_calls.setter
    def refresh_calls(self, calls: int) -> None:
        self._order.refresh_calls = calls

    # Calls from outside.

    def submit(self, request: Request) -> None:
        """Append a request to the queue; its `max_new_tokens` is capped so that it fits when alone (rule 13)."""
        room = self.limits.room(request.n_in, self.kv.sessions.shift(request.asked.session))
        request.max_new_tokens = max(0, min(request.max_new_tokens, room))
        # With a cap of 0 the request still produces its first token, and ends with it.
        request.ends_at = max(1, min(request.output_tokens, request.max_new_tokens))
        request.quiet_until = min(request.ends_at - 1, request.max_new_tokens - 2)
        assert not request.asked.ignore_eos or request.output_tokens >= request.max_new_tokens, (
            f"request {request.asked.rid} ignores stop tokens and ends after {request.output_tokens} < {request.max_new_tokens} tokens"
        )
        if request.asked.session is not None:
            self.kv.sessions.expect(request)
        self.waiting.append(request)

    def abort(self, rid: str) -> None:
        """Abort every request whose rid starts with this one, as SGLang matches them (rule 42).

        Waiting requests end at once, the chunked one in the next round, running ones with their next result.
        """
        if self.chunked is not None and self.chunked.asked.rid.startswith(rid):
            self._abort_chunk = True
        hit = [request for request in self.waiting if request.asked.rid.startswith(rid)]
        if hit:
            self.waiting = [request for request in self.waiting if not request.asked.rid.startswith(rid)]
        for request in hit:
            request.finish, request.lender = "abort", None
            if request.asked.session is not None:
                self.kv.sessions.finish(request)
            self.ended.append(request)
        for request in self._in_flight():
            if request.finish is None and request.asked.rid.startswith(rid):
                request.aborting, request.ends_at, request.quiet_until = True, 0, -1

    def close_session(self, session: str) -> None:
        """Free a session's KV and its lock on the prompt, once its unfinished turn and forks have ended."""
        self.kv.sessions.close(session)

    def drop(self, session: str, spans: Sequence[tuple[int, int]]) -> int:
        """Cut spans out of an idle session's row in place; returns the tokens freed, 0 when the session lost its KV."""
        return self.kv.sessions.drop(session, spans)

    def pin(self, session: str, *, pinned: bool) -> None:
        """Pin an idle session, so that it is not released, or unpin it."""
        (self.kv.sessions.pin if pinned else self.kv.sessions.unpin)(session)

    def session_tokens(self, session: str) -> int:
        """Count the tokens in a session's row, 0 when the session has lost its KV."""
        held = self.kv.sessions.get(session)
        return 0 if held is None else held.row.length

    def has_session(self, session: str) -> bool:
        """Whether a session holds KV now."""
        return self.kv.sessions.get(session) is not None

    def became_idle(self) -> None:
        """Reset the new-token ratio, as no request runs or waits (rule 3)."""
        self._ratio.reset()

    # One round.

    def next_batch(self) -> Batch | None:
        """Form the next batch (rules 1-24); None when there is nothing to run this round."""
        self.round = done = Round()
        self.kv.evictions, self.kv.released, self._order.touched = [], 0, []
        self._settle()
        batch = self._prefill()
        if batch is None and self.running:
            batch = self._decode()
        done.evictions, done.touched = self.kv.evictions, self._order.touched
        done.released_sessions = self.kv.released
        if batch is not None:
            batch.reclaimed = sum(map(sum, done.evictions)) if done.evictions else 0
            batch.released_sessions = done.released_sessions
            batch.retracted = done.retracted or []
        self._last = batch
        if batch is not None:
            self._unprocessed.append(batch)
        return batch

    def _settle(self) -> None:
        """Merge the previous batch: publish its chunk, take over its prefill rows, drop ended requests (rule 4a-c)."""
        chunk = self.chunked
        if chunk is not None and self._abort_chunk:
            chunk.finish = "abort"
            self.kv.discard(chunk)
            self.ended.append(chunk)
            chunk = self.chunked = None
        self._abort_chunk = False
        if chunk is not None and chunk.extend:
            self.kv.publish(chunk, chunk.extend_end)
            chunk.prefix = chunk.extend_end
        last = self._last
        if not self.running:
            self.full = False  # rule 7: the flag belonged to a running list that is now replaced
        if last is not None and last.mode != "decode":
            joining = [
                r for r in last.requests if r.finish is None and r is not chunk and r is not last.chunked
            ]
            if len(joining) < len(last.requests):
                self.full = False
            self.running = self.running + joining
        if self._left:
            self._left = False
            still = [request for request in self.running if request.finish is None]
            if len(still) < len(self.running):
                self.running, self.full = still, False

    def _prefill(self) -> Batch | None:
        """Try to form a prefill batch (rules 5-20)."""
        limits, running = self.limits, self.running
        if self.kv.pool.hybrid or not running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return None
        if self.chunked is None and (
            len(running) >= limits.max_running or not (self.kv.pool.rows_free or limits.release_idle_sessions)
        ):
            self.full = True
            return None
        self._order.arrange(self.waiting)
        entering = AdmissionPass(self.kv, limits, running, self.ratio)
        if self.chunked is not None and not entering.resume(self.chunked):
            self.chunked = None
        self._admit_waiting(entering)
        self.round.tests = entering.tests
        admitted = entering.admitted
        if not admitted:
            return None
        inside = set(admitted)
        self.waiting = [request for request in self.waiting if request not in inside]
        if entering.chunked is not None:
            self.chunked = entering.chunked
        if self.chunked is not None:
            self.chunked.middle_chunks += 1
        self.kv.allocate(admitted)
        batch = self._launch("extend", admitted)
        batch.chunked = self.chunked
        for request in admitted:
            if not request.retractions and not request.prefill_chunks:
                request.cached_tokens = request.prefix
            request.prefill_chunks += 1
            request.computed_tokens += request.extend
            request.retracted, request.decode_steps = False, 0
            batch.prefill.append(PrefillRow(request, request.extend, request.prefix))
        if limits.mixed_chunk and running:
            self._ride_along(batch)
        return batch

    def _admit_waiting(self, entering: AdmissionPass) -> None:
        """Admit waiting requests in queue order up to the first refusal (rules 6, 9, 15)."""
        for request in self.waiting:
            if entering.budget.state() is Verdict.OTHER:
                return
            if not self._seat(entering.admitted, request):
                self.full = True
            if self.full:
                return
            verdict = entering.consider(request, may_chunk=self.chunked is None)
            if verdict is Verdict.NO_TOKEN:
                self.full = bool(entering.admitted or self.running)
            if verdict is not Verdict.CONTINUE:
                return

    def _seat(self, admitted: list[Request], request: Request) -> bool:
        """Find a row for one more request; returns whether there is one (rules 6, 8).

        SGLang counts a new row for a session's turn although the turn has its own. With the plugin it does not, and an
        idle session may be released to free a row.
        """
        if len(admitted) >= self.limits.max_running - len(self.running):
            return False
        held = sum(1 for r in admitted if r.row is not None and r.row.held)
        if len(admitted) < self.kv.pool.rows_free + held:
            return True
        if not self.limits.release_idle_sessions:
            return False
        brings_row = request.asked.role == "main" and self.kv.sessions.get(request.asked.session) is not None
        return brings_row or self.kv.release_oldest(request)

    def _ride_along(self, batch: Batch) -> None:
        """Add one token of each running request to a prefill batch, if that fits (mixed chunk, rule 20)."""
        riding = self._without_finishing()
        if riding and self.kv.room_for_decode(riding):
            batch.mode, batch.requests = "mixed", batch.requests + riding
            self._advance(batch, riding)
            self.running = []

    def _decode(self) -> Batch | None:
        """Form a batch of one token for every running request; retract some if memory is short (rules 21-24, 34)."""
        before = len(self.running)
        running = self._without_finishing()
        if not running:
            return None
        if self.kv.room_for_decode(running):
            self._ratio.decay()
        elif len(running) < before:
            return None  # wait for the slots of the requests that are about to finish
        else:
            running, retracted, failed = retract(self.kv, running)
            self.round.retracted = retracted
            self._ratio.learn(running)
            self.running, self.full = running, False
            self.waiting = self.waiting + retracted
            if failed is not None:
                self.ended.append(failed)
            if not running:
                return None
        batch = self._launch("decode", running)
        self._advance(batch, running)
        return batch

    def _without_finishing(self) -> list[Request]:
        """Keep the running requests whose pending result will not end them by length (rule 22)."""
        if self.limits.overlap and self._unprocessed:
            number = self._unprocessed[-1].number
            staying = [
                request
                for request in self.running
                if request.launched != number or request.n_out + 1 < request.max_new_tokens
            ]
            if len(staying) < len(self.running):
                self.running, self.full = staying, False
        return self.running

    def _launch(self, mode: Mode, requests: list[Request]) -> Batch:
        self._launched = number = self._launched + 1
        for request in requests:
            request.launched = number
        return Batch(mode, number, requests)

    def _advance(self, batch: Batch, requests: list[Request]) -> None:
        """Take one slot for every request, and count the KV that the step reads."""
        kv, pool, page = self.kv, self.kv.pool, self.limits.page_size
        hybrid, reach = pool.hybrid, pool.window + SLIDE_INTERVAL
        number, lengths = batch.number, batch.lengths
        for request in requests:
            row = request.row
            assert row is not None
            if hybrid and request.n_in + request.n_out > row.slid + reach:
                kv.slide(request)
            lengths.append(row.length + 1)
            request.decode_steps += 1
            request.launched = number
        rows = len(requests)
        kv.make_room(rows * page)
        pool.take(rows if page == 1 else page * sum([length % page == 1 for length in lengths]))
        for request, length in zip(requests, lengths, strict=True):
            request.row.length = length  # type: ignore[union-attr]
        batch.decoding = requests
        batch.decode_context = sum(lengths)
        if self.limits.swa_window is not None:
            reach = self.limits.swa_window + 1
            short = [length - reach for length in lengths if length < reach]
            batch.decode_window = rows * reach + sum(short)

    # Results.

    def process_result(self, batch: Batch) -> Result:
        """Account for one token of every request in the batch (rules 23, 25, 27-29, 42)."""
        self._unprocessed.remove(batch)
        result = Result([], [])
        for request, _, _ in batch.prefill:
            if request.retracted or (request.finish is not None and not request.middle_chunks):
                continue
            if request.middle_chunks:
                request.middle_chunks -= 1
                continue
            self._commit(request, result)
            if request.finish is None:
                self.kv.publish(request, request.extend_end)
                request.prefix = request.extend_end
        for request in batch.decoding:
            if request.finish is not None or request.retracted:
                continue
            if request.n_out and request.n_out + 1 < request.ends_at:
                request.n_out += 1  # neither the first token nor the last: nothing else to do
            else:
                self._commit(request, result)
        return result

    def _commit(self, request: Request, result: Result) -> None:
        """Count one more output token of a request, and finish the request if it was the last."""
        request.n_out += 1
        if request.n_out == 1:
            result.started.append(request)
        if request.n_out < request.ends_at:
            return
        if request.aborting:
            request.finish = "abort"
        else:
            by_stop = not request.asked.ignore_eos and request.output_tokens < request.max_new_tokens
            request.finish = "stop" if by_stop else "length"
        self._left = True
        self.kv.finish(request)
        result.finished.append(request)

    # Accounts.

    def usage(self) -> Usage:
        """Count the slots of the pool by holder, without a walk through the tree."""
        kv, pool, sessions = self.kv, self.kv.pool, self.kv.sessions
        idle = sessions.idle_tokens + (sessions.closed_tokens() if sessions.closed else 0)
        aux = sum([pool.owned(request.row) for request in kv.aux if request.row is not None]) if kv.aux else 0
        evictable = kv.tree.evictable
        free, swa_used = pool.free, pool.swa_capacity - kv.remaining_window()
        return Usage(pool.kv_capacity - idle - aux - evictable - free, idle, aux, evictable, free, swa_used)

    def check(self) -> None:
        """Audit every account by an independent walk; an AssertionError names the wrong account (law 2)."""
        # Rule 22: a request that is about to end has left the running list and still holds its row.
        ending = [
            request for batch in self._unprocessed for request in batch.requests if request.row is not None
        ]
        audit(self.kv, self.waiting, list(dict.fromkeys(self._in_flight() + ending)), self.limits)

    def _in_flight(self) -> list[Request]:
        """List the requests that hold KV: running, just prefilled, or between two chunks."""
        requests = list(self.running)
        if self._last is not None:
            requests += self._last.requests
        if self.chunked is not None:
            requests.append(self.chunked)
        return list(dict.fromkeys(request for request in requests if request.row is not None))
