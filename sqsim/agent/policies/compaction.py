"""Compaction: at a threshold the agent writes a summary and goes on from that, as coding agents do (METHOD.md)."""

from __future__ import annotations

from sqsim.agent.policies.base import Policy, View


class Compaction(Policy):
    """Once more than `trigger_tokens` are resident, a summary takes the place of all that was read.

    Prefix, question and the newest turn stay. The summary is a model call on the whole context which the main step
    waits for; its cost is counted as an aux thread's, and every response that it replaces as evicted: what a later
    step still refers to may or may not stand in the summary, so `evicted_then_used` is the most that can be lost.
    """

    name = "compaction"

    def __init__(self, trigger_tokens: int = 32768, summary_tokens: int = 1000) -> None:
        self._trigger = trigger_tokens
        self._summary = summary_tokens

    def summarise(self, view: View) -> int:
        worth = view.context_tokens > self._trigger and any(cursor.read for cursor in view.cursors)
        return self._summary if worth else 0
