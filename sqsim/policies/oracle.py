# SPDX-License-Identifier: Apache-2.0
"""Hindsight: evict every response right after its last use. A bound; no server can run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr

from sqsim.base.part import AfterEviction
from sqsim.policies.base import Choice, Policy, View
from sqsim.trace.references import last_uses
from sqsim.trace.schema import Task


class Oracle(Policy):
    """Evict a cursor at the first boundary t with last use < t. The only policy that reads references."""

    name: Literal["oracle"] = Field(default="oracle", description="oracle")
    after_eviction: AfterEviction = Field(default="in_place", description="in_place or reprefill")

    hindsight: ClassVar[bool] = True
    _last_use: dict[int, int] = PrivateAttr(default_factory=dict)

    @property
    def needs_references(self) -> bool:
        return True

    def with_hindsight(self, task: Task) -> Oracle:
        made = self.model_copy()
        made._last_use = last_uses(task)  # noqa: SLF001 - its own class
        return made

    def evict(self, view: View) -> Sequence[int]:
        return [c.cursor for c in view.cursors if c.read and self._last_use[c.cursor] < view.turn]

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        note = "hindsight: a bound, no policy to deploy"
        return [Choice("oracle / in_place", "session", {"after_eviction": "in_place"}, free=False, note=note)]
