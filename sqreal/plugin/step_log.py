"""The step log: every decision of SGLang's scheduler, in the format of the recorded schedules.

The format is described beside the recordings (tests/data/sglang-schedules/README.md); `sqsim lockstep` replays it. Three
differences to a finished recording, which `sqreal.schedule` evens out: times are those of the machine's monotonic clock,
steps are counted since the server's start, and an event `flush_cache` says when the cache was emptied, that is, where the
warm-up ended. `refresh` stands in every round: the counter behind rule 32.

The hooks observe: each calls the original once, with what it was given, and returns what it returned.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel

from sqreal.plugin import step_state
from sqreal.plugin.event_log import EventLog, now
from sqreal.plugin.hooks import Hook, Need, PluginError

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"

Original = Callable[..., Any]


class StepLog:
    """The hooks and what they remember between them. Only the first rank of a server writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log: EventLog | None = None
        self._was_idle = True
        self._round: dict[str, Any] | None = None  # the round whose batch is about to run
        self._nothing: dict[str, Any] | None = None  # the last round without a batch, as it was written
        self._test: dict[str, Any] | None = None  # the admission test that is going on
        self._leaves: list[int] = []  # of the eviction that is going on

    def start(self, scheduler: Any) -> None:
        """The scheduler is ready: open the log, or refuse what it cannot describe."""
        parallel = get_parallel()
        if parallel.dp_size > 1 or parallel.pp_size > 1:
            raise PluginError("the step log describes one scheduler; use --dp-size 1 and --pp-size 1")
        if scheduler.disaggregation_mode.value != "null":
            raise PluginError("the step log does not know disaggregation; leave out --disaggregation-mode")
        if type(scheduler.tree_cache) is not UnifiedRadixCache or scheduler.enable_hierarchical_cache:
            kind = type(scheduler.tree_cache).__name__
            raise PluginError(f"the step log knows the plain UnifiedRadixCache only, this server has a {kind}")
        if parallel.tp_rank == 0:
            self._log = EventLog(self._path)

    def hooks(self) -> list[Hook]:
        """The methods of SGLang that the log watches."""
        watched: list[tuple[str, str, Callable[..., Any]]] = [
            (f"{_SCHEDULER}._add_request_to_queue", "self req is_retracted", self._arrive),
            (f"{_SCHEDULER}.get_next_batch_to_run", "self running_batch last_batch", self._plan),
            (f"{_SCHEDULER}.run_batch", "self batch pp_proxy_tensors", self._run),
            (f"{_SCHEDULER}.process_batch_result", "self batch result", self._result),
            (f"{_SCHEDULER}.on_idle", "self", self._idle),
            (f"{_SCHEDULER}.abort_request", "self recv_req", self._abort),
            (f"{_SCHEDULER}.flush_cache", "self empty_cache", self._flush),
            (f"{_SCHEDULER}.open_session", "self recv_req", self._control("open_session")),
            (f"{_SCHEDULER}.close_session", "self recv_req", self._control("close_session")),
            (f"{_SCHEDULER}.pause_generation", "self recv_req", self._control("pause_generation")),
            (f"{_SCHEDULER}.continue_generation", "self recv_req", self._control("continue_generation")),
            (f"{_ADDER}.add_one_req", "self req has_chunked_req truncation_align_size", self._admit),
            (
                f"{_ADDER}._check_prefill_budget",
                "self req * extend_input_len total_tokens swa_host_hit_length chunk_limit",
                self._budget,
            ),
            (f"{_ADDER}.add_chunked_req", "self req", self._chunk),
            (f"{_BATCH}.retract_decode", "self", self._retract),
            (
                f"{_TREE}._evict",
                "self params available_size_targets * allocation_reclaim_satisfied",
                self._evict,
            ),
            (f"{_TREE}._evict_device_leaf", "self node_id tracker", self._leaf),
            (f"{_TREE}.checkpoint_into_tree", "self req * up_to kwargs", self._insert),
            (f"{_TREE}.claim_kv_row", "self req", self._release),
            (f"{_TREE}.touch_prefix", "self key", self._touch),
        ]
        return [Hook(method, parameters, self._when_open(around)) for method, parameters, around in watched]

    def _when_open(self, around: Callable[..., Any]) -> Callable[..., Any]:
        def hook(original: Original, *args: Any, **kwargs: Any) -> Any:
            if self._log is None:
                return original(*args, **kwargs)
            return around(self._log, original, *args, **kwargs)

        return hook

    # Arrivals and control.

    def _arrive(
        self, log: EventLog, original: Original, scheduler: Any, req: Any, is_retracted: bool = False
    ) -> None:
        pos = len(scheduler.waiting_queue)
        if is_retracted:
            log.detail("requeue", {"rid": req.rid, "n_out": len(req.output_ids), "pos": pos})
        else:
            log.write("arrive", t=now(), **step_state.arrival(req), pos=pos, step=scheduler.forward_ct)
        original(scheduler, req, is_retracted)

    def _abort(self, log: EventLog, original: Original, scheduler: Any, recv_req: Any) -> None:
        waiting, running = (
            step_state.rids(scheduler.waiting_queue),
            step_state.rids(scheduler.running_batch.reqs),
        )
        log.write("abort", t=now(), rid=recv_req.rid, step=scheduler.forward_ct, wait=waiting, run=running)
        original(scheduler, recv_req)

    def _flush(self, log: EventLog, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        flushed = original(scheduler, *args, **kwargs)
        if flushed:
            log.write("flush_cache", t=now(), step=scheduler.forward_ct)
        return flushed

    def _control(self, event: str) -> Callable[..., Any]:
        def control(log: EventLog, original: Original, scheduler: Any, recv_req: Any) -> Any:
            session = getattr(recv_req, "session_id", None)
            log.write(event, t=now(), step=scheduler.forward_ct, id=session)
            return original(scheduler, recv_req)

        return control

    # Rounds and results.

    def _plan(
        self, log: EventLog, original: Original, scheduler: Any, running_batch: Any, last_batch: Any
    ) -> Any:
        before = {
            "t_sched": now(),
            "pre": step_state.pools(scheduler),
            "wait_pre": step_state.rids(scheduler.waiting_queue),
            "run_pre": step_state.rids(running_batch.reqs),
            "full_pre": bool(running_batch.batch_is_full),
            "ratio_pre": step_state.ratio(scheduler),
            "refresh": scheduler.policy._waiting_prefix_refresh_calls,  # noqa: SLF001 - nowhere else
        }
        with log.gather() as details:
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
                log.write("nobatch", step=scheduler.forward_ct, **before, **after)
            self._nothing = after
        return plan

    def _run(
        self, log: EventLog, original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
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
        log.write("step", **event, reqs=rows, **decided)
        return result

    def _result(self, log: EventLog, original: Original, scheduler: Any, batch: Any, result: Any) -> None:
        dropped = [req.rid for req in batch.reqs if req.finished() or req.is_retracted]
        t0 = now()
        with log.gather() as details:
            original(scheduler, batch, result)
        log.write(
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

    def _idle(self, log: EventLog, original: Original, scheduler: Any) -> None:
        original(scheduler)
        if not self._was_idle and scheduler.is_fully_idle():
            self._was_idle = True
            mem, ratio = step_state.pools(scheduler), step_state.ratio(scheduler)
            log.write("idle", t=now(), step=scheduler.forward_ct, ratio=ratio, mem=mem)

    # Admission tests and retractions.

    def _admit(self, log: EventLog, original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        test = self._test = step_state.admission(adder, req)
        answer = original(adder, req, *args, **kwargs)
        self._test = None
        test["res"] = answer.name
        test["ok"] = bool(adder.can_run_list and adder.can_run_list[-1] is req)
        if test["ok"]:
            test["extend"] = req.extend_len
            test["offset_after"] = step_state.tokens(adder.memory_budget.total_offset)
        log.detail("adm", test)
        return answer

    def _budget(self, log: EventLog, original: Original, adder: Any, req: Any, **asked: Any) -> Any:
        del log
        if self._test is not None:
            self._test |= step_state.asked_of_budget(adder, req, **asked)
        return original(adder, req, **asked)

    def _chunk(self, log: EventLog, original: Original, adder: Any, req: Any) -> Any:
        test = step_state.chunk(adder, req)
        more = original(adder, req)
        test["extend"] = req.extend_len
        test["more"] = more is not None
        test["offset_after"] = step_state.tokens(adder.memory_budget.total_offset)
        log.detail("adm", test)
        return more

    def _retract(self, log: EventLog, original: Original, batch: Any) -> Any:
        rows = step_state.candidates(batch)
        need, before = batch.new_tokens_required_next_decode(), step_state.memory(batch.tree_cache)
        retracted, ratio, aborted = original(batch)
        log.detail(
            "retract",
            {
                "batch": rows,
                "need": need,
                "mem0": before,
                "mem1": step_state.memory(batch.tree_cache),
                "retracted": step_state.rids(retracted),
                "aborted": step_state.rids(aborted),
                "ratio": round(float(ratio), 6),
                "kept": step_state.rids(batch.reqs),
            },
        )
        return retracted, ratio, aborted

    # The tree.

    def _evict(
        self, log: EventLog, original: Original, tree: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._leaves, before = [], step_state.memory(tree)
        result = original(tree, params, *args, **kwargs)
        log.detail(
            "evict",
            {
                "ask": params.num_tokens,
                "ask_swa": params.swa_num_tokens,
                "got": result.num_tokens_evicted,
                "got_swa": result.swa_num_tokens_evicted,
                "leaves": self._leaves,
                "m0": before,
                "m1": step_state.memory(tree),
            },
        )
        return result

    def _leaf(self, log: EventLog, original: Original, tree: Any, node_id: Any, tracker: Any) -> Any:
        del log
        before = tracker[BASE_COMPONENT_TYPE]
        result = original(tree, node_id, tracker)
        self._leaves.append(tracker[BASE_COMPONENT_TYPE] - before)
        return result

    def _insert(
        self, log: EventLog, original: Original, tree: Any, req: Any, *, up_to: int, **kwargs: Any
    ) -> None:
        owned, before = req.kv.cache_protected_len, step_state.memory(tree)
        original(tree, req, up_to=up_to, **kwargs)
        owned = [owned, req.kv.cache_protected_len]
        after = step_state.memory(tree)
        log.detail(
            "ckpt",
            {"rid": req.rid, "up_to": up_to, "fin": req.finished(), "prot": owned, "m0": before, "m1": after},
        )

    def _release(self, log: EventLog, original: Original, tree: Any, req: Any) -> Any:
        row = step_state.released(tree, req)
        kept = original(tree, req)
        log.detail("release", {**row, "session_kept": True} if kept else row)
        return kept

    def _touch(self, log: EventLog, original: Original, tree: Any, key: Any) -> None:
        original(tree, key)
        log.detail("touch", len(key.token_ids))


NEEDS = (
    *step_state.NEEDS,
    Need("sglang.srt.managers.schedule_batch.NextBatchPlan", "batch_to_run running_batch"),
)
