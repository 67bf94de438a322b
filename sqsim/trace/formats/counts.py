# SPDX-License-Identifier: Apache-2.0
"""Make turns of token counts, for formats that record each request's prompt and output, and no text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Answer, Call, Reset, Turn


class Counted(NamedTuple):
    """Model call with its recorded counts.

    `tools`: tool results follow it (else a user's text does). The client waits `wait_s` for them, and `after_s`
    after them and the sub-agents. `restarted`: its prompt does not continue the one before it.
    """

    prompt: int
    output: int
    tools: bool = True
    wait_s: float = 0.0
    after_s: float = 0.0
    restarted: bool = False


def counted_turns(
    steps: Sequence[Counted], prefix_tokens: int, notes: Notes
) -> tuple[tuple[Turn, ...], Answer | None]:
    """Make the turns, and of the last step the answer.

    What followed the last step is not recorded. It stays a turn when its context was restarted, as only a turn
    can state that.
    """
    notes.usage["recorded"] += len(steps)
    growth_after = grown(steps, notes)
    turns: list[Turn] = []
    for index, (step, growth) in enumerate(zip(steps, growth_after, strict=True)):
        reset = Reset(keep_tokens=max(1, step.prompt - prefix_tokens)) if step.restarted else None
        last = index + 1 == len(steps)
        if last and reset is None:
            return tuple(turns), Answer(reasoning_tokens=0, text_tokens=step.output)
        if last or not step.tools:
            turn = Turn(
                reasoning_tokens=0,
                text_tokens=step.output,
                calls=(),
                template_tokens=growth,
                user_wait_s=step.wait_s + step.after_s,
                reset=reset,
            )
        else:
            # How an output divides is not recorded: half of it is the call (a guess).
            call = Call(
                tool="tool",
                call_tokens=step.output // 2,
                cursor=index,
                response_tokens=growth,
                latency_s=step.wait_s,
            )
            turn = Turn(
                reasoning_tokens=0,
                text_tokens=step.output - call.call_tokens,
                calls=(call,),
                user_wait_s=step.after_s,
                reset=reset,
            )
        turns.append(turn)
    return tuple(turns), None


def grown(steps: Sequence[Counted], notes: Notes) -> list[int]:
    """Compute the tokens that entered after each output; 0 where the next prompt starts a new context."""
    starts = [0, *(index for index in range(1, len(steps)) if steps[index].restarted), len(steps)]
    found: list[int] = []
    for start, stop in pairwise(starts):
        context = steps[start:stop]
        found += appended([step.prompt for step in context], [step.output for step in context], notes)
        found.append(0)
    return found


REWRITTEN_TOKENS, REWRITTEN_SHARE = 128, 0.05
"""A prompt may change so much of the end of the one before it and still continue it: clients rewrite their last message."""


class Prompt(NamedTuple):
    """Recorded prompt: its tokens and the ids of its blocks."""

    tokens: int
    blocks: Sequence[int]


def restarted(before: Prompt, now: Prompt, block_tokens: int, notes: Notes) -> bool:
    """Whether a prompt begins a new context: it is shorter than the last one, or lost too many blocks."""
    there = before.blocks[: before.tokens // block_tokens]  # a partial block changes as it fills
    same = 0
    for old, new in zip(there, now.blocks, strict=False):
        if old != new:
            break
        same += 1
    # Without ids there is nothing to compare.
    lost = (len(there) - same) * block_tokens if now.blocks else 0
    if now.tokens < before.tokens or lost > max(REWRITTEN_TOKENS, REWRITTEN_SHARE * before.tokens):
        notes["a prompt does not continue the one before it (compaction): the context restarts"] += 1
        return True
    if lost:
        notes["a prompt rewrote the last blocks of the one before it; taken as unchanged"] += 1
    return False


def appended(prompts: Sequence[int], outputs: Sequence[int], notes: Notes) -> list[int]:
    """Compute the growth after each output, before the next prompt: `prompt[k+1] - prompt[k] - output[k]`.

    A recorded prompt may grow by less than the output before it: the server counts a text once as it was
    generated and once as it was put back, or leaves thinking out. Outputs are kept as they are; what is
    missing is taken from what later steps append, so that prompts meet the recording again.
    """
    grown: list[int] = []
    debt = 0
    for output, prompt, following in zip(outputs, prompts, prompts[1:], strict=False):
        change = following - prompt - output - debt
        debt = max(0, -change)
        if debt:
            notes["a prompt grew by less than the output before it; the rest is taken from later steps"] += 1
        grown.append(max(0, change))
    return grown


def at_least_one(tokens: int, what: str, notes: Notes) -> int:
    """Raise a count of 0 to 1 and note it, as a model call has at least one prompt and one output token."""
    if not tokens:
        notes[f"{what} of 0 tokens counts as 1"] += 1
    return max(1, tokens)
