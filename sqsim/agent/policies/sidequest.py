"""SideQuest (arXiv 2602.22603): every K turns an auxiliary thread names stale cursors (Algorithm 1)."""

from __future__ import annotations

from sqsim.agent.policies.base import Policy, View


class SideQuest(Policy):
    """Evicts by itself nothing: its aux threads name cursors, the turn loop clears them at the next boundary.

    The paper states no K for inference and trains with 4; literally, t = 0 spawns on a context without a
    cursor, which `spawn_without_cursors` allows.
    """

    name = "sidequest"

    def __init__(self, k: int = 4, *, spawn_without_cursors: bool = False) -> None:
        self._k = k
        self._always = spawn_without_cursors

    def spawn_aux(self, view: View) -> bool:
        return view.turn % self._k == 0 and (self._always or bool(view.cursors))
