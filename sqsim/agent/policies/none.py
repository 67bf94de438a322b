"""Keep everything: the uncompressed baseline."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.agent.policies.base import View


class NoEviction:
    """Never evicts, never spawns."""

    name = "none"

    def evict(self, view: View) -> Sequence[int]:  # noqa: ARG002 - the contract's signature
        return ()

    def spawn_aux(self, view: View) -> bool:  # noqa: ARG002 - the contract's signature
        return False
