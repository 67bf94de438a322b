# SPDX-License-Identifier: Apache-2.0
"""Signals that end a run early and keep its measurements."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancelling() -> Iterator[None]:
    """Cancel the current task on SIGTERM and SIGHUP while the block runs, as asyncio does on SIGINT.

    Only where they would raise KeyboardInterrupt, as in our commands: raised inside the event loop, it would tear down
    the run and lose its measurements.
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
            loop.remove_signal_handler(number)  # the system's default then applies
            signal.signal(number, signal.default_int_handler)
