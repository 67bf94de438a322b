"""Many alike decode rounds at once (LAWS.md, law 7).

Once a round has formed a decode batch, the next rounds form the same one, each row a token longer, until something
happens: a result starts or ends a request, memory runs short, or the queue's head is admitted. `alike` says how many
rounds are certain to be so, from counts alone; `stretch` takes them in one move. A bound that is too low is harmless:
the rounds around an event are formed one by one, by batching.py. Arrivals and other things of the world outside are
the caller's to see to.

Whoever waits is either not looked at (rule 6), or, in a hybrid pool, tested in vain in every round. What that test
compares is a quadratic in the number of rounds, with kinks where a request's open output falls below the clip and where
the new-token ratio reaches its floor (rules 11, 12): `alike` solves the present piece for its first root. Beyond the
floor the piece is a lower bound, beyond a clip it ends.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

from sqsim.models.admission import AdmissionTest
from sqsim.models.batch import Batch
from sqsim.models.batching import Scheduler
from sqsim.models.limits import CLIP_NEW_TOKENS

_UNBOUNDED = 1 << 60
_ROUNDING = 1e-9  # of tokens: far more than the floats of the test can be off, far less than a token


class Growth(NamedTuple):
    """What every step of a stretch adds to the step before, and which of them take pages."""

    context: int  # tokens of KV that the step reads
    window: int  # the same, each row cut to the model's window
    crossings: dict[int, int]  # step from 1 -> rows that take a page in it, and again every `page` steps


class StretchingScheduler(Scheduler):
    """A scheduler that can take alike rounds together."""

    def alike(self, pending: Batch, batch: Batch) -> int:
        """How many rounds are certain to repeat `batch`, which was formed just now, while nothing comes from outside.

        `pending` is the batch before, whose result is not in yet. The rounds take in the results of `pending`, `batch`
        and so on, the last round that of the second batch before its own.
        """
        if batch.mode != "decode" or pending.mode != "decode" or self.chunked is not None or self._left:
            return 0
        requests, page = batch.decoding, self.limits.page_size
        # Rows of `pending` alone: their result is dropped, or it is what ends them.
        for request in pending.decoding:
            if request.launched != batch.number and request.finish is None and not request.retracted:
                return 0
        rounds = min([request.quiet_until - request.n_out for request in requests])
        if rounds <= 0:
            return 0
        pool = self.kv.pool
        free = min(pool.free, pool.window_free) if pool.hybrid else pool.free
        # A row takes one slot a step, and with pages up to a page more; a step wants a free page a row (rule 31).
        rounds = min(rounds, free // len(requests) - 2 * (page - 1))
        if batch.decode_window:
            reach = (self.limits.swa_window or 0) + 1
            rounds = min([rounds, *(reach - length for length in batch.lengths if length < reach)])
        if rounds > 0 and self.waiting:
            rounds = min(rounds, self._in_vain())
        return max(0, rounds)

    def growth(self, batch: Batch) -> Growth:
        """What a stretch of `batch` adds, step by step."""
        rows, page = len(batch.decoding), self.limits.page_size
        if page == 1:
            crossings = {1: rows}
        else:
            crossings = {}
            for length in batch.lengths:
                first = 1 + -length % page
                crossings[first] = crossings.get(first, 0) + 1
        window = 0
        if batch.decode_window:
            reach = (self.limits.swa_window or 0) + 1
            window = sum([length < reach for length in batch.lengths])
        return Growth(rows, window, crossings)

    def stretch(self, batch: Batch, rounds: int, growth: Growth) -> Batch:
        """Take `rounds` rounds, 1 or more and at most as many as are `alike`, and their results.

        `batch` becomes the last batch; the one before it is returned. Neither result is in yet.
        """
        requests, page = batch.decoding, self.limits.page_size
        before = Batch("decode", batch.number + rounds - 1, requests, decoding=requests)
        batch.number = self._launched = batch.number + rounds
        batch.decode_context += rounds * growth.context
        batch.decode_window += rounds * growth.window
        batch.lengths = [length + rounds for length in batch.lengths]
        hybrid = self.kv.pool.hybrid
        for request in requests:
            row = request.row
            assert row is not None
            if hybrid:
                self.kv.slide_through(request, rounds)
            row.length += rounds
            request.n_out += rounds
            request.decode_steps += rounds
            request.launched = batch.number
        pages = sum(
            [
                rows * ((rounds - first) // page + 1)
                for first, rows in growth.crossings.items()
                if first <= rounds
            ]
        )
        self.kv.pool.take(pages * page)
        self._ratio.decay(rounds)
        if self.waiting and self._tries() and self._order.skip(self.waiting, rounds):
            self.kv.match(self.waiting[0])  # every pass ended with the head
        self._unprocessed = [before, batch]
        return before

    # Who waits.

    def _tries(self) -> bool:
        """Whether rounds with somebody waiting make an admission pass (rule 6), as long as nobody leaves."""
        limits, pool = self.limits, self.kv.pool
        seats = len(self.running) < limits.max_running and (pool.rows_free > 0 or limits.release_idle_sessions)
        return seats if pool.hybrid else not self.full

    def _in_vain(self) -> int:
        """Rounds that are certain to admit nobody of those who wait."""
        if not self._tries():
            return _UNBOUNDED
        done, pool = self.round, self.kv.pool
        if not pool.hybrid or not pool.rows_free or self.limits.schedule_policy != "fcfs":
            return 0
        if done.evictions or done.released_sessions or done.retracted is not None or len(done.tests) != 1:
            return 0  # what the pass found need not hold any more
        test = done.tests[0]
        if test.admitted or test.chunk or test.request is not self.waiting[0]:
            return 0
        return self._refusals(test)

    def _refusals(self, test: AdmissionTest) -> int:
        """How many passes refuse this candidate for want of full-attention slots."""
        clipped, clip_rounds, open_output = 0, _UNBOUNDED, 0
        for request in self.running:
            if request.ignore_eos:
                return 0
            # As the next round knows it: the result of the pending batch is in by then.
            left = request.max_new_tokens - request.n_out - 1
            if left > CLIP_NEW_TOKENS:
                clipped += 1
                clip_rounds = min(clip_rounds, left - CLIP_NEW_TOKENS)
            else:
                open_output += left
        rows, page, kv, ratio = len(self.running), self.limits.page_size, self.kv, self._ratio
        step = ratio.step if ratio.value > ratio.floor else 0.0
        # In pass j, counted from 0, it is short by (at least, once the ratio stands at its floor)
        #     need - slots + rows * j + (promised - rows_falling * j) * (ratio - step * j)
        promised, rows_falling = open_output + clipped * CLIP_NEW_TOKENS, rows - clipped
        slots = kv.remaining() - test.locked + rows * (page - 1)  # with pages, rows may live on what they have
        short = _Quadratic(
            test.need - slots + promised * ratio.value,
            rows - rows_falling * ratio.value - promised * step,
            rows_falling * step,
        )
        wanted = 0
        if self.limits.release_idle_sessions:
            # Refused for good only while all idle sessions together would not close the gap.
            wanted = sum([session.row.length for session in kv.sessions.releasable(test.request)])
        return min(short.rounds_at_least(wanted), clip_rounds)


class _Quadratic(NamedTuple):
    """constant + linear * j + square * j ** 2, with square >= 0."""

    constant: float
    linear: float
    square: float

    def rounds_at_least(self, bound: float) -> int:
        """For how many j from 0 on this stays at or above a bound, with room for rounding."""
        above = self.constant - bound - _ROUNDING * (1.0 + abs(self.constant) + abs(bound))
        if above < 0:
            return 0
        if self.linear >= 0:
            return _UNBOUNDED
        discriminant = self.linear * self.linear - 4 * self.square * above
        if discriminant < 0:
            return _UNBOUNDED
        first_root = 2 * above / (sqrt(discriminant) - self.linear)
        return ceil(first_root)
