# SPDX-License-Identifier: Apache-2.0
"""Agents at a policy's gate: paused agents wait here, and the waiting is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sqsim.policies.base import Gate


class Signal(Protocol):
    """An event that is set once; asyncio.Event has these two methods."""

    def set(self) -> None:
        """Set the event."""

    def wait(self) -> Awaitable[object]:
        """Wait until the event is set."""


class GateKeeper:
    """A queue of paused agents. `now` gives the time in seconds, `signal` makes the event that a paused agent awaits."""

    def __init__(self, gate: Gate, now: Callable[[], float], signal: Callable[[], Signal]) -> None:
        self.pauses, self.paused_s = 0, 0.0
        self._gate, self._now, self._signal = gate, now, signal
        self._waiting: dict[str, Signal] = {}

    def may_pass(self, name: str, tokens: int, *, may_pause: bool) -> bool:
        """Ask the gate whether an agent may continue from this boundary; if False, the agent must `wait`."""
        passed = self._gate.ask(name, tokens, may_pause=may_pause)
        if not passed:
            self._waiting[name] = self._signal()
        self._resume()
        return passed

    async def wait(self, name: str) -> None:
        """Wait until there is room for a paused agent."""
        begin_s = self._now()
        self.pauses += 1
        signal = self._waiting.get(name)
        if signal is not None:
            await signal.wait()
        self.paused_s += self._now() - begin_s

    def leave(self, name: str) -> None:
        """Tell the gate that an agent has ended."""
        self._gate.leave(name)
        self._resume()

    def _resume(self) -> None:
        for name in self._gate.resume():
            self._waiting.pop(name).set()
