# SPDX-License-Identifier: Apache-2.0
"""Add recorded token ids to a task: the ids of each prompt and output, divided by the task's own counts.

Prompts and outputs come out exactly as recorded. Where a part ends within them (a call within an output, a
response within what a prompt grew by) is as estimated as the parts' counts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Answer, Task, TokenIds, Turn

MOST_ID = 2**31 - 1


class Ids(NamedTuple):
    """Token ids of a model call."""

    prompt: Sequence[int]
    output: Sequence[int]


def with_token_ids(task: Task, calls: Sequence[Ids], notes: Notes) -> Task:
    """Return the task with token ids; unchanged, and noted, where a prompt does not continue the one before it."""
    if len(calls) != task.steps or not _continue(calls) or not _fit(task, calls):
        notes["token ids were left out: a prompt does not continue the one before it, or counts differ"] += 1
        return task
    first = tuple(calls[0].prompt)
    turns = []
    for number, turn in enumerate(task.turns):
        grown: Sequence[int] = ()
        if number + 1 < len(calls):
            grown = calls[number + 1].prompt[len(calls[number].prompt) + len(calls[number].output) :]
        turns.append(_turn(turn, calls[number].output, grown))
    return task.model_copy(
        update={
            "prefix": task.prefix.model_copy(update={"token_ids": first[: task.prefix.tokens]}),
            "question": task.question.model_copy(update={"token_ids": first[task.prefix.tokens :]}),
            "turns": tuple(turns),
            "answer": task.answer and _answer(task.answer, calls[-1].output),
        }
    )


def _continue(calls: Sequence[Ids]) -> bool:
    joined = [[*call.prompt, *call.output] for call in calls]
    return all(
        list(now.prompt[: len(before)]) == before for before, now in zip(joined, calls[1:], strict=False)
    )


def _fit(task: Task, calls: Sequence[Ids]) -> bool:
    """Whether the task's counts are those of the ids, and no context was restarted."""
    steps: list[Turn | Answer] = [*task.turns, *([task.answer] if task.answer else [])]
    good = task.prefix.tokens + task.question.tokens == len(calls[0].prompt)
    good &= all(step.output_tokens == len(call.output) for step, call in zip(steps, calls, strict=True))
    for turn, before, now in zip(task.turns, calls, calls[1:], strict=False):
        grown = turn.template_tokens + sum(call.response_tokens for call in turn.calls)
        good &= grown == len(now.prompt) - len(before.prompt) - len(before.output)
    return good and not any(turn.reset for turn in task.turns)


def _turn(turn: Turn, output: Sequence[int], grown: Sequence[int]) -> Turn:
    said = _cut(output, [turn.reasoning_tokens, turn.text_tokens, *(call.call_tokens for call in turn.calls)])
    update: dict[str, object] = {"reasoning_token_ids": said[0], "text_token_ids": said[1]}
    calls = [
        call.model_copy(update={"call_token_ids": ids}) for call, ids in zip(turn.calls, said[2:], strict=True)
    ]
    if grown:  # after the last call nothing was read, so no ids of it are recorded
        heard = _cut(grown, [turn.template_tokens, *(call.response_tokens for call in calls)])
        update["template_token_ids"] = heard[0]
        calls = [
            call.model_copy(update={"response_token_ids": ids})
            for call, ids in zip(calls, heard[1:], strict=True)
        ]
    return turn.model_copy(update={**update, "calls": tuple(calls)})


def _answer(answer: Answer, output: Sequence[int]) -> Answer:
    reasoning, text = _cut(output, [answer.reasoning_tokens, answer.text_tokens])
    return answer.model_copy(update={"reasoning_token_ids": reasoning, "text_token_ids": text})


def _cut(ids: Sequence[int], sizes: Sequence[int]) -> list[TokenIds]:
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(ids[start : start + size]))
        start += size
    return parts
