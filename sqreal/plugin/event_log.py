# SPDX-License-Identifier: Apache-2.0
"""Event log: one JSON object a line, in the order of the events.

Details that arise inside a scheduling round, or while a result is processed, belong to that event and are written
with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sqreal.plugin.hooks import Hook, PluginError

Details = dict[str, list[Any]]


def now() -> float:
    """Return seconds of the machine's monotonic clock, which clients on the same machine read too."""
    return round(time.monotonic(), 6)


class EventLog:
    """Log that writes events to a new file once it is open; each is in the file when `write` returns.

    Hooks of an unopened log do nothing: some processes and ranks of a server schedule nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._lines = 0
        self._gathering: list[Details] = []

    def open(self) -> None:
        """Create the file; a PluginError when it exists or cannot be created."""
        try:
            self._file = self._path.open("x", buffering=1, encoding="utf-8")
        except FileExistsError as error:
            raise PluginError(
                f"step log {self._path} exists already; give each server a path of its own"
            ) from error
        except OSError as error:
            raise PluginError(f"step log {self._path} cannot be made: {error}") from error

    def hook(self, method: str, parameters: str, around: Callable[..., Any]) -> Hook:
        """Make a hook that acts only while the log is open."""

        def while_open(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return (original if self._file is None else partial(around, original))(*args, **kwargs)

        return Hook(method, parameters, while_open)

    def close(self) -> None:
        """Close the log; a server keeps it open to its end, and nothing is buffered."""
        if self._file is not None:
            self._file.close()

    def write(self, event: str, **fields: Any) -> None:
        """Write one event; `n`, its line number from 0, is added."""
        assert self._file is not None, "hooks of an unopened log do nothing"
        line = {"n": self._lines, "ev": event, **fields}
        self._file.write(json.dumps(line, separators=(",", ":"), check_circular=False) + "\n")
        self._lines += 1

    @contextmanager
    def gather(self) -> Iterator[Details]:
        """Gather the details that arise inside the block; the innermost open block gets them."""
        details: Details = {}
        self._gathering.append(details)
        try:
            yield details
        finally:
            self._gathering.pop()

    def detail(self, kind: str, value: Any) -> None:
        """Add a detail to its event, or write it as an event of its own when there is none."""
        if self._gathering:
            self._gathering[-1].setdefault(kind, []).append(value)
        else:
            self.write(kind, t=now(), v=value)
