"""Pausing agents under KV pressure (as ThunderAgent and CONCUR do): fewer agents at once, each with its KV.

An agent framework knows how large its agents' contexts are. Where all that are at work do not fit, the one that comes to
a boundary pauses there and gives up its KV; it goes on, first paused first, when there is room. It computes its context
again then, and its task takes longer: the run counts both.
"""

from __future__ import annotations

from sqsim.agent.policies.base import Policy


class Pause(Policy):
    """Evicts nothing; who may go on is the gate's to say."""

    name = "pause"


class Gate:
    """The contexts of the agents at work, in tokens, and who waits for room.

    An agent pauses where the others' contexts and its own are more than `above_tokens`, and goes on where they are
    at most `below_tokens`. One agent always goes on, so a run always ends.
    """

    def __init__(self, above_tokens: float, below_tokens: float) -> None:
        self._above, self._below = above_tokens, below_tokens
        self._active: dict[str, int] = {}
        self._paused: dict[str, int] = {}  # in the order in which they paused
        self._total = 0

    def ask(self, name: str, tokens: int, *, may_pause: bool = True) -> bool:
        """An agent with a context of so many tokens is at a boundary: may it go on? Else it is paused now."""
        fresh = name not in self._active
        self._total -= self._active.pop(name, 0)
        crowded = self._total + tokens > self._above or (fresh and bool(self._paused))
        if may_pause and self._active and crowded:
            self._paused[name] = tokens
            return False
        self._enter(name, tokens)
        return True

    def leave(self, name: str) -> None:
        """An agent has ended."""
        self._total -= self._active.pop(name, 0)

    def resume(self) -> list[str]:
        """Who goes on now, first paused first; those behind one that does not fit wait with it."""
        found = []
        for name, tokens in list(self._paused.items()):
            if self._active and self._total + tokens > self._below:
                break
            del self._paused[name]
            self._enter(name, tokens)
            found.append(name)
        return found

    def _enter(self, name: str, tokens: int) -> None:
        self._active[name] = tokens
        self._total += tokens
