"""From what was said to a task: for formats that record text.

An importer writes down the steps of a conversation; `transcript_task` counts tokens, numbers cursors and
finds references. Recorded usage is used where every step has it, else every text is estimated (estimate.py)
and each message costs `MARKUP_TOKENS` of role markers (assumed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.base import Notes, shared_out
from sqsim.trace.formats.counts import appended, at_least_one
from sqsim.trace.mentions import Mentions
from sqsim.trace.references import with_uses
from sqsim.trace.schema import (
    Answer,
    Call,
    Carried,
    Carries,
    Outcome,
    Parent,
    Prefix,
    Question,
    Reset,
    Source,
    Spawn,
    Task,
    Turn,
)

MARKUP_TOKENS = 4


@dataclass
class Invocation:
    """A tool call; `text` as the model wrote it; `response` is None if none was recorded."""

    tool: str
    text: str
    arguments: Any = None
    response: str | None = None
    error: str | None = None
    latency_s: float = 0.0
    parallel: bool = False


@dataclass
class Step:
    """A model call, and what entered the context behind it: tool responses, and `user`, what a user wrote.

    `thinks`: it reasoned, even where the recording leaves the text out. `prompt` and `output` are recorded
    token counts. `restarted`: a compaction came before it, which left `kept`.
    """

    reasoning: str = ""
    text: str = ""
    calls: list[Invocation] = field(default_factory=list)
    user: str = ""
    user_wait_s: float = 0.0
    thinks: bool = False
    prompt: int | None = None
    output: int | None = None
    restarted: bool = False
    kept: str = ""


@dataclass
class Transcript:
    """A conversation.

    `prefix` is the system text; `prefix_id` names it, and `prefix_tokens` counts it, where it was recorded
    otherwise.
    """

    task_id: str
    source: Source
    prefix: str
    question: str
    steps: list[Step]
    timing: Carried
    model: str | None = None
    prefix_id: str | None = None
    prefix_tokens: int | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome(finish="unknown"))
    parent: Parent | None = None
    spawn: Spawn | None = None


def transcript_task(script: Transcript, notes: Notes) -> Task:
    """The task that a transcript tells."""
    steps = _completed(script.steps, notes)
    usage = _recorded_usage(steps)
    if usage is None and any(step.prompt is not None for step in steps):
        notes["usage is missing in a step; all of its task's counts are estimated"] += 1
    question = estimate_tokens(script.question) + 2 * MARKUP_TOKENS
    if usage is None:
        prefix = estimate_tokens(script.prefix) + (MARKUP_TOKENS if script.prefix else 0)
        grown: list[int] | None = None
    else:
        first = at_least_one(usage[0][0], "a prompt", notes)
        stated = first - question if script.prefix_tokens is None else script.prefix_tokens
        prefix = max(0, min(stated, *(prompt - 1 for prompt, _ in usage)))  # every prompt begins with it
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
        carries=Carries(text="recorded", timing=script.timing, usage="recorded" if usage else "derived"),
        parent=script.parent,
        spawn=script.spawn,
        prefix=Prefix(id=f"{script.source.format}:{name}", tokens=prefix, text=script.prefix or None),
        question=Question(tokens=question, text=script.question or None),
        turns=tuple(turns),
        answer=answer,
        outcome=script.outcome,
    )
    return _with_mentions(task, script, steps)


def _completed(steps: Sequence[Step], notes: Notes) -> list[Step]:
    """The steps, with calls that nobody answered turned into text, and the end that nobody read left out."""
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


def _recorded_usage(steps: Sequence[Step]) -> list[tuple[int, int]] | None:
    usage = [(s.prompt, s.output) for s in steps if s.prompt is not None and s.output is not None]
    return usage if len(usage) == len(steps) else None


def _grown(steps: list[Step], usage: list[tuple[int, int]], notes: Notes) -> list[int]:
    """Recorded growth behind each step; a prompt that shrank began a new context."""
    grown: list[int] = []
    start = 0
    for index in range(1, len(steps) + 1):
        if index < len(steps) and usage[index][0] < usage[index - 1][0] and not steps[index].restarted:
            notes["a prompt is shorter than the one before it (compaction): the context restarts"] += 1
            steps[index].restarted = True
        if index == len(steps) or steps[index].restarted:
            stretch = usage[start:index]
            grown += [*appended([p for p, _ in stretch], [o for _, o in stretch], notes), 0]
            start = index
    return grown


def _turn(step: Step, prefix: int, growth: int | None, notes: Notes) -> Turn:
    """A step's tokens: all estimated, or recorded sums divided as the estimates are. Cursors come later."""
    said = [estimate_tokens(text) for text in (step.reasoning, step.text, *(call.text for call in step.calls))]
    if step.output is not None and growth is not None:
        output = at_least_one(step.output, "an output", notes)
        if step.thinks and not step.reasoning:  # what the visible parts do not explain was thought
            said[0] = max(0, output - sum(said[1:]))
        said = shared_out(output, said if any(said) else [0, 1, *said[2:]])
    elif not any(said):
        said[1] = at_least_one(0, "an output", notes)
    heard = [estimate_tokens(call.response or "") for call in step.calls]
    messages = len(step.calls) + bool(step.user) + 1  # each response, the user's, and the next output's header
    template = estimate_tokens(step.user) + MARKUP_TOKENS * messages
    if growth is not None:
        *heard, template = shared_out(growth, [*heard, template])
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


def _numbered(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with cursors: the index of each successful response."""
    numbered, cursor = [], 0
    for turn in turns:
        calls = []
        for call in turn.calls:
            calls.append(call if call.error is not None else call.model_copy(update={"cursor": cursor}))
            cursor += call.error is None
        numbered.append(turn.model_copy(update={"calls": tuple(calls)}))
    return numbered


def _with_mentions(task: Task, script: Transcript, steps: Sequence[Step]) -> Task:
    """The task with the references that its texts hold. A turn without calls speaks to the user: an answer."""
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
        mentions.heard(f"{step.reasoning} {step.text}")
        if index < len(task.turns):
            for call in task.turns[index].calls:
                if call.cursor is None:
                    mentions.heard(call.response_text or "")
                else:
                    mentions.opened(call.cursor, call.tool, call.response_text or "")
        mentions.heard(step.user)
    return with_uses(task, uses, "recorded" if mentions.recorded else "derived")
