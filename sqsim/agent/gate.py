"""Agents at a policy's gate: lets them through as the gate says, and counts what pausing cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sqsim.policies.base import Gate


class Signal(Protocol):
    """Something that is waited for and comes once: asyncio.Event has these two methods."""

    def set(self) -> None:
        """It has come."""

    def wait(self) -> Awaitable[object]:
        """Wait until it has come."""


class GateKeeper:
    """Who may not go on waits here, in the time of `now` (seconds); `signal` makes what is waited for."""

    def __init__(self, gate: Gate, now: Callable[[], float], signal: Callable[[], Signal]) -> None:
        self.pauses, self.paused_s = 0, 0.0
        self._gate, self._now, self._signal = gate, now, signal
        self._waiting: dict[str, Signal] = {}

    def may_pass(self, name: str, tokens: int, *, may_pause: bool) -> bool:
        """Whether an agent goes on from this boundary; else it must `wait`."""
        passed = self._gate.ask(name, tokens, may_pause=may_pause)
        if not passed:
            self._waiting[name] = self._signal()
        self._resume()
        return passed

    async def wait(self, name: str) -> None:
        """Until there is room for a paused agent."""
        begin_s = self._now()
        self.pauses += 1
        signal = self._waiting.get(name)
        if signal is not None:
            await signal.wait()
        self.paused_s += self._now() - begin_s

    def leave(self, name: str) -> None:
        """An agent has ended."""
        self._gate.leave(name)
        self._resume()

    def _resume(self) -> None:
        for name in self._gate.resume():
            self._waiting.pop(name).set()
