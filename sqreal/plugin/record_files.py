# SPDX-License-Identifier: Apache-2.0
"""Append-only files of the recorder, written by a thread of its own that never holds up the server.

The scheduler puts events into a queue. The thread writes them as JSON lines, all that wait in one system call, so a
process that is killed leaves whole lines and at most one torn last one. When the queue is full, or the disk refuses,
events are lost; a line `lost` says how many and why, as soon as one can be written.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from sqreal.plugin.event_log import now
from sqreal.plugin.hooks import PluginError
from sqreal.plugin.record_prompts import Prompts

SCHEMA = "sqreal_log/1"
FILE_BYTES = 64_000_000
"""A file that has reached this size is followed by another."""
QUEUE_TOKENS = 8_000_000
"""Tokens (8 bytes each) that may wait to be written; an event counts as 64 of them besides its own."""
_EVENT = 64
_AT_ONCE = 1 << 20  # bytes a write
_RETRY_S = 5.0  # after a disk has refused
_SYNC_S = 5.0  # a machine that stops loses at most this

_log = logging.getLogger("sqreal.plugin")


class RecordFiles:
    """Files `00000.jsonl`, `00001.jsonl`, ... of one server in a directory that holds nothing else.

    `most_bytes`: size of all files together; beyond it the oldest is removed, and the next file's first line says so.
    """

    def __init__(
        self,
        directory: Path,
        most_bytes: int,
        *,
        file_bytes: int = FILE_BYTES,
        queue_tokens: int = QUEUE_TOKENS,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._directory, self._most = directory, most_bytes
        self._file_bytes, self._queue_tokens, self._retry_s = min(file_bytes, most_bytes), queue_tokens, retry_s
        self._name = secrets.token_hex(8)
        self._about: dict[str, Any] = {}
        self._queue: deque[tuple[dict[str, Any], int]] = deque()
        self._waiting = 0  # tokens in the queue
        self._wakes = threading.Condition()
        self._lost: dict[str, int] = {}
        self._file: BinaryIO | None = None
        self._size = self._number = self._removed = 0
        self._prompts = Prompts()
        self._closing = False
        self._refused_s, self._why = -1e9, ""
        self._thread: threading.Thread | None = None

    def open(self, **about: Any) -> None:
        """Make the directory and its first file, whose first line holds `about`; a PluginError where it cannot."""
        self._about = about
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if any(self._directory.iterdir()):
                raise PluginError(
                    f"recording {self._directory} exists and is not empty; give each server a directory of its own"
                )
            self._next_file()
        except OSError as error:
            raise PluginError(f"recording {self._directory} cannot be made: {error}") from error
        self._thread = threading.Thread(target=self._run, name="sqreal-recorder", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def put(self, event: dict[str, Any]) -> None:
        """Queue an event; token ids in it are arrays that nobody changes. Never waits for the disk, never fails."""
        tokens = _EVENT + sum(len(value) for value in event.values() if isinstance(value, array))
        with self._wakes:
            if self._waiting + tokens > self._queue_tokens and self._queue:
                self._lose("the queue was full")
                return
            self._waiting += tokens
            self._queue.append((event, tokens))
            self._wakes.notify()

    def lose(self, why: str) -> None:
        """Count an event that could not be recorded."""
        with self._wakes:
            self._lose(why)
            self._wakes.notify()

    def close(self) -> None:
        """Write what waits, and close; a server that is killed does without."""
        if self._thread is not None:
            with self._wakes:
                self._closing = True
                self._wakes.notify()
            self._thread.join()
            self._thread = None

    def _lose(self, why: str, events: int = 1) -> None:
        if why not in self._lost:
            _log.warning("sqreal recorder: %s; events are lost and counted in the recording", why)
        self._lost[why] = self._lost.get(why, 0) + events

    # The thread.

    def _run(self) -> None:
        synced_s = time.monotonic()
        while True:
            with self._wakes:
                if not self._queue and not self._lost and not self._closing:
                    self._wakes.wait(_SYNC_S)
                events = self._taken()
                done = self._closing and not self._queue
            self._write(events)
            if time.monotonic() - synced_s > _SYNC_S:
                synced_s = time.monotonic()
                self._sync()
            if done:
                break
            if self._lost and not self._queue:
                time.sleep(self._retry_s / 10)  # the disk refuses: look again later
        self._sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _taken(self) -> list[dict[str, Any]]:
        events, tokens = [], 0
        while self._queue and tokens < _AT_ONCE // 8:
            event, size = self._queue.popleft()
            events.append(event)
            tokens += size
        self._waiting -= tokens
        return events

    def _write(self, events: list[dict[str, Any]]) -> None:
        """Write events, or count them as lost."""
        try:
            if self._file is None:
                if time.monotonic() - self._refused_s < self._retry_s:
                    self._refuse(len(events), None)
                    return
                self._next_file()
            with self._wakes:
                lost, self._lost = self._lost, {}
            try:
                for why, count in lost.items():
                    self._append({"ev": "lost", "t": now(), "events": count, "why": why})
            except OSError:
                with self._wakes:
                    self._lost = {why: count + self._lost.get(why, 0) for why, count in lost.items()} | {
                        why: count for why, count in self._lost.items() if why not in lost
                    }
                raise
            lines = b"".join(self._line(self._shortened(event)) for event in events)
            self._append_bytes(lines)
            if self._size >= self._file_bytes:
                self._next_file()
        except OSError as error:
            self._refuse(len(events), error)
        except Exception as error:  # noqa: BLE001 - a fault of the recorder must not end the server; it is counted and named
            self._refuse(len(events), error)

    def _refuse(self, events: int, error: Exception | None) -> None:
        with self._wakes:
            if error is not None:
                self._refused_s = time.monotonic()
                self._why = f"it could not be written ({type(error).__name__}: {error})"
            if events:
                self._lose(self._why, events)
        if error is not None and self._file is not None:  # its last line may be torn: go on in another file
            try:
                self._file.close()
            except OSError as also:
                _log.warning("sqreal recorder: %s", also)
            self._file = None

    def _shortened(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["ev"] == "arrive":
            prompt = event.pop("prompt")
            rest = self._prompts.rest(event["rid"], prompt)
            more = {} if rest.after is None else {"after": rest.after, "keep": rest.keep}
            return {**event, "n": len(prompt), **more, "ids": rest.ids}
        if event["ev"] == "end":
            output = event.pop("output")
            self._prompts.ended(event["rid"], output)
            return {**event, "ids": output.tolist()}
        return event

    def _next_file(self) -> None:
        """Begin a file, readable without those before it."""
        if self._file is not None:
            self._sync()
            self._file.close()
            self._file = None
        kept = sorted(self._directory.glob("*.jsonl"))
        while kept and sum(path.stat().st_size for path in kept) + self._file_bytes > self._most:
            kept.pop(0).unlink()
            self._removed += 1
        self._file = (self._directory / f"{self._number:05}.jsonl").open("xb", buffering=0)
        head = {
            "ev": "start",
            "schema": SCHEMA,
            "log": self._name,
            "file": self._number,
            "removed": self._removed,
        }
        self._number += 1
        self._size = 0
        self._prompts = Prompts()
        self._append({**head, "t": now(), "wall": round(time.time(), 6), **self._about})

    @staticmethod
    def _line(event: dict[str, Any]) -> bytes:
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"

    def _append(self, event: dict[str, Any]) -> None:
        self._append_bytes(self._line(event))

    def _append_bytes(self, data: bytes) -> None:
        assert self._file is not None, "a file is open while events are written"
        view = memoryview(data)
        while view:
            written = self._file.write(view) or 0
            self._size += written
            view = view[written:]

    def _sync(self) -> None:
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                _log.warning("sqreal recorder: %s", error)
