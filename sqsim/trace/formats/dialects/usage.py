# SPDX-License-Identifier: Apache-2.0
"""Read token counts of the APIs' usage objects."""

from __future__ import annotations

from typing import NamedTuple

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.messages import counts


class Usage(NamedTuple):
    """Tokens of a prompt, of the output, and of the output's reasoning where it was counted."""

    prompt: int
    output: int
    reasoning: int | None = None


def usage_of(node: Node) -> Usage | None:
    """Read a usage object of OpenAI, Anthropic, LangChain or Gemini; None if it is none. Raises `TraceError`."""
    if node.get("promptTokenCount") is not None:  # Gemini counts thoughts next to the candidates
        thoughts = optional_count(node, "thoughtsTokenCount")
        said = optional_count(node, "candidatesTokenCount") or 0
        return Usage(node.count("promptTokenCount"), said + (thoughts or 0), thoughts)
    found = counts(node)
    if found is None:
        return None
    reasoning = None
    for details in ("completion_tokens_details", "output_tokens_details", "output_token_details"):
        if isinstance(node.get(details), dict):
            inner = node.node(details)
            for key in ("reasoning_tokens", "reasoning"):
                reasoning = optional_count(inner, key) if reasoning is None else reasoning
    return Usage(*found, reasoning)


def optional_count(node: Node, key: str) -> int | None:
    """Read a count that may be missing or null."""
    return None if node.get(key) is None else node.count(key)


def with_cached(prompt: int, cached: int) -> int:
    """Return the whole prompt. By the conventions it includes what was cached; some tools count the new part alone."""
    return prompt + cached if cached > prompt else prompt
