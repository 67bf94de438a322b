"""Agents at a policy's gate: who may not go on waits here in simulated time."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from sqsim.policies.base import Gate


class GateKeeper:
    """Lets agents through as the gate says, and counts what pausing cost."""

    def __init__(self, env: simpy.Environment, gate: Gate) -> None:
        self.pauses, self.paused_s = 0, 0.0
        self._env, self._gate = env, gate
        self._waiting: dict[str, simpy.Event] = {}

    def may_pass(self, name: str, tokens: int, *, may_pause: bool) -> bool:
        """Whether an agent goes on from this boundary; else it must `wait`."""
        passed = self._gate.ask(name, tokens, may_pause=may_pause)
        if not passed:
            self._waiting[name] = self._env.event()
        self._resume()
        return passed

    def wait(self, name: str) -> Generator[simpy.Event, object, None]:
        """Until there is room for a paused agent."""
        begin_s = self._env.now
        self.pauses += 1
        event = self._waiting.get(name)
        if event is not None:
            yield event
        self.paused_s += self._env.now - begin_s

    def leave(self, name: str) -> None:
        """An agent has ended."""
        self._gate.leave(name)
        self._resume()

    def _resume(self) -> None:
        for name in self._gate.resume():
            self._waiting.pop(name).succeed()
