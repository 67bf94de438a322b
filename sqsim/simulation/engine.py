# SPDX-License-Identifier: Apache-2.0
"""The serving engine: SGLang's scheduler loop in simulated time.

With overlap scheduling (the default) one iteration receives what arrived, forms batch k, launches it, and
then waits for batch k-1 and processes its result (RULES.md, rules 1 and 2): so batch k+1 is formed while
batch k runs. Without it a batch's result is processed before the next is formed (rule 44).

One rule for ties: the end of a batch, and the round after it, see everything that happened at their own instant or
before (clock.py).

Between two events from outside, rounds that are certain to be alike are taken in one move, a macro-step
(fast_forward.py), with their times in closed form (step_series.py). State, times and rows are the same as with
`step_by_step`, which takes the rounds one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from sqsim.errors import RunError
from sqsim.models.cost.eviction_cost import InPlaceCost
from sqsim.models.cost.step_cost import CostModel, StepWork
from sqsim.models.serving.batch import Batch, MacroStep
from sqsim.models.serving.fast_forward import FastForwardScheduler
from sqsim.models.serving.request import Request
from sqsim.models.serving.scheduler import Limits, Scheduler
from sqsim.models.serving.step_series import StepSeries
from sqsim.simulation.clock import Clock
from sqsim.simulation.server import Submission
from sqsim.simulation.step_log import StepLog

NEVER_FITS = "kv_capacity"
"""The failure of a request that the pool can never hold."""
LATEST_S = 1e10
"""Three centuries: from here on a float64 second is coarser than a thousandth of a decode step."""


def _in_time(now_s: float) -> float:
    """Return the time; RunError when it is beyond `LATEST_S`."""
    if not now_s < LATEST_S:
        raise RunError(
            f"the simulated clock stands at {now_s:.3g} s, and beyond {LATEST_S:.0e} s it cannot tell steps apart; "
            "shorten what agents wait for: raise load.rate_per_s or load.speedup, set tool_wait_cap_s, or shorten the policy's holds and pauses"
        )
    return now_s


_Launched = tuple[Batch, float]
"""A batch, and the second at which its forward step ends."""


class Engine:
    """Takes requests, runs them through scheduler and cost model, and reports their ends.

    The clock calls `act`, last at an instant. The other methods may be called at any time.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits,
        cost: CostModel,
        in_place: InPlaceCost,
        log: StepLog,
        *,
        step_by_step: bool = False,
        replica: int = 0,
        horizon: Callable[[], float] | None = None,
    ) -> None:
        """Build an engine. `replica`: its number; `horizon`: the time of the next input from outside (default: the clock's)."""
        self.due_s = 0.0
        self.replica = replica
        self._clock, self._horizon = clock, horizon or clock.peek
        self._scheduler = (
            Scheduler(limits) if step_by_step else FastForwardScheduler(limits, self._steps_before_next)
        )
        self._cost, self._in_place = cost, in_place
        self._log = log
        self._live: dict[Request, Submission] = {}
        self._pending: _Launched | None = None  # the batch that ends next
        self._launched: _Launched | None = None  # the batch after `_pending`
        self._ends = False  # is the end of `_pending` due next?
        self._sleeps = False
        self._blocked = False  # did the last round find work that cannot go on?
        self._gpu_free_s = 0.0
        self._hopeless: Request | None = None  # is being aborted, because nothing can ever make room for it

    def submit(self, request: Request, *, tell_first_token: bool = False) -> Submission:
        """Queue a request. A request that can never fit fails at once with `NEVER_FITS`, and is never queued."""
        clock = self._clock
        submission = Submission(
            request,
            clock.now,
            clock.event(),
            clock.event() if tell_first_token else None,
            replica=self.replica,
        )
        if request.output_tokens > self._scheduler.limits.room(request.n_in):
            submission.end(clock.now, NEVER_FITS)
            return submission
        self._live[request] = submission
        self._scheduler.submit(request)
        self._notify()
        return submission

    @property
    def unfinished(self) -> int:
        """Number of requests that run or wait on this engine."""
        return len(self._live)

    def cancel(self, submission: Submission) -> None:
        """Abort a request; its cost so far stays counted. Its `done` carries "abort"."""
        if submission.request in self._live:
            self._scheduler.abort(submission.request.asked.rid)
            self._end_elsewhere()
            self._notify()

    def drop(self, session: str, spans: Sequence[tuple[int, int]]) -> int:
        """Clear spans of an idle session in place, and return the tokens freed. The GPU does it after the launched batches."""
        held = self._scheduler.session_tokens(session)
        freed = self._scheduler.drop(session, spans)
        if freed:
            self._gpu_free_s = self._start_s() + self._in_place.seconds(held - spans[0][0])
        self._log.idle_changed(self._clock.now, self._scheduler.usage())
        self._notify()
        return freed

    def close_session(self, session: str) -> None:
        """Free a session's KV; while one of its turns or forks is unfinished, at their end."""
        self._scheduler.close_session(session)
        self._log.idle_changed(self._clock.now, self._scheduler.usage())
        self._notify()

    def pin(self, session: str, *, pinned: bool) -> None:
        """Keep an idle session under any memory pressure, or make it releasable again."""
        self._scheduler.pin(session, pinned=pinned)
        if not pinned:
            self._notify()

    def has_session(self, session: str) -> bool:
        """Tell whether a session holds KV now."""
        return self._scheduler.has_session(session)

    def kv_usage(self) -> float:
        """Return the share (0 to 1) of KV slots neither free nor evictable, of the fuller pool: SGLang's token_usage."""
        limits, usage = self._scheduler.limits, self._scheduler.usage()
        full = usage.used / limits.kv_capacity
        return full if limits.swa_capacity is None else max(full, usage.swa_used / limits.swa_capacity)

    def act(self) -> None:
        """End a batch that is due; then, after all events that this causes at this instant, form the next one."""
        if self._ends:
            assert self._pending is not None
            self._collect(self._pending[0])
            self._pending, self._launched, self._ends = self._launched, None, False
            if self._clock.peek() <= self._clock.now:
                return
        self._round()

    def _round(self) -> None:
        """Do one iteration of SGLang's loop, up to the end of a batch that it waits for."""
        clock, scheduler = self._clock, self._scheduler
        if self._sleeps:
            self._sleeps = False
            self._log.idle_until(clock.now)
        batch = scheduler.next_batch()
        self._end_elsewhere()
        blocked, self._blocked = self._blocked, False
        if batch is not None:
            if batch.before is not None:
                self._pending, self._launched = self._launch_many(batch, batch.before)
            elif self._pending is None:
                self._pending = self._launch(batch)
                if scheduler.limits.overlap:
                    return  # the next one is formed while it runs
            else:
                self._launched = self._launch(batch)
        if self._pending is not None:
            self._ends, self.due_s = True, max(clock.now, self._pending[1])
        elif not scheduler.waiting and scheduler.chunked is None:
            scheduler.became_idle()
            self._sleep()
        elif not blocked:
            self._blocked = True  # an abort may have freed memory in this very round: try once more
        elif not self._fail_blocked():
            self._sleep()

    def _sleep(self) -> None:
        self._log.idle_from(self._clock.now, self._scheduler.usage(), self._scheduler.ratio)
        self._sleeps, self.due_s = True, inf

    def _notify(self) -> None:
        if self._sleeps:
            self.due_s = _in_time(self._clock.now)

    def _launch(self, batch: Batch) -> _Launched:
        """Time the batch's forward step, and log it."""
        work = StepWork(
            [(row.extend, row.prefix) for row in batch.prefill],
            len(batch.decoding),
            batch.decode_context,
            batch.decode_window,
        )
        start_s = self._start_s()
        self._gpu_free_s = end_s = start_s + self._cost.step_s(work)
        for row in batch.prefill:
            submission = self._live[row.request]
            if submission.admit_s is None:
                submission.admit_s = start_s
        self._log.step(start_s, end_s, batch, work, self._scheduler)
        return batch, end_s

    def _launch_many(self, batch: Batch, before: Batch) -> tuple[_Launched, _Launched]:
        """Time the forward steps of a macro-step; return its last two steps with their ends."""
        macro_step, steps = batch.macro_step, batch.steps
        assert macro_step is not None
        start_s, series = self._start_s(), self._series(macro_step)
        self._gpu_free_s = end_s = start_s + series.total_s(steps)
        self._log.steps(start_s, end_s, batch, macro_step, series, self._scheduler)
        return (before, start_s + series.total_s(steps - 1)), (batch, end_s)

    def _start_s(self) -> float:
        return _in_time(max(self._clock.now, self._gpu_free_s))

    def _series(self, macro_step: MacroStep) -> StepSeries:
        base_s, per_context_s, per_window_s = self._cost.decode_affine(macro_step.rows)
        return StepSeries(
            base_s + per_context_s * macro_step.context + per_window_s * macro_step.window,
            per_context_s * macro_step.rows + per_window_s * macro_step.widening,
        )

    def _steps_before_next(self, macro_step: MacroStep, most: int) -> int:
        """Count the rounds of a macro-step before the next event: the first is now, the others are at ends of steps."""
        due_s, free_s = min(self._horizon(), LATEST_S), self._gpu_free_s
        if free_s >= due_s:
            return 1
        return 2 + self._series(macro_step).steps_before(free_s, due_s, most - 2)

    def _collect(self, batch: Batch) -> None:
        """Process a finished batch: report first tokens and ends of requests."""
        started, finished = self._scheduler.process_result(batch)
        for request in started:
            submission = self._live[request]
            if submission.first_token_s is None:
                submission.start(self._clock.now)
        for request in finished:
            self._end(self._live[request])

    def _end(self, submission: Submission) -> None:
        request = submission.request
        del self._live[request]
        failure: str | None = None if request.finish in {"stop", "length"} else request.finish
        if request is self._hopeless:
            self._hopeless, failure = None, NEVER_FITS
        submission.end(self._clock.now, failure)

    def _end_elsewhere(self) -> None:
        """End the requests that ended outside of a result: aborted in the queue, or out of memory when alone."""
        if self._scheduler.ended:
            ended, self._scheduler.ended = self._scheduler.ended, []
            for request in ended:
                self._end(self._live[request])

    def _fail_blocked(self) -> bool:
        """Fail the request that blocks an idle engine, unless a pinned session may still free its KV; tell whether it failed."""
        scheduler = self._scheduler
        if not scheduler.limits.release_idle_sessions and scheduler.usage().idle_sessions:
            return False  # a pinned session may still be closed
        if scheduler.kv.sessions.pins:
            return False  # a pin ends with its time
        self._hopeless = scheduler.chunked or scheduler.waiting[0]
        scheduler.abort(self._hopeless.asked.rid)
        self._end_elsewhere()
        return True
