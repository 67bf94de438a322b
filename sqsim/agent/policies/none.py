"""Keep everything: the uncompressed baseline."""

from __future__ import annotations

from sqsim.agent.policies.base import Policy


class NoEviction(Policy):
    """Never evicts, never spawns."""

    name = "none"
