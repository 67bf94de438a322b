# SPDX-License-Identifier: Apache-2.0
"""Errors of the real side; each is one of sqsim's errors, with its exit code.

InputError (exit 2)
└── ModelPathError       the path holds no model, or none that can be served
RunError (exit 1)
├── InstallError         SGLang, or something it needs, is missing, broken or of another version
├── DeviceError          the machine lacks the requested device
└── ServerError          a server did not do as asked
    ├── PortInUseError
    ├── ServerStartError     it came up, but not as asked (the plugin is not in it)
    ├── ServerDiedError      it ended by itself; the message ends with its last log lines
    ├── ServerTimeoutError   it did not answer in time
    └── UnreachableError     nothing that speaks SGLang's HTTP answers at that URL
"""

from __future__ import annotations

from sqsim.errors import InputError, RunError


class ModelPathError(InputError):
    """The scenario's path holds no model that can be served."""


class InstallError(RunError):
    """SGLang is not installed as this version of sqreal needs it; the message names the command that fixes it."""


class DeviceError(RunError):
    """The machine lacks the requested device."""


class ServerError(RunError):
    """A server did not do as asked."""


class PortInUseError(ServerError):
    """Something else listens on that port."""


class ServerStartError(ServerError):
    """The server came up, but not as it was asked to."""


class ServerDiedError(ServerError):
    """The server ended by itself. `log_tail` holds its last log lines, oldest first."""

    def __init__(self, problem: str, log_tail: tuple[str, ...] = ()) -> None:
        self.log_tail = log_tail
        lines = [f"  | {line}" for line in log_tail] or ["  | (its log is empty)"]
        super().__init__("\n".join([f"{problem}; its last log lines:", *lines]))


class ServerTimeoutError(ServerError):
    """The server did not answer in time."""


class UnreachableError(ServerError):
    """Nothing that speaks SGLang's HTTP answers at that URL."""
