# SPDX-License-Identifier: Apache-2.0
"""Port of a server that we start."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqreal.errors import PortInUseError

HOST = "127.0.0.1"

_FIRST = 20_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL = 32_768  # Linux's first ephemeral port, for systems without that file
_TRIES = 100


@contextmanager
def held_port(port: int | None) -> Iterator[int]:
    """Hold `port` while the block runs; None: any free one. A PortInUseError if it is in use.

    SGLang binds its port half a minute after this, when its model is loaded. A socket that is bound meanwhile, but does
    not listen, does not hinder a server that sets SO_REUSEADDR; a search for a free port without it (as by other
    servers here, and by SGLang for its internal ports) finds this one taken.
    """
    port = free_port() if port is None else port
    with _bound(port, reuse=True):
        yield port


def free_port() -> int:
    """Find a port that no process has bound; a PortInUseError where there is none.

    Until SGLang binds its port, its own processes open sockets on ports that the system draws, so a free one is taken
    from below those.
    """
    try:
        end = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        end = _USUAL_EPHEMERAL
    below = range(_FIRST, end) or range(1024, _FIRST)
    error: PortInUseError | None = None
    for candidate in random.SystemRandom().sample(below, min(_TRIES, len(below))):
        try:
            with _bound(candidate, reuse=False):
                return candidate
        except PortInUseError as refused:
            error = refused
    assert error is not None, "at least one was tried"
    raise error


@contextmanager
def _bound(port: int, *, reuse: bool) -> Iterator[None]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            sock.bind((HOST, port))
        except OSError as error:
            raise PortInUseError(
                f"port {port} cannot be used ({error.strerror}); choose another one with --port"
            ) from error
        yield
