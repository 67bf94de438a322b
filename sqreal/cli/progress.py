# SPDX-License-Identifier: Apache-2.0
"""Progress that the commands show while a server starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Waiting = Callable[[str, float], None]


@contextmanager
def starting(quiet: bool) -> Iterator[Waiting | None]:
    """Show on a terminal that the server is starting, which takes SGLang half a minute."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with Console(file=sys.stderr).status("starting the server") as status:
        yield lambda what, seconds: status.update(f"{what}, {seconds:.0f} s")
