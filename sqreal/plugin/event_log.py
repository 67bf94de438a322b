"""A log of events, one JSON object a line, in the order in which they happened.

What happens inside a scheduling round, or while a result is processed, belongs to that event: such details are gathered
and written with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqreal.plugin.hooks import PluginError

Details = dict[str, list[Any]]


def now() -> float:
    """Seconds of the machine's monotonic clock, the one that clients on the same machine read."""
    return round(time.monotonic(), 6)


class EventLog:
    """Writes events to a new file; each is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("x", buffering=1, encoding="utf-8")
        except FileExistsError as error:
            raise PluginError(f"step log {path} exists already; give each server a path of its own") from error
        except OSError as error:
            raise PluginError(f"step log {path} cannot be made: {error}") from error
        self._lines = 0
        self._open: list[Details] = []

    def close(self) -> None:
        """A server keeps its log open to its end; nothing waits to be written."""
        self._file.close()

    def write(self, event: str, **fields: Any) -> None:
        """Write one event; `n`, its line number from 0, is added."""
        line = {"n": self._lines, "ev": event, **fields}
        self._file.write(json.dumps(line, separators=(",", ":"), check_circular=False) + "\n")
        self._lines += 1

    @contextmanager
    def gather(self) -> Iterator[Details]:
        """Gather the details that come up inside the block; the innermost open block gets them."""
        details: Details = {}
        self._open.append(details)
        try:
            yield details
        finally:
            self._open.pop()

    def detail(self, kind: str, value: Any) -> None:
        """Add a detail to the event it belongs to, or write it as an event when it belongs to none."""
        if self._open:
            self._open[-1].setdefault(kind, []).append(value)
        else:
            self.write(kind, t=now(), v=value)
