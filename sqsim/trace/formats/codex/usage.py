# SPDX-License-Identifier: Apache-2.0
"""Read a rollout's token counts: each `token_count` event with new counts is one model call's."""

from __future__ import annotations

from typing import NamedTuple

from sqsim.trace.formats.base import Node


class Usage(NamedTuple):
    """Tokens of a call: prompt (cached part included), output (reasoning included), and the reasoning part.

    `total`: prompt and output of the thread so far, which tell a call from its copies.
    """

    prompt: int
    output: int
    reasoning: int | None
    total: tuple[int, int]


class Counter:
    """Reader of `token_count` events; events that repeat the thread's total report no new call."""

    def __init__(self) -> None:
        self._total = (0, 0)

    def read(self, event: Node) -> Usage | None:
        """Read the usage of a new call; None for an event about rate limits only, or a repeated one."""
        if not isinstance(event.get("info"), dict):
            return None
        info = event.node("info")
        before = self._total
        if isinstance(info.get("total_token_usage"), dict):
            self._total = _sizes(info.node("total_token_usage"))
            if self._total == before:
                return None
        if isinstance(info.get("last_token_usage"), dict):
            last = info.node("last_token_usage")
            prompt, output = _sizes(last)
            reasoning = (
                _count(last, "reasoning_output_tokens") if "reasoning_output_tokens" in last.value else None
            )
            return Usage(prompt, output, reasoning, self._total)
        if self._total == before:
            return None
        grown = (self._total[0] - before[0], self._total[1] - before[1])
        return Usage(max(0, grown[0]), max(0, grown[1]), None, self._total)


def _sizes(usage: Node) -> tuple[int, int]:
    return _count(usage, "input_tokens"), _count(usage, "output_tokens")


def _count(usage: Node, key: str) -> int:
    return 0 if usage.get(key) is None else usage.count(key)
