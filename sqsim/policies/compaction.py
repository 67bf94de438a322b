"""Compaction: at a threshold the agent writes a summary and goes on from that, as coding agents do (METHOD.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from sqsim.base.part import Count, CountOrZero
from sqsim.policies.base import AuxOptions, Choice, Policy, View


class Compaction(Policy):
    """Once more than `trigger_tokens` are resident, a summary takes the place of all that was read.

    Prefix, question and the newest turn stay. The summary is a model call on the whole context which the main step
    waits for; its cost is counted as an aux thread's, and every response that it replaces as evicted: what a later
    step still refers to may or may not stand in the summary, so `evicted_then_used` is the most that can be lost.
    """

    name: Literal["compaction"] = Field(default="compaction", description="compaction")
    trigger_tokens: CountOrZero = Field(
        default=32768, description="it compacts once more tokens are resident, 0 or more"
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
        return ()  # what a summary keeps of what is needed later is not simulated
