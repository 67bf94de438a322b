# SPDX-License-Identifier: Apache-2.0
"""Make a task of a transcript, for formats that record text.

An importer writes down the steps of a conversation; `transcript_task` counts tokens, numbers cursors and
finds references. Recorded usage is used where there is any, and filled in where a step lacks it (usage.py); without
any, every text is estimated (estimate.py) and each message costs `MARKUP_TOKENS` of role markers (assumed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.base import shared_out
from sqsim.trace.formats.counts import appended, at_least_one
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import MARKUP_TOKENS, Invocation, Step, Transcript
from sqsim.trace.formats.usage import filled_usage
from sqsim.trace.mentions import Mentions
from sqsim.trace.references import with_uses
from sqsim.trace.schema import (
    Answer,
    Call,
    Carries,
    Prefix,
    Question,
    Reset,
    Task,
    Turn,
)

__all__ = ["Invocation", "Step", "Transcript", "transcript_task"]


def transcript_task(script: Transcript, notes: Notes) -> Task:
    """Make the task of a transcript."""
    steps = _completed(script.steps, notes)
    usage = filled_usage(steps, notes)
    if usage is None and not script.prefix:
        notes[
            "no usage and no system prompt in a recording: its prompts lack system prompt and tool definitions"
        ] += 1
    estimated = sum(step.estimated for step in steps)
    notes.usage["estimated"] += estimated
    notes.usage["recorded"] += len(steps) - estimated
    question = script.question_tokens
    if usage is None:
        prefix = estimate_tokens(script.prefix) + (MARKUP_TOKENS if script.prefix else 0)
        grown: list[int] | None = None
    else:
        first = at_least_one(usage[0][0], "a prompt", notes)
        stated = first - question if script.prefix_tokens is None else script.prefix_tokens
        prefix = max(0, min([stated, *_room_for_prefix(steps, usage)]))
        question = first - prefix
        grown = _grown(steps, usage, notes)
    turns: list[Turn] = []
    for index, step in enumerate(steps):
        turns.append(_turn(step, prefix, grown[index] if grown else None, notes))
    answer = None
    if not steps[-1].calls and not steps[-1].restarted:
        last = turns.pop()
        answer = Answer(
            reasoning_tokens=last.reasoning_tokens,
            text_tokens=last.text_tokens,
            reasoning_text=last.reasoning_text,
            text=last.text,
        )
    turns = _numbered(turns)
    name = script.prefix_id or hashlib.blake2b(script.prefix.encode(), digest_size=6).hexdigest()
    task = Task(
        task_id=script.task_id,
        source=script.source,
        model=script.model,
        carries=Carries(text=script.text, timing=script.timing, usage="derived" if estimated else "recorded"),
        arrival_s=script.arrival_s,
        parent=script.parent,
        spawn=script.spawn,
        prefix=Prefix(id=f"{script.source.format}:{name}", tokens=prefix, text=script.prefix or None),
        question=Question(tokens=question, text=script.question or None),
        turns=tuple(turns),
        answer=answer,
        outcome=script.outcome,
    )
    return _with_mentions(task, script, steps, notes) if script.text != "absent" else task


def _completed(steps: Sequence[Step], notes: Notes) -> list[Step]:
    """Complete the steps: unanswered calls become text, and an end that no call read is left out."""
    steps = list(steps)
    for step in steps:
        for call in [call for call in step.calls if call.response is None]:
            notes["a tool call without a response counts as text"] += 1
            step.calls.remove(call)
            step.text += call.text
    if steps[-1].user:
        notes["a last user message that no model call reads was left out"] += 1
        steps[-1].user = ""
    return steps


def _room_for_prefix(steps: Sequence[Step], usage: Sequence[tuple[int, int]]) -> list[int]:
    """Compute what each prompt holds in addition to its known parts; every prompt begins with the prefix."""
    kept = [estimate_tokens(step.kept) + 2 * MARKUP_TOKENS if step.kept else 1 for step in steps]
    return [prompt - own for (prompt, _), own in zip(usage, kept, strict=True)]


def _grown(steps: list[Step], usage: list[tuple[int, int]], notes: Notes) -> list[int]:
    """Compute the recorded growth after each step; a prompt that shrank began a new context."""
    grown: list[int] = []
    start = 0
    for index in range(1, len(steps) + 1):
        shrunk = usage[index - 1][0] - usage[index][0] if index < len(steps) else 0
        if shrunk > 0 and not steps[index].restarted and shrunk > steps[index].forgets:
            notes["a prompt is shorter than the one before it (compaction): the context restarts"] += 1
            steps[index].restarted = True
        if index == len(steps) or steps[index].restarted:
            context = usage[start:index]
            # No call read it, so it was never counted; a response still has its estimate.
            unread = steps[index - 1].growth_tokens if index == len(steps) and steps[index - 1].calls else 0
            grown += [*appended([p for p, _ in context], [o for _, o in context], notes), unread]
            start = index
    return grown


def _turn(step: Step, prefix: int, growth: int | None, notes: Notes) -> Turn:
    """Make a turn of a step: all tokens estimated, or recorded sums divided like the estimates; no cursors."""
    said = [estimate_tokens(text) for text in (step.reasoning, step.text, *(call.text for call in step.calls))]
    if step.counts_only:  # half of an output is taken for its calls (a guess)
        said = [0, max(1, len(step.calls)), *(1 for _ in step.calls)]
    if step.output is not None and growth is not None:
        output = at_least_one(step.output, "an output", notes)
        if step.reasoning_tokens is not None:
            thought = min(step.reasoning_tokens, output)
            said = [thought, *shared_out(output - thought, said[1:] if any(said[1:]) else [1, *said[2:]])]
        elif step.thinks and not step.reasoning:  # what the visible parts do not explain was thought
            said[0] = max(0, output - sum(said[1:]))
        if step.reasoning_tokens is None:
            said = shared_out(output, said if any(said) else [0, 1, *said[2:]])
    elif not any(said):
        said[1] = at_least_one(0, "an output", notes)
    heard, template = step.heard_tokens
    if growth is not None:
        heard, template = _heard(step, growth)
    reset = None
    if step.restarted:
        recorded = growth is not None and step.prompt is not None
        kept = (step.prompt or 0) - prefix if recorded else estimate_tokens(step.kept) + 2 * MARKUP_TOKENS
        reset = Reset(keep_tokens=max(1, kept), keep_text=step.kept or None)
    return Turn(
        reasoning_tokens=said[0],
        text_tokens=said[1],
        calls=tuple(
            Call(
                tool=call.tool,
                call_tokens=said[2 + number],
                cursor=None,
                response_tokens=heard[number],
                latency_s=call.latency_s,
                error=call.error,
                parallel=call.parallel,
                call_text=call.text,
                response_text=call.response,
            )
            for number, call in enumerate(step.calls)
        ),
        template_tokens=template,
        user_wait_s=step.user_wait_s,
        reset=reset,
        reasoning_text=step.reasoning or None,
        text=step.text or None,
        template_text=step.user or None,
    )


def _heard(step: Step, growth: int) -> tuple[list[int], int]:
    """Divide recorded growth like the estimates; tokens beyond what a text can have belong to no response."""
    responses, template = step.heard_tokens
    *heard, rest = shared_out(growth, [*responses, template])
    for number, call in enumerate(step.calls):
        most = len((call.response or "").encode()) + MARKUP_TOKENS  # no token is less than a byte
        if not call.other_tokens and heard[number] > most:
            rest += heard[number] - most
            heard[number] = most
    return heard, rest


def _numbered(turns: Sequence[Turn]) -> list[Turn]:
    """Number the turns' cursors: the index of each successful response."""
    numbered, cursor = [], 0
    for turn in turns:
        calls = []
        for call in turn.calls:
            calls.append(call if call.error is not None else call.model_copy(update={"cursor": cursor}))
            cursor += call.error is None
        numbered.append(turn.model_copy(update={"calls": tuple(calls)}))
    return numbered


def _with_mentions(task: Task, script: Transcript, steps: Sequence[Step], notes: Notes) -> Task:
    """Add the references in the task's texts. A turn without calls speaks to the user, as an answer does."""
    mentions = Mentions()
    mentions.heard(script.prefix)
    mentions.heard(script.question)
    uses: list[list[int]] = []
    for index, step in enumerate(steps):
        if step.restarted:
            mentions.closed()
            mentions.heard(step.kept)
        spoken = step.text if not step.calls else ""
        uses.append(mentions.used([(call.tool, call.text, call.arguments) for call in step.calls], spoken))
        mentions.spoke(f"{step.reasoning} {step.text}")
        if index < len(task.turns):
            for call, asked in zip(task.turns[index].calls, step.calls, strict=True):
                if call.cursor is None:
                    mentions.heard(call.response_text or "")
                else:
                    mentions.opened(
                        call.cursor, call.tool, call.response_text or "", asked.arguments, asked.text
                    )
        mentions.heard(step.user)
    notes.evidence.update(mentions.by_kind)
    return with_uses(task, uses, "recorded" if mentions.recorded else "derived")
