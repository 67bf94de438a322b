# SPDX-License-Identifier: Apache-2.0
"""Keep the last n tool responses, as agent frameworks do (METHOD.md, "Baselines")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sqsim.base.part import AfterEviction, CountOrZero
from sqsim.policies.base import Choice, Policy, View


class KeepLast(Policy):
    """Evict all but the `n` newest responses once the context holds more than `trigger_tokens`.

    The newest response counts as one of the n although no step has read it yet. Known instance: Claude's
    `clear_tool_uses` (trigger 100K tokens, keep 3).
    """

    name: Literal["keep_last"] = Field(default="keep_last", description="keep_last")
    n: CountOrZero = Field(default=3, description="responses that stay, 0 or more")
    trigger_tokens: CountOrZero = Field(
        default=0, description="resident tokens above which it evicts, 0 or more"
    )
    after_eviction: AfterEviction = Field(default="reprefill", description="in_place or reprefill")

    def evict(self, view: View) -> Sequence[int]:
        if view.context_tokens <= self.trigger_tokens:
            return ()
        old = view.cursors[: max(0, len(view.cursors) - self.n)]
        return [cursor.cursor for cursor in old if cursor.read]

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        note = "evicts without asking: see what was evicted and needed later"
        return [Choice("keep_last 3", "radix", {"n": 3, "after_eviction": "reprefill"}, note=note)]
