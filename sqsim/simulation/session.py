# SPDX-License-Identifier: Apache-2.0
"""An agent's session on a simulated engine."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from sqsim.simulation.engine import Engine


class AgentSession:
    """The session of one agent; `name` identifies it on the engine."""

    def __init__(self, env: simpy.Environment, engine: Engine, name: str) -> None:
        self.name = name
        self._env, self._engine = env, engine
        self._holds = 0  # calls of `hold` so far

    @property
    def has_kv(self) -> bool:
        """Whether the session holds KV now."""
        return self._engine.has_session(self.name)

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Clear spans of the session in place."""
        self._engine.drop(self.name, spans)

    def close(self) -> None:
        """Free the session's KV."""
        self._engine.close_session(self.name)

    def hold(self, seconds: float) -> None:
        """Pin the idle session's KV for `seconds`; a later hold stays in force when an earlier one ends."""
        engine = self._engine
        engine.pin(self.name, pinned=True)
        self._holds += 1
        number = self._holds

        def expire(_: simpy.Event) -> None:
            if self._holds == number:
                engine.pin(self.name, pinned=False)

        event = self._env.timeout(seconds)
        assert event.callbacks is not None
        event.callbacks.append(expire)
