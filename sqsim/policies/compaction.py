# SPDX-License-Identifier: Apache-2.0
"""Compaction: at a threshold the agent writes a summary and continues from it, as coding agents do (METHOD.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from sqsim.base.part import Count, CountOrZero
from sqsim.policies.base import AuxOptions, Choice, Policy, View


class Compaction(Policy):
    """Replace all that was read by a summary once more than `trigger_tokens` are resident.

    Prefix, question and the newest turn stay. The summary is a model call on the whole context, and the main step waits
    for it. Its cost counts as an aux thread's, and every response that it replaces counts as evicted. The summary may or
    may not contain what a later step refers to, so `evicted_then_used` is an upper bound of the loss.
    """

    name: Literal["compaction"] = Field(default="compaction", description="compaction")
    trigger_tokens: CountOrZero = Field(
        default=32768, description="resident tokens above which it compacts, 0 or more"
    )
    summary_tokens: Count = Field(default=1000, description="tokens of a summary, at least 1")

    assumed: ClassVar[tuple[str, ...]] = ("summary_tokens",)

    def summarise(self, view: View) -> int:
        worth = view.context_tokens > self.trigger_tokens and any(cursor.read for cursor in view.cursors)
        return self.summary_tokens if worth else 0

    @property
    def aux(self) -> AuxOptions:
        return AuxOptions(self.summary_tokens)

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        return ()  # the simulation does not know which needed facts a summary keeps
