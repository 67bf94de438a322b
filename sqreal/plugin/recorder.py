# SPDX-License-Identifier: Apache-2.0
"""Recorder: the requests that a server saw, as a log that `sqsim trace import` reads (format `sqreal_log`).

Events, one JSON object a line (record_files.py): `start` with the server; `arrive` with a request's prompt, `end` with its
output, cached tokens and times; `flush` where the cache was emptied; `lost`. Times `t` are seconds of the monotonic clock;
`start` has the wall clock's beside it. A prompt is the first `keep` tokens of the request `after`, then `ids`.

The hooks observe, and copy the token ids; everything else is done by the writer's thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqreal.plugin import record_options, versions
from sqreal.plugin.event_log import now
from sqreal.plugin.hooks import Hook, Need, PluginError
from sqreal.plugin.record_files import RecordFiles
from sqreal.plugin.request_options import FORK

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

Original = Callable[..., Any]


class Recorder:
    """Hooks of the recorder, and the requests that have arrived and not ended. Only the first rank of a server records."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._files = RecordFiles(directory, most_bytes)
        self._live: dict[str, float | None] = {}  # request -> the time of its first token

    def start(self, scheduler: Any) -> None:
        """Begin the recording of a ready scheduler, or refuse one that it cannot describe."""
        parallel = versions.adapter().parallel(scheduler)
        if parallel.dp_size > 1 or parallel.pp_size > 1:
            raise PluginError("the recorder describes one scheduler; use --dp-size 1 and --pp-size 1")
        if scheduler.disaggregation_mode.value != "null":
            raise PluginError("the recorder does not support disaggregation; leave out --disaggregation-mode")
        if parallel.tp_rank == 0:
            model = scheduler.server_args.model_path
            page = scheduler.server_args.page_size
            self._files.open(sglang=version("sglang"), model=Path(model).name, page_size=page)

    def hooks(self) -> list[Hook]:
        """List the hooks of SGLang's methods."""
        return [
            Hook(f"{_SCHEDULER}._add_request_to_queue", "self req is_retracted", self._arrive),
            Hook(f"{_SCHEDULER}.process_batch_result", "self batch result", self._result),
            Hook(f"{_SCHEDULER}.abort_request", "self recv_req", self._abort),
            Hook(f"{_SCHEDULER}.flush_cache", "self empty_cache", self._flush),
            Hook(f"{_SCHEDULER}.on_idle", "self", self._idle),
            *record_options.HOOKS,
        ]

    def _observe(self, see: Callable[[], None]) -> None:
        """Record, and count what fails: a fault of the recorder must not reach the server."""
        if self._files.is_open:
            try:
                see()
            except Exception as error:  # noqa: BLE001 - see above; it is named in the log and in the recording
                self._files.lose(f"the recorder failed ({type(error).__name__}: {error})")

    def _arrive(self, original: Original, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
        if not is_retracted:
            self._observe(lambda: self._arrived(req))
        original(scheduler, req, is_retracted)

    def _arrived(self, req: Any) -> None:
        params = req.sampling_params.custom_params
        event: dict[str, Any] = {"ev": "arrive", "t": now(), "rid": req.rid, **record_options.read(params)}
        if req.session is not None:
            event["session"] = req.session.session_id
        fork = params.get(FORK) if isinstance(params, dict) else None
        if isinstance(fork, dict):
            event["fork"] = fork.get("session")
        self._live[req.rid] = None
        self._files.put({**event, "prompt": array("q", req.origin_input_ids)})

    def _result(self, original: Original, scheduler: Any, batch: Any, result: Any) -> None:
        original(scheduler, batch, result)
        self._observe(lambda: self._processed(batch.reqs))

    def _processed(self, reqs: Any) -> None:
        for req in reqs:
            if req.rid not in self._live:
                continue
            if self._live[req.rid] is None and len(req.output_ids):
                self._live[req.rid] = now()
            if req.finished():
                self._ended(req)

    def _ended(self, req: Any) -> None:
        first = self._live.pop(req.rid)
        reason = (req.finished_reason or req.to_finish).to_json()
        event = {
            "ev": "end",
            "t": now(),
            "rid": req.rid,
            "t_first": first,
            "n_in": len(req.origin_input_ids),
            "cached": int(req.cached_tokens),
            "retracted": int(req.retraction_count),
            "why": str(reason.get("type")),
        }
        if reason.get("message"):
            event["message"] = str(reason["message"])[:200]
        self._files.put({**event, "output": array("q", req.output_ids_through_stop)})

    def _abort(self, original: Original, scheduler: Any, recv_req: Any) -> None:
        waited = list(scheduler.waiting_queue)
        original(scheduler, recv_req)
        self._observe(
            lambda: self._left({req.rid for req in waited} - {req.rid for req in scheduler.waiting_queue})
        )

    def _left(self, rids: set[str]) -> None:
        """Record the end of requests that left the queue, or the server, without a result."""
        for rid in rids & self._live.keys():
            end = {"ev": "end", "t": now(), "rid": rid, "t_first": self._live.pop(rid), "why": "abort"}
            self._files.put({**end, "cached": 0, "retracted": 0, "output": array("q")})

    def _flush(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        flushed = original(scheduler, *args, **kwargs)
        if flushed:
            self._observe(lambda: self._files.put({"ev": "flush", "t": now()}))
        return flushed

    def _idle(self, original: Original, scheduler: Any) -> None:
        original(scheduler)
        if (
            self._live and scheduler.is_fully_idle()
        ):  # refused before they were queued, or timed out in the queue
            self._observe(lambda: self._left(set(self._live)))


NEEDS = (
    Need(_SCHEDULER, "waiting_queue is_fully_idle disaggregation_mode server_args"),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "rid origin_input_ids output_ids output_ids_through_stop sampling_params session finished finished_reason to_finish"
        " cached_tokens retraction_count",
    ),
    Need("sglang.srt.managers.schedule_batch.ScheduleBatch", "reqs"),
    Need("sglang.srt.sampling.sampling_params.SamplingParams", "custom_params"),
    *record_options.NEEDS,
)
