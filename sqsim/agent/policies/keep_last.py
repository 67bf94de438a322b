"""Keep the last n tool responses, as agent frameworks do (METHOD.md, "Baselines")."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.agent.policies.base import Policy, View


class KeepLast(Policy):
    """Clears all but the `n` newest responses once the context holds more than `trigger_tokens`.

    The newest response counts among the n although it is not read yet. Known instance: Claude's
    `clear_tool_uses` (trigger 100K tokens, keep 3).
    """

    name = "keep_last"

    def __init__(self, n: int = 3, trigger_tokens: int = 0) -> None:
        self._n = n
        self._trigger = trigger_tokens

    def evict(self, view: View) -> Sequence[int]:
        if view.context_tokens <= self._trigger:
            return ()
        old = view.cursors[: max(0, len(view.cursors) - self._n)]
        return [cursor.cursor for cursor in old if cursor.read]
