# SPDX-License-Identifier: Apache-2.0
"""Keep everything: the uncompressed baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sqsim.policies.base import Choice, Policy


class NoEviction(Policy):
    """Evict nothing, as servers do today."""

    name: Literal["none"] = Field(default="none", description="none")

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        return [Choice("none", "radix", {}, note="nothing is evicted: the base")]
