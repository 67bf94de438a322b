# SPDX-License-Identifier: Apache-2.0
"""Macro-steps: many alike decode rounds, formed as one batch of many steps (LAWS.md, law 7).

A decode round is followed by the same round, each row a token longer, until an event: a result starts or ends a
request, memory runs short, or the queue's head is admitted. The number of rounds that are certain to be alike follows
from counts alone, and the scheduler forms these rounds as one macro-step. A bound that is too low is harmless:
scheduler.py forms the rounds around an event one by one. The caller's `Horizon` bounds the macro-step by events from
outside.

Waiting requests are either not tested (rule 6), or, in a hybrid pool, tested and refused in every round. That test
compares a quadratic in the number of rounds, with kinks where a request's open output falls below the clip and where
the new-token ratio reaches its floor (rules 11, 12). The code solves the present piece for its first root. Beyond the
floor the piece is a lower bound, beyond a clip it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import NamedTuple

from sqsim.models.serving.admission import AdmissionTest
from sqsim.models.serving.batch import Batch, MacroStep
from sqsim.models.serving.limits import CLIP_NEW_TOKENS, SLIDE_INTERVAL, Limits
from sqsim.models.serving.scheduler import Scheduler

_UNBOUNDED = 1 << 60
_ROUNDING = 1e-9  # of tokens: far above the rounding errors of the test, far below a token

Horizon = Callable[[MacroStep, int], int]
"""A callback: number of steps of a macro-step before the next event from outside, from 1 to the given number."""


class FastForwardScheduler(Scheduler):
    """A scheduler that forms alike decode rounds as one macro-step, within a horizon."""

    def __init__(self, limits: Limits, horizon: Horizon) -> None:
        super().__init__(limits)
        self._horizon = horizon

    def _decode(self) -> Batch | None:
        """Form as many decode rounds as are certain to be alike; where not even one is plain, form a single round."""
        running, limits, pool = self.running, self.limits, self.kv.pool
        rows, page = len(running), limits.page_size
        # Results that are certain neither to end a request nor to remove it from the next batch (rule 22).
        quiet = min([request.quiet_until - request.n_out for request in running])
        free = min(pool.free, pool.window_free) if pool.hybrid else pool.free
        # A row takes one slot a step, and with pages up to a page more; a step wants a free page a row (rule 31).
        most = free // rows - 2 * (page - 1)
        if quiet < 0 or most < 1 or self.kv.evictions or self.kv.released:
            return super()._decode()
        if quiet and most > 1 and self._undisturbed():
            most = min(quiet + 1, most, self._in_vain() if self.waiting else most)
        else:
            most = 1
        macro_step, most = self._measure(most)
        return self._take(macro_step, self._horizon(macro_step, most) if most > 1 else 1)

    def _undisturbed(self) -> bool:
        """True if the pending batch neither starts nor finishes a request, and no prefill is under way."""
        if self.chunked is not None or not self._unprocessed or not self.limits.overlap:
            return False
        pending = self._unprocessed[-1]
        if pending.mode != "decode":
            return False
        if pending.decoding is self.running:
            return True
        # Rows of the pending batch that have left the running list: their result is dropped, or it ends them.
        alone = set(pending.decoding).difference(self.running)
        return all(request.finish is not None or request.retracted for request in alone)

    def _measure(self, most: int) -> tuple[MacroStep, int]:
        """Measure the tokens that alike steps read and take, and the number of steps, at most `most`, this holds for."""
        page, reach = self.limits.page_size, self.limits.swa_window
        lengths = [request.row.length for request in self.running]  # type: ignore[union-attr]
        rows, context = len(lengths), sum(lengths)
        window = widening = 0
        if reach is not None:
            reach += 1
            short = [length for length in lengths if length < reach]
            widening = len(short)
            window = reach * (rows - widening) + sum(short)
            if short:
                most = min(most, reach - max(short))
        crossings = {1: rows}
        if page > 1:
            crossings = {}
            for length in lengths:
                first = 1 + -length % page
                crossings[first] = crossings.get(first, 0) + 1
        return MacroStep(rows, context, window, widening, page, crossings), most

    def _take(self, macro_step: MacroStep, steps: int) -> Batch:
        """Form a macro-step of `steps` steps, and process all their results but those of the last two."""
        running, pool = self.running, self.kv.pool
        before = None
        if steps > 1:
            before = Batch("decode", self._launched + steps - 1, running, decoding=running)
            self._unprocessed = [before]
        number = self._launched = self._launched + steps
        batch = Batch(
            "decode", number, running, decoding=running, steps=steps, before=before, macro_step=macro_step
        )
        batch.decode_context = macro_step.context + macro_step.rows
        batch.decode_window = macro_step.window + macro_step.widening
        results, hybrid, reach = steps - 1, pool.hybrid, pool.window + SLIDE_INTERVAL
        for request in running:
            row = request.row
            assert row is not None
            if hybrid and request.n_in + request.n_out + results > row.slid + reach:
                self.kv.slide_through(request, steps)
            row.length += steps
            request.n_out += results
            request.decode_steps += steps
            request.launched = number
        pool.take(macro_step.slots(steps))
        self._ratio.decay(steps)
        if results and self.waiting and self._tries() and self._order.skip(self.waiting, results):
            self.kv.match(self.waiting[0])  # every pass ended by matching the queue's head
        return batch

    # Waiting requests.

    def _tries(self) -> bool:
        """Whether rounds with a waiting request make an admission pass (rule 6), as long as no request leaves."""
        limits, pool = self.limits, self.kv.pool
        seats = len(self.running) < limits.max_running and (pool.rows_free > 0 or limits.release_idle_sessions)
        return seats if pool.hybrid else not self.full

    def _in_vain(self) -> int:
        """Count the rounds, this one included, that are certain to admit no waiting request."""
        if not self._tries():
            return _UNBOUNDED
        tests, pool = self.round.tests, self.kv.pool
        if not pool.hybrid or not pool.rows_free or self.limits.schedule_policy != "fcfs" or len(tests) != 1:
            return 1
        test = tests[0]
        if test.admitted or test.chunk or test.request is not self.waiting[0]:
            return 1
        return max(1, self._refusals(test))

    def _refusals(self, test: AdmissionTest) -> int:
        """Count the passes, this one included, that refuse this candidate for lack of full-attention slots."""
        clipped, clip_rounds, open_output = 0, _UNBOUNDED, 0
        for request in self.running:
            if request.asked.ignore_eos:
                return 0
            left = request.max_new_tokens - request.n_out
            if left > CLIP_NEW_TOKENS:
                clipped += 1
                clip_rounds = min(clip_rounds, left - CLIP_NEW_TOKENS)
            else:
                open_output += left
        rows, page, kv, ratio = len(self.running), self.limits.page_size, self.kv, self._ratio
        step = ratio.step if ratio.value > ratio.floor else 0.0
        # In pass j (this one is 0) the candidate is short by (at least, once the ratio is at its floor)
        #     need - slots + rows * j + (promised - rows_falling * j) * (ratio - step * j)
        promised, rows_falling = open_output + clipped * CLIP_NEW_TOKENS, rows - clipped
        slots = kv.remaining() - test.locked + rows * (page - 1)  # with pages, rows first fill their last page
        short = _Quadratic(
            test.need - slots + promised * ratio.value,
            rows - rows_falling * ratio.value - promised * step,
            rows_falling * step,
        )
        wanted = 0
        if self.limits.release_idle_sessions:
            # The refusal is certain only while all idle sessions together would not close the gap.
            wanted = sum([session.row.length for session in kv.sessions.releasable(test.request)])
        return min(short.rounds_at_least(wanted), clip_rounds)


class _Quadratic(NamedTuple):
    """constant + linear * j + square * j ** 2, with square >= 0."""

    constant: float
    linear: float
    square: float

    def rounds_at_least(self, bound: float) -> int:
        """Count the j from 0 on for which the quadratic stays at or above a bound, with a margin for rounding."""
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
