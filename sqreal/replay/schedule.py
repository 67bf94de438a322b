# SPDX-License-Identifier: Apache-2.0
"""Recorded schedule, made from a server's step log: the folder of four files that `sqsim lockstep` replays.

The plugin's raw log holds everything since the server's start, in the machine's time. A recording begins at the last
flush of the cache (earlier events are warm-up), counts its lines and batches from there, and its times from a given
moment. The format is described in tests/data/sglang-schedules/README.md.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqsim.errors import RunError

_POLL_S = 0.05
_TIMES = ("t", "t0", "t1", "t_sched")
_LAUNCH_ARGUMENTS = (
    "max_prefill_tokens",
    "schedule_policy",
    "schedule_conservativeness",
    "page_size",
    "enable_mixed_chunk",
    "disable_overlap_schedule",
    "context_length",
    "chunked_prefill_size",
    "enable_streaming_session",
    "radix_cache_backend",
    "device",
    "dtype",
    "attention_backend",
)


def write_schedule(
    directory: Path,
    *,
    log: Path,
    server_info: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    responses: Mapping[str, Mapping[str, Any]],
    t0: float,
    context_length: int | None = None,
    window: int | None = None,
) -> None:
    """Write the recording of a run into a new `directory`.

    log: the raw step log of a server that is idle again. server_info: what `GET /server_info` answers. requests: per
    request, in the order of submission, `rid`, `input_ids` (the whole context, with a session too), `max_new_tokens`,
    `n_out` (its output's length), `ignore_eos`, `stop_token_ids`, `session` or None; with the plugin's
    sessions also `fork_tokens` of a fork of that session, `publish_tokens` and `forked`. responses: by rid, `output_ids` and
    what else came back. t0: the first submission, in seconds of the monotonic clock. context_length: the
    model's, where the server was given none. window: of a hybrid model, the tokens
    before its own that a token sees. A RunError when the log is not that of a complete run.
    """
    directory.mkdir(parents=True)
    with gzip.GzipFile(directory / "steps.jsonl.gz", "wb", mtime=0) as packed:
        for event in recorded(log, t0):
            packed.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
    _write(directory / "server.json", _server(server_info, context_length, window))
    _write(directory / "workload.json", {"requests": list(requests)})
    _write(directory / "responses.json", dict(responses))


def await_idle(log: Path, deadline_s: float = 10) -> None:
    """Wait until the log shows an idle server, which is a little after its last answer.

    A RunError when it does not within the deadline.
    """
    until = time.monotonic() + deadline_s
    while not _scan(log).idle:
        if time.monotonic() > until:
            raise RunError(
                f"{log}: the server is still busy after {deadline_s:g} s; wait for all its answers first"
            )
        time.sleep(_POLL_S)


def recorded(log: Path, t0: float) -> Iterator[dict[str, Any]]:
    """Read the events of a raw step log after its last flush: `n` and `step` counted from there, times from `t0`."""
    scan = _scan(log)
    if not scan.idle:
        raise RunError(f"{log}: the server is still busy at its end; wait until all requests are answered")
    with log.open(encoding="utf-8") as lines:
        for line, event in enumerate(map(json.loads, lines)):
            if line < scan.begin:
                continue
            event["n"] = line - scan.begin
            for name in _TIMES:
                if name in event:
                    event[name] = round(event[name] - t0, 6)
            for name in ("step", "after_step"):
                if name in event:
                    event[name] -= scan.batches
            yield event


class _Scan(NamedTuple):
    """Summary of a raw log."""

    begin: int  # the line after the last flush; 0 without one
    batches: int  # batches that ran before it
    idle: bool  # is the server idle at its end?


def _scan(log: Path) -> _Scan:
    begin, batches, idle = 0, 0, True
    with log.open(encoding="utf-8") as lines:
        for line, text in enumerate(lines):
            if not text.endswith("\n"):  # being written just now
                idle = False
                break
            event = json.loads(text)
            if event["ev"] == "flush_cache":
                begin, batches = line + 1, event["step"]
            if event["ev"] in {"idle", "flush_cache"}:
                idle = True
            elif event["ev"] in {"arrive", "step", "nobatch"}:
                idle = False
    return _Scan(begin, batches, idle)


def _server(info: Mapping[str, Any], context_length: int | None, window: int | None) -> dict[str, Any]:
    state = info["internal_states"][0]
    memory = state["memory_usage"]
    arguments = {name: info[name] for name in _LAUNCH_ARGUMENTS}
    arguments["context_length"] = info["context_length"] or context_length
    if (info["chunked_prefill_size"] or -1) < 0:  # a server that does not chunk
        arguments["chunked_prefill_size"] = arguments["context_length"]
    arguments["max_running_requests"] = state["effective_max_running_requests_per_dp"]
    server: dict[str, Any] = {
        "sglang_version": info["version"],
        "launch_args": arguments,
        "pool_tokens": memory["token_capacity"],
    }
    if memory.get("token_capacity_swa") is not None:
        server |= {"swa_pool_tokens": memory["token_capacity_swa"]}
        if window is not None:
            server["swa_window"] = window
    return server


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
