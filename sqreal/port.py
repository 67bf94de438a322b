"""The port of a server that is started here."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from sqreal.errors import PortInUseError

HOST = "127.0.0.1"

_FIRST = 20_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL = 32_768  # where Linux begins, for systems that have no such file
_TRIES = 100


def free_port(port: int | None) -> int:
    """`port` if it can be bound, a PortInUseError if not; None: any port that can.

    SGLang binds its port half a minute after this, when its model is loaded. Until then its own processes open sockets
    on ports that the system draws, so a free one is taken from below those.
    """
    if port is not None:
        _bind(port)
        return port
    try:
        end = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        end = _USUAL_EPHEMERAL
    below = range(_FIRST, end) or range(1024, _FIRST)
    error: PortInUseError | None = None
    for candidate in random.SystemRandom().sample(below, min(_TRIES, len(below))):
        try:
            _bind(candidate)
        except PortInUseError as refused:
            error = refused
        else:
            return candidate
    assert error is not None, "at least one was tried"
    raise error


def _bind(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortInUseError(
                f"port {port} cannot be used ({error.strerror}); choose another one with --port"
            ) from error
