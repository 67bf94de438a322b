# SPDX-License-Identifier: Apache-2.0
"""Put the model calls of a task and its sub-agents on one clock, for formats that state when each began.

A trace has the waits between model calls but not how long a call took: `TOKEN_S` seconds a generated token (assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqsim.trace.exports.context import Step, steps_of
from sqsim.trace.formats.mooncake import TOKEN_S
from sqsim.trace.schema import Task

ASSUMED = f"a model call's time is {TOKEN_S} s a generated token (assumed)"


class Timed(NamedTuple):
    """Model call with its start and end, seconds from the family's start; `tools_s`: the end of its tools."""

    step: Step
    start_s: float
    end_s: float
    tools_s: float


def clocked(family: Sequence[Task]) -> dict[str, list[Timed]]:
    """Put a root task and its sub-agents, parents first, on one clock; lists by task id, in order of the steps.

    A sub-agent starts when its parent's model call ends; the step that waits for it starts after its end.
    """
    children: dict[str, list[Task]] = {}
    for task in family:
        if task.parent is not None:
            children.setdefault(task.parent.task_id, []).append(task)
    timed: dict[str, list[Timed]] = {}
    # Sub-agents are up to 100 deep, which the stack holds.
    _run(family[0], 0.0, children, timed)
    return timed


def _run(task: Task, start_s: float, children: dict[str, list[Task]], timed: dict[str, list[Timed]]) -> float:
    """Put one task and those below it on the clock; return its end."""
    own: list[Timed] = []
    timed[task.task_id] = own
    joins: dict[int, float] = {}
    now_s = end_s = start_s
    steps = steps_of(task)
    for index, step in enumerate(steps):
        if index:
            turn = steps[index - 1].turn
            assert turn is not None, "only the last step is an answer"
            now_s = max(own[-1].tools_s, joins.get(index, 0.0)) + turn.user_wait_s
        end_s = now_s + TOKEN_S * step.output
        own.append(Timed(step, now_s, end_s, end_s + (step.turn.tool_wait_s if step.turn is not None else 0.0)))
        for child in children.get(task.task_id, ()):
            if child.spawn is not None and child.spawn.turn == index:
                ended_s = _run(child, end_s, children, timed)
                joins[child.spawn.join_turn] = max(ended_s, joins.get(child.spawn.join_turn, 0.0))
    return max([end_s, *joins.values()])
