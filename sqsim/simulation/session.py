"""An agent's session on a simulated engine."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from sqsim.simulation.engine import Engine


class AgentSession:
    """The session of one agent, by its name on the engine."""

    def __init__(self, env: simpy.Environment, engine: Engine, name: str) -> None:
        self.name = name
        self._env, self._engine = env, engine
        self._holds = 0  # how many times it was held

    @property
    def has_kv(self) -> bool:
        """Whether it holds KV now."""
        return self._engine.has_session(self.name)

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Cut spans out of it in place."""
        self._engine.drop(self.name, spans)

    def close(self) -> None:
        """Free what it holds."""
        self._engine.close_session(self.name)

    def hold(self, seconds: float) -> None:
        """Keep its idle KV whatever the pressure, for so long; a later hold outlives an earlier one's end."""
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
