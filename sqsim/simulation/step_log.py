# SPDX-License-Identifier: Apache-2.0
"""The rows of the record's engine table: one a step, or one an interval of alike steps."""

from __future__ import annotations

from sqsim.models.cost.step_cost import CostModel, StepWork
from sqsim.models.serving.batch import Batch, MacroStep, Usage
from sqsim.models.serving.scheduler import Scheduler
from sqsim.models.serving.step_series import StepSeries
from sqsim.record.schema import Rows

_MODES = {"extend": "prefill", "mixed": "mixed", "decode": "decode"}


class _Interval:
    """Decode steps that follow one another with the same requests and the same queue, or one step alone."""

    __slots__ = (
        *("context_tokens", "new_tokens", "ranges", "ratio", "requests", "running", "steps"),
        *("t0_s", "t1_s", "usage", "used_token_s", "waiting"),
    )

    def __init__(
        self, t0_s: float, requests: int, running: int, waiting: int, ranges: tuple[str, ...] = ()
    ) -> None:
        self.t0_s = self.t1_s = t0_s
        self.requests, self.running, self.waiting = requests, running, waiting
        self.ranges = ranges
        self.steps = self.new_tokens = self.context_tokens = 0
        self.used_token_s = 0.0
        self.usage: Usage
        self.ratio: float

    def continues(self, t0_s: float, requests: int, running: int, waiting: int) -> bool:
        """Tell whether a plain decode step that begins now belongs to this interval."""
        return (
            self.t1_s == t0_s
            and self.requests == requests
            and self.waiting == waiting
            and self.running == running
        )

    def add(
        self, t1_s: float, steps: int, new: int, context: int, usage: Usage, used_token_s: float, ratio: float
    ) -> None:
        """Add steps up to `t1_s`; `usage` and `ratio` are those after the last of them."""
        self.t1_s = t1_s
        self.steps += steps
        self.new_tokens += new
        self.context_tokens += context
        self.usage = usage
        self.used_token_s += used_token_s
        self.ratio = ratio


class StepLog:
    """Collects engine rows. Alike decode steps share a row; a prefill, a retraction or a reclaim has its own."""

    def __init__(self, cost: CostModel, rows: Rows, *, hybrid: bool, replica: int | None = None) -> None:
        self._rows = rows  # of record.ENGINE
        self._replica = () if replica is None else (replica,)  # the extra column of a run on several replicas
        self.out_of_range: dict[str, int] = {}
        """Number of steps outside a range that the profile was measured over, by the range's name."""
        self._cost = cost
        self._hybrid = hybrid
        self._open: _Interval | None = None
        self._idle: tuple[float, Usage, float] | None = None

    def step(self, t0_s: float, t1_s: float, batch: Batch, work: StepWork, scheduler: Scheduler) -> None:
        """Log one forward step, from the start of its forward pass to the end."""
        usage, ratio = scheduler.usage(), scheduler.ratio
        used_token_s = usage.used * (t1_s - t0_s)
        if batch.mode == "decode" and not (batch.reclaimed or batch.retracted or batch.released_sessions):
            interval = self._interval(t0_s, work, scheduler)
            context = work.decode_context
            interval.add(t1_s, 1, work.decode_requests, context, usage, used_token_s, ratio)
            return
        self._close()
        new, context = work.decode_requests, work.decode_context
        for extend, prefix in work.prefill:
            new += extend
            context += extend + prefix
        rows, running, waiting = len(batch.requests), len(scheduler.running), len(scheduler.waiting)
        alone = _Interval(t0_s, rows, running, waiting, self._cost.out_of_range(work))
        alone.add(t1_s, 1, new, context, usage, used_token_s, ratio)
        self._write(_MODES[batch.mode], alone, len(batch.retracted), batch.reclaimed, batch.released_sessions)

    def steps(
        self,
        t0_s: float,
        t1_s: float,
        batch: Batch,
        macro_step: MacroStep,
        series: StepSeries,
        scheduler: Scheduler,
    ) -> None:
        """Log the alike decode steps of a macro-step, from the start of the first to the end of the last."""
        steps, rows, usage = batch.steps, macro_step.rows, scheduler.usage()
        first = StepWork((), rows, batch.decode_context, batch.decode_window)
        before = usage.used - macro_step.slots(steps)
        used_token_s = series.held_token_s(steps, before, macro_step.page, macro_step.crossings)
        context = steps * macro_step.context + steps * (steps + 1) // 2 * rows
        interval = self._interval(t0_s, first, scheduler)
        interval.add(t1_s, steps, steps * rows, context, usage, used_token_s, scheduler.ratio)

    def _interval(self, t0_s: float, work: StepWork, scheduler: Scheduler) -> _Interval:
        """Return the interval of a plain decode step: the open one, or a new one."""
        rows, running, waiting = work.decode_requests, len(scheduler.running), len(scheduler.waiting)
        held = self._open
        if held is None or not held.continues(t0_s, rows, running, waiting):
            self._close()
            # Looked up once an interval: alike steps leave a range together, except for the few in which a context
            # grows beyond it.
            held = self._open = _Interval(t0_s, rows, running, waiting, self._cost.out_of_range(work))
        return held

    def idle_from(self, now_s: float, usage: Usage, ratio: float) -> None:
        """Note that the engine has nothing to run from `now_s` on."""
        self._close()
        self._idle = (now_s, usage, ratio)

    def idle_changed(self, now_s: float, usage: Usage) -> None:
        """Note that memory changed while the engine sleeps; without effect while it works."""
        if self._idle is not None:
            ratio = self._idle[2]
            self.idle_until(now_s)
            self._idle = (now_s, usage, ratio)

    def idle_until(self, now_s: float) -> None:
        """Note that the engine works again."""
        if self._idle is not None:
            t0_s, usage, ratio = self._idle
            self._idle = None
            if now_s > t0_s:
                idle = _Interval(t0_s, 0, 0, 0)
                idle.add(now_s, 0, 0, 0, usage, usage.used * (now_s - t0_s), ratio)
                self._write("idle", idle, 0, 0, 0)

    def finish(self, now_s: float) -> None:
        """Write the last interval at the end of the run."""
        self._close()
        self.idle_until(now_s)

    def _close(self) -> None:
        if self._open is not None:
            interval, self._open = self._open, None
            self._write("decode", interval, 0, 0, 0)

    def _write(self, mode: str, row: _Interval, retracted: int, reclaimed: int, released: int) -> None:
        running, idle, aux, evictable, free, swa_used = row.usage
        t0_s, t1_s = row.t0_s, row.t1_s
        for name in row.ranges:
            self.out_of_range[name] = self.out_of_range.get(name, 0) + row.steps
        # In the order of record.ENGINE.
        self._rows.add((
            t0_s, t1_s, mode, row.steps, row.requests, row.new_tokens, row.context_tokens,
            row.running, row.waiting, running, idle, aux, evictable, free, row.used_token_s / (t1_s - t0_s),
            swa_used if self._hybrid else None, retracted, reclaimed, released, row.ratio,
            *self._replica,
        ))  # fmt: skip
