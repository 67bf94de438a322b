# SPDX-License-Identifier: Apache-2.0
"""The SGLang plugin: in-place eviction, forced output tokens, the step log, and attention for gpt-oss on a CPU.

SGLang calls `register` (entry point group `sglang.srt.plugins`) in each of its processes. It does nothing unless the
environment sets one of these variables:

* `SQREAL_IN_PLACE=1`, with `--radix-cache-backend sidequest --enable-streaming-session`: sessions whose KV is cut in
  place, forked, and released while idle (in_place.py; docs/http.md is for its users);
* `SQREAL_FORCE_TOKENS=1`: a request that carries `sampling_params.custom_params = {"sqreal_force": [ids],
  "sqreal_n_in": n}` produces exactly these tokens, and `return_logprob` tells how likely they were (forced_tokens.py);
* `SQREAL_STEP_LOG=PATH`: every scheduling decision is written to PATH, which must not exist (step_log.py);
* `SQREAL_RECORD=DIRECTORY`: the requests that the server sees are recorded there, for `sqsim trace import`; the directory
  must be new or empty (recorder.py). `SQREAL_RECORD_MB`: at most so many megabytes, 4,096 by default;
* `SQREAL_CPU_ATTENTION=1`: attention with sinks and sliding windows on a CPU (cpu_attention.py);
* `SQREAL_SPREAD_ROUTER=1`: random weights whose router uses all experts (spread_router.py).

On success the scheduler logs one line, `sqreal plugin: forced tokens on, step log PATH (SGLang 0.5.23)`. On any failure
the server ends: SGLang itself would log the failure and go on without the plugin.

Inside the server only the standard library, torch, SGLang and, on a GPU, sqkernels are imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from sqreal.plugin.hooks import Hook, Need, PluginError, check_version, install
from sqreal.plugin.versions import adapter, signature

IN_PLACE = "SQREAL_IN_PLACE"
FORCE_TOKENS = "SQREAL_FORCE_TOKENS"
STEP_LOG = "SQREAL_STEP_LOG"
RECORD = "SQREAL_RECORD"
RECORD_MB = "SQREAL_RECORD_MB"
CPU_ATTENTION = "SQREAL_CPU_ATTENTION"
SPREAD_ROUTER = "SQREAL_SPREAD_ROUTER"

_log = logging.getLogger("sqreal.plugin")


@dataclass(frozen=True, slots=True)
class Asked:
    """Features that the environment asks for."""

    in_place: bool
    force_tokens: bool
    step_log: Path | None
    cpu_attention: bool
    spread_router: bool
    record: Path | None = None
    record_mb: int = 4096

    @property
    def nothing(self) -> bool:
        return not (
            self.in_place
            or self.force_tokens
            or self.step_log
            or self.cpu_attention
            or self.spread_router
            or self.record
        )

    def describe(self) -> str:
        words = {
            "sessions in place": self.in_place,
            "forced tokens on": self.force_tokens,
            f"step log {self.step_log}": self.step_log is not None,
            f"recording to {self.record}": self.record is not None,
            "CPU attention on": self.cpu_attention,
            "routers spread": self.spread_router,
        }
        return ", ".join(word for word, on in words.items() if on)


def asked(environment: Mapping[str, str]) -> Asked:
    """Read the environment; a PluginError names an invalid value."""
    path, record = environment.get(STEP_LOG), environment.get(RECORD)
    return Asked(
        _switch(environment, IN_PLACE),
        _switch(environment, FORCE_TOKENS),
        Path(path) if path else None,
        _switch(environment, CPU_ATTENTION),
        _switch(environment, SPREAD_ROUTER),
        Path(record) if record else None,
        _megabytes(environment),
    )


def register() -> None:
    """SGLang's entry point. Ends the process when a requested feature cannot be installed."""
    try:
        what = asked(os.environ)
        if not what.nothing:
            check_version(version("sglang"))
            _install(what)
    except Exception as error:  # noqa: BLE001 - SGLang logs and ignores an Exception of a plugin; it must end the server
        _end(error)


def _install(what: Asked) -> None:
    hooks: list[Hook] = []
    needs: list[Need] = []
    before: list[Callable[[Any], None]] = []
    on_start: list[Callable[[Any], None]] = []
    if what.in_place:  # innermost, so that the step log sees its results
        from sqreal.plugin import (  # noqa: PLC0415 - they load SGLang
            admission,
            chat_request,
            generate_request,
            in_place,
            server_check,
            session_cache,
        )

        session_cache.register()
        hooks += [*admission.Admission().hooks(), *in_place.HOOKS, *chat_request.HOOKS, *generate_request.HOOKS]
        needs += [
            *session_cache.NEEDS,
            *admission.NEEDS,
            *in_place.NEEDS,
            *chat_request.NEEDS,
            *generate_request.NEEDS,
            *server_check.NEEDS,
        ]
        before.append(server_check.check_flags)
        on_start.append(in_place.check_server)
    else:
        from sqreal.plugin import no_sessions  # noqa: PLC0415 - a server without these features loads nothing

        hooks += no_sessions.HOOKS
        needs += no_sessions.NEEDS
    if what.step_log is not None:  # before the hooks that change what it sees
        from sqreal.plugin import step_log  # noqa: PLC0415 - loads SGLang

        log = step_log.StepLog(what.step_log)
        hooks += log.hooks()
        needs += step_log.NEEDS
        on_start.append(log.start)
    if what.record is not None:  # as the step log
        from sqreal.plugin import recorder  # noqa: PLC0415 - only where it is requested

        recording = recorder.Recorder(what.record, what.record_mb * 1_000_000)
        hooks += recording.hooks()
        needs += recorder.NEEDS
        on_start.append(recording.start)
    if what.force_tokens:
        from sqreal.plugin import forced_tokens  # noqa: PLC0415 - only where it is requested

        hooks += forced_tokens.HOOKS
        needs += forced_tokens.NEEDS
        on_start.append(forced_tokens.check_server)
    if what.spread_router:
        from sqreal.plugin import spread_router  # noqa: PLC0415 - loads torch

        hooks += spread_router.HOOKS
    if what.cpu_attention:
        from sqreal.plugin import cpu_attention  # noqa: PLC0415 - loads torch and SGLang

        needs += cpu_attention.NEEDS

    def started(
        original: Callable[..., None], scheduler: Any, server_args: Any, *args: Any, **kwargs: Any
    ) -> None:
        for check in before:
            check(server_args)
        original(scheduler, server_args, *args, **kwargs)
        for start in on_start:
            start(scheduler)
        _log.warning("sqreal plugin: %s (SGLang %s)", what.describe(), version("sglang"))

    hooks += [start_hook(started), *adapter().info_hooks()]
    install(hooks, needs)
    if what.cpu_attention:
        cpu_attention.install()


def start_hook(started: Callable[..., None]) -> Hook:
    """Make the hook that is always installed, on the making of the scheduler."""
    return Hook("sglang.srt.managers.scheduler.Scheduler.__init__", signature("Scheduler.__init__"), started)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    if value not in {"", "0", "1"}:
        raise PluginError(f"{name} is {value!r}; use 1 (on) or leave it out")
    return value == "1"


def _megabytes(environment: Mapping[str, str]) -> int:
    value = environment.get(RECORD_MB) or "4096"
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 10**9:
        raise PluginError(f"{RECORD_MB} is {value!r}; give a whole number of megabytes, 1 or more")
    return int(value)


def _end(error: Exception) -> NoReturn:
    raise SystemExit(f"sqreal plugin: {error}") from error
