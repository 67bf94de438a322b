# SPDX-License-Identifier: Apache-2.0
"""LiteLLM callback: writes each model call of a LiteLLM proxy as a line of a request log for `sqsim trace import`.

Copy this file next to the proxy's config.yaml, name it there, and name the log in the environment:

    litellm_settings:
      callbacks: litellm_callback.recorder

    SQREAL_LITELLM_LOG=requests.jsonl litellm --config config.yaml

A line holds messages, tool definitions, response, token counts and times. Without SQREAL_LITELLM_LOG nothing is written. A line
that cannot be written is counted and logged; the call goes on. Lines hold all that was said: keep the file private.
The fields are those of StandardLoggingPayload (docs.litellm.ai/docs/proxy/logging_spec); tested with LiteLLM 1.110.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

LOG = "SQREAL_LITELLM_LOG"

_log = logging.getLogger("sqreal.litellm")


def line_of(kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Make the line of a call from what LiteLLM gives its callbacks; None for calls without messages."""
    payload = kwargs.get("standard_logging_object") or {}
    if not isinstance(payload.get("messages"), list):
        return None  # embeddings, images, or a proxy that is told to redact messages
    parameters = payload.get("model_parameters") or {}
    response = payload.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    counted = {
        "prompt_tokens": payload.get("prompt_tokens"),
        "completion_tokens": payload.get("completion_tokens"),
    }
    return {
        "request_id": payload.get("id"),
        "session_id": _session(kwargs, parameters),
        "startTime": payload.get("startTime"),
        "completionStartTime": payload.get("completionStartTime"),
        "endTime": payload.get("endTime"),
        "model": payload.get("model"),
        "status": payload.get("status"),
        "messages": payload["messages"],
        "tools": parameters.get("tools") or (kwargs.get("optional_params") or {}).get("tools"),
        "response": response if isinstance(response, dict) else None,
        "usage": usage or counted,
    }


def _session(kwargs: dict[str, Any], parameters: dict[str, Any]) -> str | None:
    """Find the session that the client named; the trace id that LiteLLM makes for each call is none."""
    within = kwargs.get("litellm_params") or {}
    metadata = within.get("metadata") or {}
    named = (
        metadata.get("session_id"),
        within.get("litellm_session_id"),
        kwargs.get("litellm_session_id"),
        parameters.get("litellm_session_id"),
    )
    return next((each for each in named if isinstance(each, str) and each), None)


class Recorder(CustomLogger):  # type: ignore[misc]  # LiteLLM is not installed where this is checked
    """Callback that appends lines to a file; several processes may append to one."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__()
        self.path = path or os.environ.get(LOG)
        self.lost = 0
        self._lock = threading.Lock()

    def write(self, kwargs: dict[str, Any]) -> None:
        """Append the line of a call, in one write, so that lines of several processes do not mix."""
        if not self.path:
            return
        try:
            line = line_of(kwargs)
            if line is None:
                return
            data = json.dumps(line, default=str, separators=(",", ":")).encode() + b"\n"
            with self._lock:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    written = os.write(file, data)
                    if written < len(
                        data
                    ):  # the disk is full: end the torn line, so that the next one is whole
                        os.write(file, b"\n")
                        raise OSError(f"only {written} of {len(data)} bytes were written")
                finally:
                    os.close(file)
        except Exception as error:  # noqa: BLE001 - a fault of the log must not end a client's call; it is counted and named
            self.lost += 1
            _log.warning("sqreal: %d calls were not logged to %s; the last: %s", self.lost, self.path, error)

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:  # noqa: ARG002
        self.write(kwargs)

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:  # noqa: ARG002
        self.write(kwargs)

    async def async_log_success_event(
        self,
        kwargs: Any,
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        await asyncio.to_thread(self.write, kwargs)

    async def async_log_failure_event(
        self,
        kwargs: Any,
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        await asyncio.to_thread(self.write, kwargs)


recorder = Recorder()
"""Callback that config.yaml names."""
