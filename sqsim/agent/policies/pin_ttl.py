"""TTL pinning between turns (Continuum, arXiv 2511.02230): KV waits a while for its agent, whatever the pressure."""

from __future__ import annotations

from sqsim.agent.policies.base import Policy


class PinTtl(Policy):
    """A session that has ended a turn is not released for `ttl_s` seconds; behind that, least recently used first.

    It evicts nothing. Its harm is to others: requests wait or are retracted while what they need is pinned.
    """

    name = "pin_ttl"

    def __init__(self, ttl_s: float = 10.0) -> None:
        self.hold_s = ttl_s
