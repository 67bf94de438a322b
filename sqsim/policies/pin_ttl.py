# SPDX-License-Identifier: Apache-2.0
"""TTL pinning between turns (Continuum, arXiv 2511.02230): the server keeps idle KV for a time, whatever the pressure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from sqsim.policies.base import Choice, Policy


class PinTtl(Policy):
    """Keep an idle session for `ttl_s` seconds after its turn; after that, release least recently used first.

    It evicts nothing. The cost falls on other requests, which wait or are retracted while slots are pinned.
    """

    name: Literal["pin_ttl"] = Field(default="pin_ttl", description="pin_ttl")
    # the bound is eleven days: a longer hold is a wrong unit, and few of them end the simulated clock's range
    ttl_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=10.0, description="seconds after a turn, 0 to 1e6"
    )

    @property
    def hold_s(self) -> float:
        return self.ttl_s

    @property
    def needs_sessions(self) -> bool:
        return True

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        return ()  # no server available today pins sessions for a time
