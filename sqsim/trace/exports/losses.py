# SPDX-License-Identifier: Apache-2.0
"""Name and count what differs between a task and the same task after an export and an import.

Each `Loss` is one kind of difference with the fields of the schema that it covers. `source` and `carries` are not
compared: an import makes them anew. Names of blocks and numbers of cursors are compared by what they name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from sqsim.trace.schema import Answer, Call, Reset, Task, Turn
from sqsim.trace.statistics import prompts

SAME_S = 1e-6
"""Waits that differ by less are the same: formats write milliseconds with three decimals."""


class Loss(NamedTuple):
    """Kind of difference: its text, how often it is between two tasks, and the fields that it covers."""

    text: str
    times: Callable[[Task, Task], int]
    fields: tuple[str, ...]


def losses(before: Task, after: Task) -> Counter[str]:
    """Count the differences, by the texts of their kinds."""
    return Counter({loss.text: times for loss in LOSSES if (times := loss.times(before, after))})


def _steps(task: Task) -> list[Turn | Answer]:
    return [*task.turns, *([] if task.answer is None else [task.answer])]


def _calls(step: Turn | Answer) -> tuple[Call, ...]:
    return step.calls if isinstance(step, Turn) else ()


def _differ(of: Callable[[Task], Sequence[Hashable]]) -> Callable[[Task, Task], int]:
    """Count the positions at which two tasks' lists differ, those that one of them lacks included."""

    def times(before: Task, after: Task) -> int:
        one, other = of(before), of(after)
        return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))

    return times


def _gone(of: Callable[[Task], Counter[Any]]) -> Callable[[Task, Task], int]:
    """Count the items that only one of two tasks has; where a thing was replaced, it counts once."""

    def times(before: Task, after: Task) -> int:
        one, other = of(before), of(after)
        return max((one - other).total(), (other - one).total())

    return times


def _by_step(of: Callable[[Turn | Answer], Hashable]) -> Callable[[Task], list[Hashable]]:
    return lambda task: [of(step) for step in _steps(task)]


def _waits(before: Task, after: Task) -> int:
    return _times_differ(before, after, lambda turn: [turn.tool_wait_s + turn.user_wait_s])


def _waits_divided(before: Task, after: Task) -> int:
    return _times_differ(
        before, after, lambda turn: [turn.user_wait_s, *(call.latency_s for call in turn.calls)]
    )


def _times_differ(before: Task, after: Task, of: Callable[[Turn], list[float]]) -> int:
    found = 0
    for one, other in zip(_steps(before), _steps(after), strict=False):
        a = of(one) if isinstance(one, Turn) else [0.0]
        b = of(other) if isinstance(other, Turn) else [0.0]
        found += len(a) != len(b) or not all(
            math.isclose(x, y, rel_tol=1e-9, abs_tol=SAME_S) for x, y in zip(a, b, strict=True)
        )
    return found


def _division(step: Turn | Answer) -> Hashable:
    return step.reasoning_tokens, step.text_tokens, tuple(call.call_tokens for call in _calls(step))


def _heard(step: Turn | Answer) -> Hashable:
    template = step.template_tokens if isinstance(step, Turn) else 0
    return template, tuple(call.response_tokens for call in _calls(step))


def _blocks(before: Task, after: Task) -> int:
    """Whether recorded blocks are gone or were cut anew; which ids they have does not matter."""
    if before.question.hash_ids is None:
        return 0
    return int(
        after.question.block_tokens != before.question.block_tokens
        or len(after.question.hash_ids or ()) != len(before.question.hash_ids)
    )


def _all(ending: str) -> Callable[[Task], Counter[Any]]:
    """Count a task's texts or token ids, each with its step and field."""

    def of(task: Task) -> Counter[Any]:
        parts: list[BaseModel] = [task.prefix, task.question, *_steps(task)]
        return Counter((place, *leaf) for place, part in enumerate(parts) for leaf in _leaves(part, ending))

    return of


def _leaves(value: BaseModel, ending: str) -> Iterator[tuple[str, Any]]:
    for name in type(value).model_fields:
        part = getattr(value, name)
        if isinstance(part, BaseModel):
            yield from _leaves(part, ending)
        elif part is not None and (name == ending or name.endswith(f"_{ending}")):
            yield name, part
        elif isinstance(part, tuple):
            for each in part:
                if isinstance(each, BaseModel):
                    yield from _leaves(each, ending)


def _uses(task: Task) -> Counter[tuple[int, tuple[int, int]]]:
    """Count references: the step that refers, and the turn and call that opened what it refers to."""
    opened = {
        call.cursor: (index, number)
        for index, turn in enumerate(task.turns)
        for number, call in enumerate(turn.calls)
        if call.cursor is not None
    }
    return Counter((index, opened[cursor]) for index, step in enumerate(_steps(task)) for cursor in step.uses)


def _errors(task: Task) -> Counter[tuple[int, str]]:
    return Counter(
        (index, call.error)
        for index, step in enumerate(_steps(task))
        for call in _calls(step)
        if call.error is not None
    )


_RESET = tuple(name for name in Reset.model_fields if not name.endswith(("text", "token_ids")))


def _reset(step: Turn | Answer) -> Hashable:
    reset = step.reset if isinstance(step, Turn) else None
    return None if reset is None else tuple(getattr(reset, name) for name in _RESET)


_TOKENS = ("tokens", "reasoning_tokens", "text_tokens", "call_tokens", "response_tokens", "template_tokens")

LOSSES: tuple[Loss, ...] = (
    Loss("a task's id is another", _differ(lambda task: [task.task_id]), ("task_id",)),
    Loss("the recorded model is not named", _differ(lambda task: [task.model]), ("model",)),
    Loss("an arrival is left out or another", _differ(lambda task: [task.arrival_s]), ("arrival_s",)),
    Loss(
        "a sub-agent became a task of its own",
        lambda before, after: int(before.parent is not None and after.parent is None),
        ("parent", "spawn"),
    ),
    Loss(
        "a sub-agent starts or is waited for at another step",
        lambda before, after: int(
            after.parent is not None and (before.parent, before.spawn) != (after.parent, after.spawn)
        ),
        ("parent", "spawn"),
    ),
    Loss(
        "a shared prefix (system prompt, tools) has another name or length; whole blocks of it stay shared",
        _differ(lambda task: [(task.prefix.id, task.prefix.tokens)]),
        ("id", "tokens"),
    ),
    Loss("a question's blocks are cut to another size", _blocks, ("hash_ids", "block_tokens")),
    Loss("a prompt has another length", _differ(lambda task: list(prompts(task))), (*_TOKENS, "keep_tokens")),
    Loss(
        "an output has another length",
        _differ(_by_step(lambda step: step.output_tokens)),
        ("reasoning_tokens", "text_tokens", "call_tokens"),
    ),
    Loss(
        "reasoning that leaves the next prompt (reasoning_kept: false) is not told from text that stays",
        lambda before, after: (
            max(1, sum(turn.reasoning_tokens > 0 for turn in before.turns))
            if before.reasoning_kept != after.reasoning_kept
            else 0
        ),
        ("reasoning_kept",),
    ),
    Loss(
        "an output's division into thought, text and calls is another",
        _differ(_by_step(_division)),
        ("reasoning_tokens", "text_tokens", "call_tokens"),
    ),
    Loss(
        "the tokens after an output are divided otherwise among responses and the rest",
        _differ(_by_step(_heard)),
        ("response_tokens", "template_tokens"),
    ),
    Loss(
        "a turn has another number of calls, or others of them run in parallel",
        _differ(_by_step(lambda step: tuple(call.parallel for call in _calls(step)))),
        ("parallel", "tool", "cursor"),
    ),
    Loss(
        "a tool's name is another",
        _gone(lambda task: Counter(call.tool for turn in task.turns for call in turn.calls)),
        ("tool",),
    ),
    Loss(
        "a failed call became a successful one",
        lambda before, after: max(0, _errors(before).total() - _errors(after).total()),
        ("error", "cursor"),
    ),
    Loss(
        "an error has another text",
        lambda before, after: (
            _gone(_errors)(before, after) if _errors(before).total() <= _errors(after).total() else 0
        ),
        ("error",),
    ),
    Loss("a wait between two steps is left out or another", _waits, ("latency_s", "user_wait_s", "parallel")),
    Loss("a wait is divided otherwise among tools and user", _waits_divided, ("latency_s", "user_wait_s")),
    Loss("a reference to a response is left out or another", _gone(_uses), ("uses",)),
    Loss("a reset (compaction) is left out or another", _differ(_by_step(_reset)), _RESET),
    Loss(
        "a last turn became the answer, or the answer a turn",
        lambda before, after: int((before.answer is None) != (after.answer is None)),
        ("answer",),
    ),
    Loss(
        "an outcome is left out or another",
        _differ(lambda task: [task.outcome.finish, task.outcome.correct]),
        ("finish", "correct"),
    ),
    Loss(
        "an auxiliary generation is left out",
        _differ(lambda task: list(task.aux or ())),
        ("aux",),
    ),
    Loss("a text is left out or another", _gone(_all("text")), ("text",)),
    Loss("token ids are left out", _gone(_all("token_ids")), ("token_ids",)),
)
