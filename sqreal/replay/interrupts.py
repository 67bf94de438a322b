"""Signals that end a run early, so that what was measured is kept."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancelling() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP cancel the current task, as asyncio itself does for SIGINT.

    Only where they would raise KeyboardInterrupt, as in our commands: raised inside the event loop it would tear down
    the run with all that it holds.
    """
    task = asyncio.current_task()
    assert task is not None, "called from a coroutine"
    loop = task.get_loop()
    taken = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    for number in taken:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)  # which leaves the system's default
            signal.signal(number, signal.default_int_handler)
