# SPDX-License-Identifier: Apache-2.0
"""A small server that speaks what sqreal needs of SGLang's HTTP and keeps its promises: forced tokens, a prefix cache,
stop ids, aborts; where nothing is forced it writes what the test says. It takes a fixed time a token and has no scheduler: every request runs at once.

`Faults` makes it break them, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqreal.replay import byte_tokenizer
from sqsim.scenario.agents import is_aux

Headers = dict[str, str]


@dataclass
class Faults:
    """What goes wrong; `at` counts requests to /generate from 0."""

    dies_at: int | None = None  # in the middle of that answer, with all its connections
    silent_at: int | None = None  # never answers
    refuses_at: int | None = None  # HTTP 400
    errs_at: int | None = None  # an error event in the stream
    unforced: bool = False  # says what it likes, as without the plugin
    retracts: bool = False  # what is aborted had just been put back into the queue
    miscounts: int = 0  # prompt tokens that its metrics count beside ours, with every flush


@dataclass
class FakeServer:
    token_s: float = 0.0
    capacity: int = 100_000
    page_size: int = 1
    incremental: bool = False
    tokenizer: bool = False  # whether answers hold text
    model: str = "fake"  # where it says that its model is
    writes: Callable[[dict[str, Any]], str] = lambda body: (
        "what a model says"
    )  # to a request without forced tokens
    faults: Faults = field(default_factory=Faults)
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)  # bodies of /generate behind the last flush
    aborted: list[str] = field(default_factory=list)
    flushes: int = 0
    _tree: list[list[int]] = field(default_factory=list)
    aux_stands: bool = False  # an aux thread says its last token when it has been aborted, that is never
    metrics: bool = True
    metrics_text: str | None = None  # what it answers instead of its metrics
    _counted: dict[str, int] = field(default_factory=dict)
    _served: int = 0
    _live: dict[str, asyncio.Event] = field(default_factory=dict)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeServer]:
        loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self._stop = asyncio.Event()
            ready.set()
            await self._stop.wait()
            self._die()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)
            loop.close()

    def _die(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                headers: Headers = {}
                while (line := await reader.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, method, target.partition("?")[0], json.loads(body) if body else {})
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]) -> None:
        match method, path:
            case "GET", "/health":
                await self._send(writer, 200, "")
            case "GET", "/server_info":
                await self._send(writer, 200, json.dumps(self._info()))
            case "GET", "/metrics" if self.metrics:
                await self._send(writer, 200, self._prometheus())
            case "POST", "/tokenize" if self.tokenizer:
                tokens = byte_tokenizer.encode(body["prompt"])
                await self._send(writer, 200, json.dumps({"tokens": tokens, "count": len(tokens)}))
            case "POST", "/flush_cache":
                self._tree.clear()
                self.requests.clear()
                self.flushes += 1
                await self._send(writer, 200, "Cache flushed.")
            case "POST", "/abort_request":
                live = self._live.get(body["rid"])
                if live is not None and not live.is_set():  # SGLang, too, aborts a request once (abort_sent)
                    self.aborted.append(body["rid"])
                    live.set()
                await self._send(writer, 200, "")
            case "POST", "/generate":
                await self._generate(writer, body)
            case _:
                await self._send(writer, 404, '{"detail": "Not Found"}')

    async def _generate(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        number, self._served, faults = self._served, self._served + 1, self.faults
        if number == faults.silent_at:
            await asyncio.sleep(3600)
        if number == faults.refuses_at:
            await self._send(writer, 400, '{"error": {"message": "no such thing"}}')
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if number == faults.errs_at:
            await self._event(writer, {"error": {"message": "not with me", "code": 400}})
        else:
            self.requests.append(body)
            await self._decode(writer, body, dies=number == faults.dies_at)
        await self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _decode(self, writer: asyncio.StreamWriter, body: dict[str, Any], *, dies: bool) -> None:
        prompt, params, rid = body["input_ids"], body["sampling_params"], body["rid"]
        if "custom_params" in params:
            forced, stops = params["custom_params"]["sqreal_force"], params["stop_token_ids"]
            assert params["custom_params"]["sqreal_n_in"] == len(prompt)
        else:
            stops = [byte_tokenizer.END]
            forced = [*byte_tokenizer.encode(self.writes(body)), *stops]
        if self.faults.unforced:
            forced = [1] * params["max_new_tokens"]
        cached = min(self._match(prompt), len(prompt) - 1) // self.page_size * self.page_size
        self._live[rid] = asyncio.Event()
        said: list[int] = []
        finish: dict[str, Any] | None = None
        while finish is None:
            if self.token_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._live[rid].wait(), self.token_s)
            if self.aux_stands and is_aux(rid) and len(said) == len(forced) - 1:
                await self._live[rid].wait()
            if self._live[rid].is_set():
                finish = {"type": "abort", "message": "Abort in waiting queue"}
                self._count(num_aborted_requests=1)
            else:
                said.append(forced[len(said)])
                if len(said) >= params["max_new_tokens"]:
                    finish = {"type": "length", "length": len(said)}
                elif said[-1] in stops:
                    finish = {"type": "stop", "matched": said[-1]}
            if len(said) == 1:
                self._tree.append(prompt)
            if dies and len(said) > 1:
                self._die()
                raise ConnectionResetError
            if finish is not None:  # what the last token saw is in the tree when its answer goes out
                self._tree.append(prompt + said)
            if len(said) == 1 or finish is not None:
                meta = {
                    "id": rid,
                    "finish_reason": finish,
                    "prompt_tokens": len(prompt),
                    "cached_tokens": cached,
                    "completion_tokens": len(said),
                    "num_retractions": 0,
                }
                aborted = finish is not None and finish["type"] == "abort"
                # As SGLang answers what was aborted in the queue.
                if aborted and (not said or self.faults.retracts):
                    meta = {"id": rid, "finish_reason": finish, "completion_tokens": len(said)}
                    self._count(num_retracted_requests=min(len(said), 1))
                elif finish is not None:
                    self._count(
                        num_requests=1,
                        prompt_tokens=len(prompt),
                        cached_tokens=cached,
                        generation_tokens=len(said),
                    )
                fresh = said[1:] if self.incremental and len(said) > 1 else said
                text = {"text": byte_tokenizer.decode(fresh)} if self.tokenizer else {}
                await self._event(writer, {**text, "output_ids": fresh, "meta_info": meta})
        del self._live[rid]

    def _count(self, **more: int) -> None:
        for name, value in more.items():
            self._counted[name] = self._counted.get(name, 0) + value

    def _prometheus(self) -> str:
        """Counters as SGLang lists them: in parts by label, and none of which nothing was counted."""
        if self.metrics_text is not None:
            return self.metrics_text
        self._count(prompt_tokens=self.faults.miscounts * self.flushes)
        lines = [
            "# HELP sglang:max_total_num_tokens the pool",
            f"sglang:max_total_num_tokens {self.capacity}.0",
        ]
        for name, value in self._counted.items():
            for part, labels in (
                (value // 2, 'is_streaming="true"'),
                (value - value // 2, 'is_streaming="false"'),
            ):
                lines.append(f'sglang:{name}_total{{model_name="fake",{labels}}} {part}.0')
        return "\n".join(lines) + "\n"

    def _match(self, prompt: list[int]) -> int:
        best = 0
        for known in self._tree:
            shared = 0
            for left, right in zip(known, prompt, strict=False):
                if left != right:
                    break
                shared += 1
            best = max(best, shared)
        return best

    def _info(self) -> dict[str, Any]:
        return {
            "version": "0.5.23",
            "model_path": self.model,
            "tokenizer_path": self.model,
            "skip_tokenizer_init": not self.tokenizer,
            "device": "cpu",
            "page_size": self.page_size,
            "context_length": 8192,
            "chunked_prefill_size": 8192,
            "max_prefill_tokens": 16384,
            "schedule_conservativeness": 1.0,
            "swa_full_tokens_ratio": 0.8,
            "kv_cache_dtype": "auto",
            "dtype": "float32",
            "mem_fraction_static": None,
            "tp_size": 1,
            "load_format": "dummy",
            "enable_streaming_session": False,
            "internal_states": [
                {
                    "effective_max_running_requests_per_dp": 64,
                    "memory_usage": {"token_capacity": self.capacity, "token_capacity_swa": None},
                }
            ],
        }

    async def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        await self._chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()

    async def _send(self, writer: asyncio.StreamWriter, status: int, text: str) -> None:
        data = text.encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()


def wait_until(true: Any, limit_s: float = 10.0) -> None:
    """Poll until `true()`."""
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
