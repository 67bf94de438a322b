# SPDX-License-Identifier: Apache-2.0
"""An interrupt while a command still imports its modules: one line and an exit code, as later on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

INTERRUPTED = 130
INTERRUPT_LINE = "interrupted; nothing was written"


def run_command(module: str) -> None:
    """Import the module of a command's `app` while an interrupt is answered, then run it to the end of the process."""
    with early_interrupt():
        app = import_module(module).app
        from sqsim.cli.output import run_to_exit  # noqa: PLC0415 - its imports are slow, too
    run_to_exit(app)


@contextmanager
def early_interrupt() -> Iterator[None]:
    """End the process at once on SIGINT, with one line on stderr; an ignored SIGINT stays ignored.

    A KeyboardInterrupt would not do: it surfaces anywhere inside an import, where others may swallow or reword it. There
    is nothing to clean up yet.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _end(*_: object) -> NoReturn:
    with suppress(OSError):  # stderr may be closed
        os.write(2, f"error: {INTERRUPT_LINE}\n".encode())
    os._exit(INTERRUPTED)
