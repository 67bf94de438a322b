# SPDX-License-Identifier: Apache-2.0
"""HTTP client of a running SGLang server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from sqreal.errors import ServerError, ServerTimeoutError
from sqsim.errors import RunError

Failure = Callable[[str], ServerError]
"""Make the error for an answer that broke off; it may take seconds to find out whether the server has died."""

SILENCE_S = 600.0
"""Seconds without an event (of which an answer has two) after which a request counts as having lost its server."""
_STREAM_INTERVAL = 1 << 30  # tokens between two events: the first token comes at once, the others with the last
_CONNECT_S = 30.0
_ENOUGH = 1 << 30  # characters of text that a session may hold; SGLang requires the number and ignores it


class RefusedError(RunError):
    """The server refused this request; it serves others."""


@dataclass(frozen=True, slots=True)
class Call:
    """Request to the server: the tokens to send, and the forced output.

    `session`: the streaming session whose next turn it is; `held`: tokens that the session already has, which are not
    sent. `asks`: further request options (sqreal/plugin/request_options.py).
    """

    rid: str
    input_ids: list[int]
    forced: list[int] | None  # the last one ends the request; None: the model writes freely
    max_new_tokens: int  # as an agent would declare it
    session: str | None = None
    held: int = 0
    asks: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False

    def body(self) -> dict[str, Any]:
        """JSON object that /generate takes."""
        sampling: dict[str, Any] = {
            "temperature": 0.0,
            "max_new_tokens": self.max_new_tokens,
            "stream_interval": _STREAM_INTERVAL,
        }
        custom = dict(self.asks)
        if self.forced is not None:
            sampling["stop_token_ids"] = [self.forced[-1]]
            custom |= {"sqreal_force": self.forced, "sqreal_n_in": self.held + len(self.input_ids)}
        if custom:
            sampling["custom_params"] = custom
        if self.ignore_eos:
            sampling["ignore_eos"] = True
        body = {"rid": self.rid, "input_ids": self.input_ids, "stream": True, "sampling_params": sampling}
        return body if self.session is None else {**body, "session_params": {"id": self.session}}


@dataclass(frozen=True, slots=True)
class Generation:
    """Answer to a request. Times are seconds of this machine's monotonic clock; `meta` is SGLang's meta_info at its end.

    `first_meta` is that of the first event: one that was retracted and then aborted in the queue reports at its end neither
    its prompt's tokens nor the cached ones (tokenizer_manager.py, _handle_abort_req).
    """

    submit_s: float
    first_token_s: float | None  # None: ended (aborted) before a token came
    end_s: float
    output_ids: list[int]
    meta: Mapping[str, Any]
    text: str | None = None  # None: the server has no tokenizer
    first_meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finish(self) -> str:
        """How it ended: stop, length or abort."""
        return str(self.meta["finish_reason"]["type"])


class Client:
    """Client of one server. Every call ends: with an answer, a RefusedError or a ServerError."""

    def __init__(self, url: str, failure: Failure | None = None, *, silence_s: float = SILENCE_S) -> None:
        self.url = url
        self._silence_s = silence_s
        self._failure = failure if failure is not None else lambda problem: ServerError(f"{url}: {problem}")
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(silence_s, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy and its delays must have no part in this
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def generate(self, call: Call, started: Callable[[float], None] | None = None) -> Generation:
        """Send a request and wait for its end; `started` is called when its first token is here, with the time."""
        submit_s = time.monotonic()
        first_s: float | None = None
        output: list[int] = []
        text: str | None = None
        first_meta: dict[str, Any] = {}
        try:
            async with self._http.stream("POST", "/generate", json=call.body()) as response:
                if response.is_error:
                    await response.aread()
                    raise RefusedError(
                        f"request {call.rid}: HTTP {response.status_code}: {_reason(response.text)}"
                    )
                async for line in response.aiter_lines():
                    event = _event(line)
                    if event is None:
                        continue
                    if "error" in event:
                        raise RefusedError(f"request {call.rid}: {_reason(line.removeprefix('data:'))}")
                    now_s, meta = time.monotonic(), event["meta_info"]
                    first_meta = first_meta or meta
                    new = event.get("output_ids") or []
                    whole = len(new) == meta.get("completion_tokens", 0)  # else, as with
                    # --incremental-streaming-output, the new part
                    output = new if whole else output + new
                    if "text" in event:
                        text = event["text"] if whole else (text or "") + event["text"]
                    if first_s is None and output:
                        first_s = now_s
                        if started is not None:
                            started(now_s)
                    if meta["finish_reason"] is not None:
                        return Generation(submit_s, first_s, now_s, output, meta, text, first_meta)
        except httpx.TimeoutException as error:
            raise ServerTimeoutError(
                f"{self.url}: request {call.rid}: no event for {self._silence_s:g} s ({type(error).__name__})"
            ) from error
        except (httpx.TransportError, json.JSONDecodeError, KeyError) as error:
            raise await self._broken(f"the answer to request {call.rid} broke off ({error!r})") from error
        raise await self._broken(f"the answer to request {call.rid} ended before the request did")

    async def abort(self, rid: str) -> None:
        """End a queued or running request; the server ignores ids that it does not know (yet)."""
        await self._ask("POST", "/abort_request", json={"rid": rid})

    async def open_session(self, session: str) -> None:
        """Open a streaming session under this id."""
        body = {"capacity_of_str_len": _ENOUGH, "session_id": session, "streaming": True}
        await self._ask("POST", "/open_session", json=body)

    async def close_session(self, session: str) -> None:
        """Free a session's KV; during a turn, at the turn's end."""
        await self._ask("POST", "/close_session", json={"session_id": session})

    async def flush_cache(self) -> None:
        """Empty the radix tree. A ServerError where the server is still busy after a while."""
        await self._ask("POST", "/flush_cache", params={"timeout": 30})

    def kv_usage(self) -> float:
        """Return the share (0 to 1) of the fuller pool's KV slots that are neither free nor evictable (/v1/loads).

        The call blocks until the server has answered, and no other agent continues meanwhile: a policy decides at once at a
        boundary. A server answers between two of its scheduler's rounds.
        """
        try:
            answer = httpx.get(f"{self.url}/v1/loads", timeout=self._silence_s, trust_env=False)
            answer.raise_for_status()
            return float(answer.json()["loads"][0]["token_usage"])
        except httpx.TimeoutException as error:
            raise ServerTimeoutError(f"{self.url}/v1/loads: no answer in {self._silence_s:g} s") from error
        except httpx.TransportError as error:
            raise self._failure(f"GET /v1/loads failed ({error!r})") from error
        except (httpx.HTTPStatusError, ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{self.url}/v1/loads: is not an SGLang answer ({error!r})") from error

    async def metrics(self) -> dict[str, float]:
        """Read the server's counters and gauges (/metrics), each summed over its labels; empty where there are none."""
        try:
            answer = await self._http.get("/metrics")
        except httpx.TransportError as error:
            raise await self._broken(f"GET /metrics failed ({error!r})") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            return {}
        found: dict[str, float] = {}
        try:
            answer.raise_for_status()
            for line in answer.text.splitlines():
                if line and not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    name = name.partition("{")[0]
                    found[name] = found.get(name, 0.0) + float(value)
        except (httpx.HTTPStatusError, ValueError) as error:
            raise ServerError(f"{self.url}/metrics: is not an SGLang answer ({error})") from error
        return found

    async def _ask(self, method: str, path: str, **content: Any) -> None:
        try:
            answer = await self._http.request(method, path, **content)
        except httpx.TimeoutException as error:
            raise ServerTimeoutError(f"{self.url}{path}: no answer in {self._silence_s:g} s") from error
        except httpx.TransportError as error:
            raise await self._broken(f"{method} {path} failed ({error!r})") from error
        if answer.is_error:
            raise ServerError(f"{self.url}{path}: HTTP {answer.status_code}: {_reason(answer.text)}")

    async def _broken(self, problem: str) -> ServerError:
        return await asyncio.to_thread(self._failure, problem)


def _event(line: str) -> dict[str, Any] | None:
    """Read a line of a server-sent event stream; None for a line without data."""
    if not line.startswith("data:") or line == "data: [DONE]":
        return None
    event: dict[str, Any] = json.loads(line.removeprefix("data:"))
    return event


def _reason(text: str) -> str:
    """Return the message of an error answer, on one line."""
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    while isinstance(content, dict):
        content = content.get("error", content.get("message", str(content)))
    return " ".join(str(content).split())[:500]
