# SPDX-License-Identifier: Apache-2.0
"""Step log: every decision of SGLang's scheduler, in the format of the recorded schedules.

The recordings' README.md (tests/data/sglang-schedules) describes the format; `sqsim lockstep` replays it. Three
differences from a finished recording, which `sqreal.replay.schedule` removes: times are those of the machine's monotonic clock,
steps are counted since the server's start, and an event `flush_cache` marks when the cache was emptied, that is, where the
warm-up ended. `refresh` stands in every round: the counter of rule 32; SGLang 0.5.16
has none, and its log has no `ckpt` and `touch` either.

The hooks observe: each calls the original once, with what it was given, and returns what it returned.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sqreal.plugin import step_state, versions
from sqreal.plugin.event_log import EventLog, now
from sqreal.plugin.hooks import Hook, Need, PluginError
from sqreal.plugin.session_cache import SessionCache
from sqreal.plugin.step_details import SESSIONS, StepDetails

_ADAPTER = versions.adapter()
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_CONTROL = ("open_session", "close_session", "pause_generation", "continue_generation")

Original = Callable[..., Any]


class StepLog:
    """Hooks of the step log, and the state they share. Only the first rank of a server writes."""

    def __init__(self, path: Path) -> None:
        self._log = EventLog(path)
        self._details = StepDetails(self._log)
        self._was_idle = True
        self._round: dict[str, Any] | None = None  # the round whose batch runs next
        self._nothing: dict[str, Any] | None = None  # the last round without a batch, as written

    def start(self, scheduler: Any) -> None:
        """Open the log for a ready scheduler, or refuse one that it cannot describe."""
        parallel = _ADAPTER.parallel(scheduler)
        if parallel.dp_size > 1 or parallel.pp_size > 1:
            raise PluginError("the step log describes one scheduler; use --dp-size 1 and --pp-size 1")
        if scheduler.disaggregation_mode.value != "null":
            raise PluginError("the step log does not support disaggregation; leave out --disaggregation-mode")
        known = UnifiedRadixCache, SessionCache
        if type(scheduler.tree_cache) not in known or scheduler.enable_hierarchical_cache:
            kind = type(scheduler.tree_cache).__name__
            raise PluginError(
                f"the step log supports only UnifiedRadixCache and SessionCache, this server has a {kind}; with SGLang "
                "0.5.16 set SGLANG_ENABLE_UNIFIED_RADIX_TREE=1, and leave out --enable-hierarchical-cache"
            )
        if parallel.tp_rank == 0:
            self._log.open()

    def hooks(self) -> list[Hook]:
        """List the hooks of SGLang's methods."""
        hook = self._log.hook
        return [
            hook(f"{_SCHEDULER}._add_request_to_queue", "self req is_retracted", self._arrive),
            hook(f"{_SCHEDULER}.get_next_batch_to_run", "self running_batch last_batch", self._plan),
            hook(f"{_SCHEDULER}.run_batch", "self batch pp_proxy_tensors", self._run),
            hook(f"{_SCHEDULER}.process_batch_result", "self batch result", self._result),
            hook(f"{_SCHEDULER}.on_idle", "self", self._idle),
            hook(f"{_SCHEDULER}.abort_request", "self recv_req", self._abort),
            hook(f"{_SCHEDULER}.flush_cache", "self empty_cache", self._flush),
            *(hook(f"{_SCHEDULER}.{event}", "self recv_req", self._control(event)) for event in _CONTROL),
            hook(f"{SESSIONS}.drop", "self name spans", self._drop),
            *self._details.hooks(),
        ]

    # Arrivals and control.

    def _arrive(self, original: Original, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
        pos = len(scheduler.waiting_queue)
        if is_retracted:
            self._log.detail("requeue", {"rid": req.rid, "n_out": len(req.output_ids), "pos": pos})
        else:
            self._log.write("arrive", t=now(), **step_state.arrival(req), pos=pos, step=scheduler.forward_ct)
        original(scheduler, req, is_retracted)

    def _abort(self, original: Original, scheduler: Any, recv_req: Any) -> None:
        waiting, running = (
            step_state.rids(scheduler.waiting_queue),
            step_state.rids(scheduler.running_batch.reqs),
        )
        self._log.write(
            "abort", t=now(), rid=recv_req.rid, step=scheduler.forward_ct, wait=waiting, run=running
        )
        original(scheduler, recv_req)

    def _flush(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        flushed = original(scheduler, *args, **kwargs)
        if flushed:
            self._log.write("flush_cache", t=now(), step=scheduler.forward_ct)
        return flushed

    def _control(self, event: str) -> Callable[..., Any]:
        def control(original: Original, scheduler: Any, recv_req: Any) -> Any:
            session = getattr(recv_req, "session_id", None)
            self._log.write(event, t=now(), step=scheduler.forward_ct, id=session)
            return original(scheduler, recv_req)

        return control

    def _drop(self, original: Original, sessions: Any, name: str, spans: Any) -> None:
        self._log.write("drop", t=now(), id=name, spans=spans)
        original(sessions, name, spans)

    # Rounds and results.

    def _plan(self, original: Original, scheduler: Any, running_batch: Any, last_batch: Any) -> Any:
        before = {
            "t_sched": now(),
            "pre": step_state.pools(scheduler),
            "wait_pre": step_state.rids(scheduler.waiting_queue),
            "run_pre": step_state.rids(running_batch.reqs),
            "full_pre": bool(running_batch.batch_is_full),
            "ratio_pre": step_state.ratio(scheduler),
            **_ADAPTER.refresh_calls(scheduler),
        }
        with self._log.gather() as details:
            plan = original(scheduler, running_batch, last_batch)
        waiting = step_state.rids(scheduler.waiting_queue)
        chunked = scheduler.chunked_req
        after = {
            **details,
            "wait": waiting,
            "n_wait": len(waiting),
            "run": step_state.rids(plan.running_batch.reqs),
            "full": bool(plan.running_batch.batch_is_full),
            "chunked": chunked.rid if chunked is not None else None,
            "ratio": step_state.ratio(scheduler),
            "post": step_state.pools(scheduler),
        }
        if plan.batch_to_run is not None:
            self._round, self._nothing = {**before, **after}, None
        elif waiting or details or last_batch is not None or plan.running_batch.reqs:
            after["last"] = last_batch is not None
            if after != self._nothing:
                self._log.write("nobatch", step=scheduler.forward_ct, **before, **after)
            self._nothing = after
        return plan

    def _run(self, original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        decided, self._round = self._round, None
        if decided is None:
            raise PluginError("a batch ran that no scheduling round had made")
        mode, rows = step_state.mode(batch), step_state.rows(batch)
        t0 = now()
        result = original(scheduler, batch, *args, **kwargs)
        self._was_idle = False
        tokens = sum(row[1] for row in rows)
        event = {
            "step": scheduler.forward_ct,
            "mode": mode,
            "t0": t0,
            "t1": now(),
            "bs": len(rows),
            "tokens": tokens,
        }
        self._log.write("step", **event, reqs=rows, **decided)
        return result

    def _result(self, original: Original, scheduler: Any, batch: Any, result: Any) -> None:
        dropped = [req.rid for req in batch.reqs if req.finished() or req.is_retracted]
        t0 = now()
        with self._log.gather() as details:
            original(scheduler, batch, result)
        self._log.write(
            "result",
            step=batch.forward_iter,
            after_step=scheduler.forward_ct,
            t0=t0,
            t1=now(),
            skipped=dropped,
            out=[[req.rid, len(req.output_ids)] for req in batch.reqs],
            fin=[req.rid for req in batch.reqs if req.finished() and req.rid not in dropped],
            **details,
            mem=step_state.pools(scheduler),
            ratio=step_state.ratio(scheduler),
        )

    def _idle(self, original: Original, scheduler: Any) -> None:
        original(scheduler)
        if not self._was_idle and scheduler.is_fully_idle():
            self._was_idle = True
            mem, ratio = step_state.pools(scheduler), step_state.ratio(scheduler)
            self._log.write("idle", t=now(), step=scheduler.forward_ct, ratio=ratio, mem=mem)


NEEDS = (
    *step_state.NEEDS,
    Need("sglang.srt.managers.schedule_batch.NextBatchPlan", "batch_to_run running_batch"),
)
