# SPDX-License-Identifier: Apache-2.0
"""Real SGLang server: one that we start and stop with all its processes, or a running one, by its URL."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sqreal.errors import (
    InstallError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    ServerTimeoutError,
    UnreachableError,
)
from sqreal.server.options import ServerOptions, architecture, options_of
from sqreal.server.port import HOST, held_port
from sqreal.server.process import ChildGroup
from sqreal.setup.install import fix, plugin_fault, require_device, require_sglang, server_python
from sqsim.models.cost.capacity import KvCapacity
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario

__all__ = ["Server", "ServerInfo", "ServerOptions", "attach", "options_of", "start"]

Progress = Callable[[str, float], None]
"""Called about every half second of a start with the awaited event and the seconds so far."""

PLUGIN_LINE = re.compile(r"sqreal plugin: .*\(SGLang ")
"""The line that the plugin logs once it is in place."""
_PLUGIN_FAILURES = ("Failed to load plugin sqreal", "Failed to execute general plugin: sqreal")

_SGLANG = ("-m", "sglang.launch_server")
_ALL = ("0.0.0.0", "::")  # noqa: S104 - asked for, not our default
_POLL_S = 0.25
_ANSWER_S = 30.0  # a scheduler in a long prefill answers late


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Answer of a server to `GET /server_info`. Sizes are in tokens."""

    version: str
    model: str
    device: str
    kv_capacity: int
    swa_capacity: int | None  # None: the model has no sliding-window pool of its own
    page_size: int
    max_running: int
    context_length: int | None
    chunked_prefill: int | None
    max_prefill_tokens: int
    schedule_conservativeness: float
    swa_full_tokens_ratio: float
    kv_dtype: str
    dtype: str
    mem_fraction: float | None
    tensor_parallel: int
    load_format: str
    in_place: bool  # does it run the plugin's sessions?
    skip_tokenizer: bool
    tokenizer: str  # its path or name
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, raw: Mapping[str, Any], url: str) -> ServerInfo:
        """Pick the fields we use from the answer; an UnreachableError where it is not SGLang's."""
        try:
            state = raw["internal_states"][0]
            memory = state["memory_usage"]
            return cls(
                version=raw["version"],
                model=raw["model_path"],
                device=raw["device"],
                kv_capacity=int(memory["token_capacity"]),
                swa_capacity=memory.get("token_capacity_swa"),
                page_size=raw["page_size"],
                max_running=state["effective_max_running_requests_per_dp"],
                context_length=raw["context_length"],
                chunked_prefill=raw["chunked_prefill_size"],
                max_prefill_tokens=raw["max_prefill_tokens"],
                schedule_conservativeness=raw["schedule_conservativeness"],
                swa_full_tokens_ratio=raw["swa_full_tokens_ratio"],
                kv_dtype=raw["kv_cache_dtype"],
                dtype=raw["dtype"],
                mem_fraction=raw["mem_fraction_static"],
                tensor_parallel=raw["tp_size"],
                load_format=raw["load_format"],
                in_place=raw.get("radix_cache_backend") == "sidequest",
                skip_tokenizer=bool(raw.get("skip_tokenizer_init")),
                tokenizer=raw.get("tokenizer_path") or raw["model_path"],
                raw=raw,
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UnreachableError(
                f"{url}/server_info is not an SGLang answer ({error!r}); give the URL of an SGLang server"
            ) from error

    @property
    def pools(self) -> KvCapacity:
        """KV pools of the server."""
        return KvCapacity(self.kv_capacity, self.swa_capacity, "reported by the server (/server_info)")

    def keys(self) -> dict[str, Any]:
        """Give the keys of a scenario's engine that the server reports, by name."""
        return {
            "page_size": self.page_size,
            "max_running": self.max_running,
            "chunked_prefill": self.chunked_prefill,
            "schedule_conservativeness": self.schedule_conservativeness,
            "kv_capacity": self.kv_capacity,
            "context_length": self.context_length,
        }

    def resolved(self, scenario: Scenario) -> Resolved:
        """Resolve a scenario with this server's sizes in place of the scenario's; the model's context if the server has none."""
        told = self.keys()
        if (
            not (self.chunked_prefill or 0) > 0
        ):  # SGLang's -1 or None: no chunking; a scenario cannot state that
            del told["chunked_prefill"]
        if self.context_length is None:
            told["context_length"] = "auto"
        return Resolved.of(scenario, engine=scenario.engine.model_copy(update=told), told=self.pools)


class Server:
    """Running server. `log_path` and `options` are None where we did not start it."""

    def __init__(
        self, url: str, info: ServerInfo, child: ChildGroup | None = None, options: ServerOptions | None = None
    ) -> None:
        self.url, self.info, self.options = url, info, options
        self._child = child

    @property
    def log_path(self) -> Path | None:
        return None if self._child is None else self._child.log_path

    @property
    def pid(self) -> int | None:
        """Id of the server's main process and of its process group; None where we did not start it."""
        return None if self._child is None else self._child.pid

    def check(self) -> None:
        """Raise a ServerDiedError where the server has ended; call it when a request failed without a reason."""
        if self._child is not None and self._child.ended:
            raise _died(self._child, "the server has ended")

    def failure(self, problem: str) -> ServerError:
        """Make the error for a request that broke off: that the server died, where it did, else `problem`.

        A server whose connection breaks may take a moment to end, so this waits up to ten seconds.
        """
        until = time.monotonic() + 10
        while self._child is not None and time.monotonic() < until:
            if self._child.ended:
                return _died(self._child, f"the server has ended ({problem})")
            time.sleep(_POLL_S)
        return ServerError(f"{self.url}: {problem}")


@contextlib.contextmanager
def start(
    options: ServerOptions,
    *,
    force_tokens: bool = False,
    step_log: Path | None = None,
    record: Path | None = None,
    port: int | None = None,
    host: str = HOST,
    log_path: Path | None = None,
    deadline_s: float = 900,
    progress: Progress | None = None,
    launcher: Sequence[str] | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it answers, and stop it with all its processes when the block ends.

    `record`: a new directory into which the plugin records the requests that the server sees.

    `port` None: a free one. `host`: the addresses it listens on, of which this machine's own has to be one.
    `log_path` None: a temporary file, gone with the server; an error quotes its end. `launcher`: a command in SGLang's
    place; SGLang itself is started with the Python that $SQREAL_PYTHON names, else with this one.
    """
    if launcher is None:
        require_sglang()
        launcher = (server_python(), *_SGLANG)
    require_device(options.device)
    architecture(options.model)  # reports a wrong path before SGLang asks a hub for it
    with contextlib.ExitStack() as stack:
        starting = stack.enter_context(contextlib.ExitStack())
        port = starting.enter_context(held_port(port))
        url = f"http://{HOST if host in _ALL else host}:{port}"
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqreal-")))
        log_path = own / "server.log" if log_path is None else log_path
        environment = options.environment(force_tokens=force_tokens, step_log=step_log, record=record)
        environment["TMPDIR"] = str(own)  # SGLang does not remove its sockets and its metrics
        command = [*launcher, *options.flags(), "--host", host, "--port", str(port)]
        child = ChildGroup(command, environment, log_path)
        stack.callback(child.stop)
        info = _wait(child, url, deadline_s, progress)
        starting.close()
        if (
            force_tokens
            or step_log is not None
            or record is not None
            or options.plugin_attention
            or options.spread_router
            or options.in_place
        ):
            _check_plugin(child)
        yield Server(url, info, child, options)


@contextlib.contextmanager
def attach(url: str) -> Iterator[Server]:
    """Use a running server; it is left running."""
    yield Server(url.rstrip("/"), _info(url.rstrip("/")))


def _wait(child: ChildGroup, url: str, deadline_s: float, progress: Progress | None) -> ServerInfo:
    began = time.monotonic()
    while True:
        if child.ended:
            raise _died(child, "the server ended before it was ready")
        waited = time.monotonic() - began
        if waited > deadline_s:
            tail = "\n".join(f"  | {line}" for line in child.log_tail())
            raise ServerTimeoutError(
                f"the server at {url} was not ready after {deadline_s:g} s; its last log lines:\n{tail}"
            )
        if progress is not None:
            progress(f"waiting for the server at {url}", waited)
        with contextlib.suppress(httpx.TransportError):
            # Unlike a connection, /health answers 503 until the model is loaded.
            if httpx.get(f"{url}/health", timeout=_ANSWER_S).status_code == httpx.codes.OK and not child.ended:
                return _info(url)
        time.sleep(_POLL_S)


def _info(url: str) -> ServerInfo:
    try:
        answer = httpx.get(f"{url}/server_info", timeout=_ANSWER_S)
        answer.raise_for_status()
        raw = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError) as error:
        raise UnreachableError(
            f"{url}/server_info: {error or type(error).__name__}; give the URL of a running SGLang server"
        ) from error
    return ServerInfo.of(raw, url)


def _check_plugin(child: ChildGroup) -> None:
    """Raise where the plugin failed: SGLang only logs that and serves without it."""
    lines = child.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines):
        if any(failure in line for failure in _PLUGIN_FAILURES):
            raise ServerStartError("the sqreal plugin failed:\n" + "\n".join(lines[number : number + 30]))
    if not any(PLUGIN_LINE.search(line) for line in lines):
        fault = plugin_fault()
        raise InstallError(
            "the server runs without the sqreal plugin (its log does not name it); "
            + (f"run: {fix()}" if fault is None else f"{fault.problem}; {fault.fix}")
        )


def _died(child: ChildGroup, problem: str) -> ServerDiedError:
    return ServerDiedError(f"{problem} ({child.ending})", child.log_tail())
