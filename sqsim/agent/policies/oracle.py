"""Hindsight: evict every response right after its last use. A bound, not a policy that could be deployed."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.agent.policies.base import Policy, View
from sqsim.trace.references import last_uses
from sqsim.trace.schema import Task


class Oracle(Policy):
    """Clears a cursor at the first boundary t with last use < t. The only policy that reads references."""

    name = "oracle"

    def __init__(self, task: Task) -> None:
        self._last_use = last_uses(task)

    def evict(self, view: View) -> Sequence[int]:
        return [c.cursor for c in view.cursors if c.read and self._last_use[c.cursor] < view.turn]
