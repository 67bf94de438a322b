"""What the engine did, as rows of the record's engine table: one a step, or one an interval of alike steps."""

from __future__ import annotations

from dataclasses import dataclass

from sqsim.models.batch import Batch, Stretch, Usage
from sqsim.models.batching import Scheduler
from sqsim.models.cost import CostModel, StepWork
from sqsim.models.ramp import Ramp
from sqsim.record import ENGINE, Rows

_MODES = {"extend": "prefill", "mixed": "mixed", "decode": "decode"}


@dataclass(slots=True)
class _Interval:
    """Decode steps that follow one another with the same requests and the same queue."""

    t0_s: float
    t1_s: float
    steps: int
    requests: int
    new_tokens: int
    context_tokens: int
    running: int
    waiting: int
    usage: Usage
    used_token_s: float
    ratio: float
    ranges: tuple[str, ...] = ()


def used(usage: Usage) -> int:
    """Slots that are neither free nor evictable."""
    return usage.running + usage.idle_sessions + usage.aux


class StepLog:
    """Collects engine rows. Alike decode steps share a row; a prefill, a retraction or a reclaim has its own."""

    def __init__(self, cost: CostModel, *, hybrid: bool) -> None:
        self.rows = Rows(ENGINE)
        self.out_of_range: dict[str, int] = {}
        """Steps that left a range the profile was measured over, by the range's name."""
        self._cost = cost
        self._hybrid = hybrid
        self._open: _Interval | None = None
        self._idle: tuple[float, Usage, float] | None = None

    def step(self, t0_s: float, t1_s: float, batch: Batch, work: StepWork, scheduler: Scheduler) -> None:
        """One forward step, from the start of its forward pass to the end."""
        usage, waiting, running = scheduler.usage(), len(scheduler.waiting), len(scheduler.running)
        plain = batch.mode == "decode" and not (batch.reclaimed or batch.retracted or batch.released_sessions)
        size, held = len(batch.requests), self._open
        if held is not None:
            if (
                plain
                and held.t1_s == t0_s
                and held.requests == size
                and held.waiting == waiting
                and held.running == running
            ):
                held.t1_s = t1_s
                held.steps += 1
                held.new_tokens += size
                held.context_tokens += work.decode_context
                held.usage = usage
                held.used_token_s += used(usage) * (t1_s - t0_s)
                held.ratio = scheduler.ratio
                return
            self._close()
        # Looked up once an interval: alike steps leave a range together, but for the few in which a context grows out of it.
        ranges = self._cost.out_of_range(work)
        context = work.decode_context + sum(extend + prefix for extend, prefix in work.prefill)
        tokens = work.decode_requests + sum(extend for extend, _ in work.prefill)
        interval = _Interval(
            t0_s,
            t1_s,
            1,
            size,
            tokens,
            context,
            running,
            waiting,
            usage,
            used(usage) * (t1_s - t0_s),
            scheduler.ratio,
            ranges,
        )
        if plain:
            self._open = interval
        else:
            self._write(
                _MODES[batch.mode], interval, len(batch.retracted), batch.reclaimed, batch.released_sessions
            )

    def steps(
        self, t0_s: float, t1_s: float, batch: Batch, stretch: Stretch, ramp: Ramp, scheduler: Scheduler
    ) -> None:
        """The alike decode steps that one batch stands for, from the start of the first to the end of the last."""
        steps, size = batch.steps, stretch.rows
        usage, waiting, running = scheduler.usage(), len(scheduler.waiting), len(scheduler.running)
        held = self._open
        if held is None or not (
            held.t1_s == t0_s and held.requests == size and held.waiting == waiting and held.running == running
        ):
            self._close()
            first = StepWork([], size, stretch.context + size, stretch.window + stretch.widening)
            ranges = self._cost.out_of_range(first)
            held = self._open = _Interval(
                t0_s, t0_s, 0, size, 0, 0, running, waiting, usage, 0.0, scheduler.ratio, ranges
            )
        held.t1_s = t1_s
        held.steps += steps
        held.new_tokens += steps * size
        held.context_tokens += steps * stretch.context + steps * (steps + 1) // 2 * size
        held.usage = usage
        before = used(usage) - stretch.slots(steps)
        held.used_token_s += ramp.held_token_s(steps, before, stretch.page, stretch.crossings)
        held.ratio = scheduler.ratio

    def idle_from(self, now_s: float, usage: Usage, ratio: float) -> None:
        """The engine has nothing to run from here on."""
        self._close()
        self._idle = (now_s, usage, ratio)

    def idle_changed(self, now_s: float, usage: Usage) -> None:
        """Memory changed hands while the engine sleeps (it does nothing while it works)."""
        if self._idle is not None:
            ratio = self._idle[2]
            self.idle_until(now_s)
            self._idle = (now_s, usage, ratio)

    def idle_until(self, now_s: float) -> None:
        """Work again."""
        if self._idle is not None:
            t0_s, usage, ratio = self._idle
            self._idle = None
            if now_s > t0_s:
                held = used(usage) * (now_s - t0_s)
                self._write("idle", _Interval(t0_s, now_s, 0, 0, 0, 0, 0, 0, usage, held, ratio), 0, 0, 0)

    def finish(self, now_s: float) -> None:
        """The run is over."""
        self._close()
        self.idle_until(now_s)

    def _close(self) -> None:
        if self._open is not None:
            interval, self._open = self._open, None
            self._write("decode", interval, 0, 0, 0)

    def _write(self, mode: str, row: _Interval, retracted: int, reclaimed: int, released: int) -> None:
        usage = row.usage
        for name in row.ranges:
            self.out_of_range[name] = self.out_of_range.get(name, 0) + row.steps
        self.rows.append(
            t0_s=row.t0_s,
            t1_s=row.t1_s,
            mode=mode,
            steps=row.steps,
            requests=row.requests,
            new_tokens=row.new_tokens,
            context_tokens=row.context_tokens,
            running=row.running,
            waiting=row.waiting,
            kv_running=usage.running,
            kv_idle_sessions=usage.idle_sessions,
            kv_aux=usage.aux,
            kv_tree_evictable=usage.tree_evictable,
            kv_free=usage.free,
            kv_used_mean=row.used_token_s / (row.t1_s - row.t0_s),
            swa_used=usage.swa_used if self._hybrid else None,
            retracted=retracted,
            reclaimed_tokens=reclaimed,
            released_sessions=released,
            new_token_ratio=row.ratio,
        )
