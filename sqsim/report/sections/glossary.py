# SPDX-License-Identifier: Apache-2.0
"""Glossary of the words that every section uses, in six lines near the top of the page."""

from __future__ import annotations

from sqsim.report.html.markup import escape

_WORDS = (
    (
        "none / radix",
        "nothing is evicted; SGLang's radix cache keeps finished turns until it needs their space.",
    ),
    ("session", "a task's KV is pinned between its turns, and released while idle only under pressure."),
    (
        "reprefill, in_place",
        "after an eviction, all tokens after the evicted ones are computed again; or their KV stays, and only the evicted KV is freed.",
    ),
    (
        "oracle",
        "evicts each tool response right after its last use. It needs hindsight, so it is a bound that no server can run.",
    ),
    (
        "main, aux, K",
        "main is the agent's own generation; every K turns an aux thread forks from it and names stale responses.",
    ),
    ("cursor", "one tool call with its response, numbered within its task: the unit of eviction."),
)


def glossary() -> str:
    """Write the glossary as HTML."""
    lines = "".join(f"<div><dt>{escape(word)}</dt><dd>{escape(meaning)}</dd></div>" for word, meaning in _WORDS)
    return f'<dl class="words">{lines}</dl>'
