# SPDX-License-Identifier: Apache-2.0
"""Pausing agents under KV pressure (as ThunderAgent and CONCUR do): fewer agents at once, each with its KV.

An agent framework knows the sizes of its agents' contexts. When the contexts of all active agents do not fit, the next
agent at a boundary pauses there and gives up its KV. When there is room, paused agents go on, first paused first. A
resumed agent computes its context again and its task takes longer: the run counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from sqsim.base.part import Positive, conflict
from sqsim.policies.base import Choice, Policy


class MemoryGate:
    """A gate that counts the contexts of the active agents, in tokens, and keeps the paused ones.

    An agent pauses when the active contexts and its own exceed `above_tokens`, and goes on when they are at most
    `below_tokens`. One agent always goes on, so a run always ends.
    """

    def __init__(self, above_tokens: float, below_tokens: float) -> None:
        self._above, self._below = above_tokens, below_tokens
        self._active: dict[str, int] = {}
        self._paused: dict[str, int] = {}  # in the order in which they paused
        self._total = 0

    def ask(self, name: str, tokens: int, *, may_pause: bool = True) -> bool:
        """Let an agent with a context of `tokens` go on from its boundary (True), or pause it now (False)."""
        fresh = name not in self._active
        self._total -= self._active.pop(name, 0)
        crowded = self._total + tokens > self._above or (fresh and bool(self._paused))
        if may_pause and self._active and crowded:
            self._paused[name] = tokens
            return False
        self._enter(name, tokens)
        return True

    def leave(self, name: str) -> None:
        """Forget an agent that has ended."""
        self._total -= self._active.pop(name, 0)

    def resume(self) -> list[str]:
        """Let paused agents go on, first paused first; stop at the first agent that does not fit."""
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


class Pause(Policy):
    """Pause an agent at a boundary when the active contexts do not fit. Evicts nothing."""

    name: Literal["pause"] = Field(default="pause", description="pause")
    above: Positive = Field(
        default=0.9, description="active contexts over KV capacity, above 0: beyond it an agent pauses"
    )
    below: Positive = Field(
        default=0.8, description="active contexts over KV capacity, above 0: up to it a paused agent goes on"
    )

    @model_validator(mode="after")
    def _resumes_below(self) -> Pause:
        if self.below > self.above:
            raise conflict(
                "below",
                f"{self.below} is above policy.above {self.above}",
                f"set policy.below to at most {self.above}",
            )
        return self

    def gate(self, capacity_tokens: int) -> MemoryGate:
        return MemoryGate(self.above * capacity_tokens, self.below * capacity_tokens)

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        note = "agents take turns at the memory; the framework must know KV capacity"
        return [Choice("pause", "radix", {}, note=note)]
