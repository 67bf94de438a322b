# SPDX-License-Identifier: Apache-2.0
"""Statistics of a trace: FORMATS.md's table of real runs, for any trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from sqsim.trace.references import last_uses, references
from sqsim.trace.schema import KINDS, Task, Turn

AGES = (1, 5, 12, 20)
"""Steps after a call at which the share of still needed responses is measured."""

Value = float | int | str | None


def prompts(task: Task) -> list[int]:
    """Compute the prompt tokens of every step when nothing is ever evicted."""
    lengths: list[int] = []
    context = task.prefix.tokens + task.question.tokens
    for turn in task.turns:
        if turn.reset is not None:
            context = task.prefix.tokens + turn.reset.keep_tokens
        lengths.append(context)
        # Stripped reasoning leaves the next prompt; a reset turn's own reasoning follows the same rule.
        context += turn.output_tokens + turn.template_tokens + sum(call.response_tokens for call in turn.calls)
        context -= 0 if task.reasoning_kept else turn.reasoning_tokens
    return [*lengths, context] if task.answer is not None else lengths


def final_context(task: Task) -> int:
    """Compute the tokens of the last step's prompt and output."""
    last = task.answer or task.turns[-1]
    return prompts(task)[-1] + last.output_tokens


def statistics(tasks: Iterable[Task]) -> dict[str, Value]:
    """Compute the figures of a trace: tokens, steps, seconds and shares; None where there is nothing to count."""
    tasks = list(tasks)
    turns = [turn for task in tasks for turn in task.turns]
    calls = [call for turn in turns for call in turn.calls]
    outputs = [turn.output_tokens for turn in turns] + [t.answer.output_tokens for t in tasks if t.answer]
    answered = [call.response_tokens for call in calls if call.error is None]
    finals = [final_context(task) for task in tasks]
    saved = [_saved_by_oracle(task) for task in tasks]
    figures: dict[str, Value] = {
        "tasks": len(tasks),
        "sub_agents": sum(task.parent is not None for task in tasks),
        "model_calls": len(outputs),
        "tool_calls": len(calls),
        "failed_calls": sum(call.error is not None for call in calls),
        "resets": sum(turn.reset is not None for turn in turns),
        "output_tokens": sum(outputs),
        "tool_response_tokens": sum(call.response_tokens for call in calls),
        "steps_mean": _mean([task.steps for task in tasks]),
        "steps_max": max((task.steps for task in tasks), default=None),
        "final_context_mean": _mean(finals),
        "output_tokens_a_step_mean": _mean(outputs),
        "tool_share": _ratio(sum(call.response_tokens for call in calls), sum(finals)),
        **_percentiles("steps", [task.steps for task in tasks], (50, 90)),
        **_percentiles("response_tokens", answered, (50, 90, 99)),
        **_percentiles("output_tokens_a_step", outputs, (50, 90)),
        **_percentiles("final_context", finals, (50, 90)),
        **_percentiles("tool_latency_s", [call.latency_s for call in calls], (50, 90, 99)),
        **_percentiles("oracle_saves_peak_share", [s for s in saved if s is not None], (50,)),
    }
    for kind in KINDS:
        for how, count in sorted(Counter(getattr(task.carries, kind) for task in tasks).items()):
            figures[f"carries_{kind}_{how}"] = count
    if rescaled := sum(task.carries.scale != 1 for task in tasks):
        figures["carries_usage_scaled"] = rescaled
    for how, count in sorted(_references_by_method(tasks).items()):
        figures[f"references_{how}"] = count
    for age, share in zip(AGES, _still_needed(tasks), strict=True):
        figures[f"still_needed_at_{age}"] = share
    figures["never_used_share"] = _never_used(tasks)
    return figures


def _references_by_method(tasks: Sequence[Task]) -> Counter[str]:
    """Count the references by the method that found them; a (cursor, step) pair is one."""
    found: Counter[str] = Counter()
    for task in tasks:
        found[task.carries.references] += sum(len(steps) for steps in references(task).values())
    return found


def _responses(task: Task) -> list[tuple[int, int, int | None]]:
    """List for each cursor the turn that opened it, its response tokens, and the last step that refers to it."""
    steps = references(task)
    return [
        (index, call.response_tokens, max(steps[call.cursor], default=None))
        for index, turn in enumerate(task.turns)
        for call in turn.calls
        if call.cursor is not None
    ]


def _still_needed(tasks: Sequence[Task]) -> list[float | None]:
    """Compute by tokens the share of responses n steps old, in running tasks, that are still needed."""
    shares: list[float | None] = []
    responses = [(task.steps, *response) for task in tasks for response in _responses(task)]
    for age in AGES:
        there = [(tokens, last, opened) for steps, opened, tokens, last in responses if opened + age < steps]
        needed = sum(tokens for tokens, last, opened in there if last is not None and last >= opened + age)
        shares.append(_ratio(needed, sum(tokens for tokens, _, _ in there)))
    return shares


def _never_used(tasks: Sequence[Task]) -> float | None:
    """Compute the share of responses that some step read and none referred to."""
    lasts = [last for task in tasks for opened, _, last in _responses(task) if opened + 1 < task.steps]
    return _ratio(sum(last is None for last in lasts), len(lasts))


def _saved_by_oracle(task: Task) -> float | None:
    """Compute the share of peak tool tokens (calls, responses) that eviction after the last use saves."""
    last = last_uses(task)
    growth = [0] * (task.steps + 2)  # tool tokens in the prompt of each step, as differences
    kept = list(growth)
    closes = _closing_steps(task.turns, task.steps)
    for index, turn in enumerate(task.turns):
        for call in turn.calls:
            if call.cursor is None:
                continue
            tokens = call.call_tokens + call.response_tokens
            for differences, end in (
                (growth, closes[index]),
                (kept, min(closes[index], last[call.cursor] + 1)),
            ):
                differences[min(index + 1, end)] += tokens
                differences[end] -= tokens
    peak = max(accumulate(growth))
    return 1 - max(accumulate(kept)) / peak if peak else None


def _closing_steps(turns: Sequence[Turn], steps: int) -> list[int]:
    """Find for each turn the step at which its responses leave the context: the next reset, or the end."""
    closes, end = [0] * len(turns), steps + 1
    for index in range(len(turns) - 1, -1, -1):
        closes[index] = end
        if turns[index].reset is not None:
            end = index
    return closes


def _percentiles(name: str, values: Sequence[float], at: Sequence[int]) -> dict[str, Value]:
    if not values:
        return {f"{name}_p{p}": None for p in at}
    return {f"{name}_p{p}": float(np.percentile(values, p)) for p in at}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
