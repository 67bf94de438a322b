# SPDX-License-Identifier: Apache-2.0
"""`sqreal serve`: run a server with the plugin in the foreground."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqreal.cli.progress import starting
from sqreal.replay.byte_tokenizer import write_tokenizer
from sqreal.server.port import HOST
from sqreal.setup.install import cuda_devices, require_client
from sqreal.setup.tiny_models import TINY_MODELS, write_tiny_model
from sqsim.cli.output import Quiet, print_line
from sqsim.errors import InputError

if TYPE_CHECKING:
    from sqreal.server.options import ServerOptions
    from sqreal.server.server import Server

_PORT = 30000  # SGLang's own
_POLL_S = 0.5


class Cache(StrEnum):
    """Cache that the server keeps between requests; SPEC.md, `engine.cache`."""

    RADIX = "radix"
    SESSION = "session"


def serve_command(
    model: Annotated[
        str, typer.Argument(help=f"A model's directory or its config.json, or {', '.join(TINY_MODELS)}.")
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            help="After --: further flags, passed to sglang.launch_server unchanged.", metavar="[-- FLAG...]"
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Listen here.")] = _PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Listen on this address; 0.0.0.0 accepts every machine that can reach this one."
        ),
    ] = HOST,
    kv_capacity: Annotated[
        int | None,
        typer.Option("--kv-capacity", min=1, help="Tokens of KV; on a GPU the default is as many as fit."),
    ] = None,
    cache: Annotated[
        Cache,
        typer.Option(
            "--cache", help="session: conversations from which a client can evict in place (docs/http.md)."
        ),
    ] = Cache.RADIX,
    step_log: Annotated[
        Path | None, typer.Option("--step-log", help="Write every decision of the scheduler to this new file.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Record the requests that the server sees into this new directory, for `sqsim trace import`.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Serve a model with the plugin, for `sqreal run --url` and for sessions; Ctrl-C ends it."""
    require_client()
    from sqreal.server.server import start  # noqa: PLC0415 - the other commands do without httpx

    if step_log is not None and step_log.exists():
        raise InputError(f"{step_log}: exists already; give each server a step log of its own")
    if record is not None and record.exists() and not (record.is_dir() and not any(record.iterdir())):
        raise InputError(f"{record}: exists already; give each server a directory of its own to record into")
    for flag in flags or ():
        if flag.partition("=")[0] in {"--host", "--port"}:
            raise InputError(f"{flag}: is an option of sqreal serve; give it before --")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqreal-")))
        options = _options(model, work, kv_capacity, cache, tuple(flags or ()))
        with starting(quiet) as waiting:
            server = stack.enter_context(
                start(
                    options,
                    force_tokens=True,
                    step_log=step_log,
                    record=record,
                    port=port,
                    host=host,
                    progress=waiting,
                )
            )
        log = "" if step_log is None else f" --step-log {step_log}"
        with suppress(KeyboardInterrupt):
            _say(options.model, server, host, cache, log)
            while True:
                server.check()
                time.sleep(_POLL_S)
    print_line("stopped" if record is None else f"stopped; next: sqsim trace import {record} -o recorded.jsonl")


def _say(model: Path, server: Server, host: str, cache: Cache, log: str) -> None:
    """Print what the server serves, its address, and commands that use it."""
    print_line(f"serving {model} at {server.url}; {server.info.kv_capacity} tokens of KV; Ctrl-C ends it")
    if host != HOST:
        print_line(
            f"- anyone who can reach {host} may use it: there is no password, and session ids are not secret"
        )
    if cache is Cache.SESSION:
        asked = '{"session_id": "a", "capacity_of_str_len": 100000, "streaming": true}'
        print_line(
            f"- a session: curl {server.url}/open_session -H 'content-type: application/json' -d '{asked}'"
        )
    print_line(f"- a scenario of it: sqreal scenario --from {server.url} --traces TRACES -o mine.yaml")
    print_line(f"- a run on it: sqreal run mine.yaml --url {server.url}{log} --output-dir out/real")
    sys.stdout.flush()


def _options(
    model: str, work: Path, kv_capacity: int | None, cache: Cache, flags: tuple[str, ...]
) -> ServerOptions:
    """Options of a server with SGLang's defaults, and random weights where the model has none."""
    from sqreal.server.options import ServerOptions  # noqa: PLC0415 - as above

    if model in TINY_MODELS:
        directory = write_tokenizer(write_tiny_model(model, work / model))  # the chat endpoint needs it
    else:
        directory = Path(model).resolve()
        directory = directory.parent if directory.suffix == ".json" else directory
    gpus = cuda_devices()
    if not gpus and kv_capacity is None:
        raise InputError(
            "--kv-capacity: without a GPU SGLang would take all memory of this machine for KV; give a number of tokens"
        )
    return ServerOptions(
        model=directory,
        device="cuda" if gpus else "cpu",
        load_format="auto" if any(directory.glob("*.safetensors")) else "dummy",
        kv_capacity=kv_capacity,
        chunked_prefill=None,
        skip_tokenizer=not any(directory.glob("tokenizer*")),
        in_place=cache is Cache.SESSION,
        extra=flags,
    )
