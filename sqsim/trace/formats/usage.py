# SPDX-License-Identifier: Apache-2.0
"""Complete the token counts of a conversation's calls: a missing count is filled in from its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import MARKUP_TOKENS, Step


def filled_usage(steps: Sequence[Step], notes: Notes) -> list[tuple[int, int]] | None:
    """Return prompt and output of every step, estimates marked; None if no step has a recorded prompt."""
    if all(step.prompt is None for step in steps):
        for step in steps:
            step.estimated = True
        return None
    for step in steps:
        if step.prompt is None or step.output is None:
            notes["usage is missing in a call; it was filled in from the calls around it"] += 1
            step.estimated = True
        if step.output is None:
            step.output = max(1, step.visible_tokens)
    for index in range(len(steps)):
        if steps[index].prompt is None:
            steps[index].prompt = _prompt(steps, index)
    return [(step.prompt or 0, step.output or 0) for step in steps]


def _prompt(steps: Sequence[Step], index: int) -> int:
    """Estimate a missing prompt: what the previous one grew to, limited by the next recorded one."""
    step = steps[index]
    following = _next_recorded(steps, index)
    if index and not step.restarted:
        before = steps[index - 1]
        grown = (before.prompt or 0) + (before.output or 0) + before.growth_tokens
        return max(before.prompt or 0, grown if following is None else min(grown, following))
    if following is not None:
        return max(1, following)
    # A new context without any recorded count: the beginning that all contexts share, and the kept text.
    known = next((step for step in steps if step.prompt is not None), None)
    shared = (known.prompt or 0) if known is not None and known is steps[0] else 0
    return max(1, shared + estimate_tokens(step.kept) + 2 * MARKUP_TOKENS)


def _next_recorded(steps: Sequence[Step], index: int) -> int | None:
    """Estimate a step's prompt from the next recorded one of its context, less all that came in between."""
    between = 0
    for number in range(index, len(steps)):
        later = steps[number]
        if number > index and later.restarted:
            return None
        if later.prompt is not None:
            return max(1, later.prompt - between)
        between += (later.output or 0) + later.growth_tokens
    return None
