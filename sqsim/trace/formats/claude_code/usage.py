# SPDX-License-Identifier: Apache-2.0
"""Mend usage written before its output was complete: it has far fewer tokens than its own text."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Step

_LEAST = 32
"""A thinking output of at least this many tokens is not taken for a stream's first line (those have 1 to 8; a guess)."""


def mend(steps: Sequence[Step], notes: Notes) -> None:
    """Replace outputs that cannot be whole by an estimate, compared with the growth of the next prompt.

    A step's thoughts are in the next prompt, so its growth, less what came in after the output, is the generated
    output; it bounds the estimate. A hidden thought without a next prompt stays unknown.
    """
    for index, step in enumerate(steps):
        if step.output is None:
            continue
        visible = step.visible_tokens
        hidden = step.thinks and not step.reasoning
        following = steps[index + 1] if index + 1 < len(steps) else None
        growth = _growth(step, following)
        partial = 2 * step.output < visible
        thought = max(0, growth - step.growth_tokens) if growth is not None else 0
        if not partial and not (hidden and step.output <= max(_LEAST, visible) and thought > 2 * visible):
            continue
        step.estimated = True
        if hidden and growth is None:
            notes["hidden thinking behind partial usage: how much was thought is unknown; none is counted"] += 1
        elif hidden:
            notes["hidden thinking behind partial usage is unknown; taken as what the next prompt grew by"] += 1
        else:
            notes["a recorded output is shorter than its own text (partial usage); estimated"] += 1
        step.output = max(step.output, _bounded(visible, thought if step.thinks else 0, growth))


def _growth(step: Step, following: Step | None) -> int | None:
    """Compute the growth of the next prompt of the same context; None if there is none, or it did not grow."""
    if following is None or following.restarted or following.prompt is None or step.prompt is None:
        return None
    growth = following.prompt - step.prompt
    return growth if growth > 0 else None


def _bounded(visible: int, thought: int, growth: int | None) -> int:
    return max(thought, visible) if growth is None else min(growth, max(thought, visible))
