# SPDX-License-Identifier: Apache-2.0
"""Read the token counts of a model call's attributes."""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.dialects.usage import Usage, with_cached

_PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
    "prompt_tokens",
)
_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
    "completion_tokens",
)
_REASONING = (
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
    "llm.usage.reasoning_tokens",
    "ai.usage.reasoningTokens",
)
_READ = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
    "ai.usage.cachedInputTokens",
)
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)


def usage_of_span(attributes: dict[str, Any], place: Node) -> Usage | None:
    """Read a span's counts; None if it has none, or only zeros, as streams without usage do. Raises `TraceError`."""
    node = Node(attributes, place.file, place.line, f"{place.path}.attributes".removeprefix("."))
    prompt, output = _first(node, _PROMPT), _first(node, _OUTPUT)
    if prompt is None or not (prompt or output):
        return None
    cached = (_first(node, _READ) or 0) + (_first(node, _WRITTEN) or 0)
    return Usage(with_cached(prompt, cached), output or 0, _first(node, _REASONING))


def _first(node: Node, keys: tuple[str, ...]) -> int | None:
    key = next((key for key in keys if node.get(key) is not None), None)
    if key is None:
        return None
    value = node.get(key)
    if isinstance(value, str) and value.isdecimal():  # dumps that write every attribute as a text
        return Node({key: int(value[:25])}, node.file, node.line, node.path).count(key)
    return node.count(key)
