# SPDX-License-Identifier: Apache-2.0
"""Find when a task last needs each tool response (METHOD.md, "last use"; SPEC.md, "Words").

Steps are counted as turns are, and the answer is step `len(turns)`. A cursor opened by turn j is first read
by step j + 1 and referred to by the steps whose `uses` name it. This is the future of a task: outside
`sqsim.trace`, only the oracle, the aux thread's decision model and the metrics may read it (law 4).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from sqsim.base.random_streams import generator
from sqsim.trace.schema import Carried, Task


def references(task: Task) -> dict[int, list[int]]:
    """List for every cursor of the task, in the order they were opened, the steps that refer to it, ascending."""
    steps: dict[int, list[int]] = {cursor: [] for cursor in first_reads(task)}
    for index, turn in enumerate(task.turns):
        for cursor in turn.uses:
            steps[cursor].append(index)
    for cursor in task.answer.uses if task.answer is not None else ():
        steps[cursor].append(len(task.turns))
    return steps


def first_reads(task: Task) -> dict[int, int]:
    """Find the first step whose prompt holds each response: the one after the call, whether it was recorded or not."""
    return {
        call.cursor: index + 1
        for index, turn in enumerate(task.turns)
        for call in turn.calls
        if call.cursor is not None
    }


def last_uses(task: Task) -> dict[int, int]:
    """Find the step of every cursor's last use, never before the step that first reads the response."""
    steps = references(task)
    return {cursor: max([read, *steps[cursor]]) for cursor, read in first_reads(task).items()}


def uses_after(steps: Sequence[int], step: int) -> int:
    """Count the uses of a cursor from `step` on, which its eviction at boundary `step` loses."""
    return len(steps) - bisect_left(steps, step)


# FORMATS.md, "Last use": guesses from what recorded runs show (two modes: the next step only, or an anchor
# that comes back after long silence). Never used: 0.3-0.5 of the responses.
NEVER = 0.4
NEXT_ONLY, GEOMETRIC = 0.35, 0.30  # of the used ones; the rest, 0.35, are anchors
GEOMETRIC_MEAN = 4.0  # steps from the call to the last use
SILENT_STEPS = 6  # the least number of steps in which an anchor is not used
COMES_BACK = 0.3  # a used response is used by the task's last step as well


def synthesise_uses(task: Task, seed: int) -> Task:
    """Draw references for a task: recorded uses are replaced, and `carries.references` becomes synthesised.

    Each cursor's uses are keyed by (seed, task, cursor), so a task's references do not depend on the others'.
    """
    last = task.steps - 1
    uses: list[list[int]] = [[] for _ in range(task.steps)]
    for cursor, read in first_reads(task).items():
        end = last
        for index in range(read, len(task.turns)):
            if task.turns[index].reset is not None:  # a compaction closes the cursor before this step
                end = index - 1
                break
        draws = generator(seed, "uses", task.task_id, cursor)
        for step in _drawn_uses(draws, read, end, last):
            uses[step].append(cursor)
    return with_uses(task, uses, "synthesised")


def _drawn_uses(draws: np.random.Generator, read: int, end: int, last: int) -> list[int]:
    """Draw the steps from `read` to `end` that use a response; `last` is the task's last step."""
    if read > end or draws.random() < NEVER:
        return []
    steps = {read}
    kind = draws.random()
    if NEXT_ONLY <= kind < NEXT_ONLY + GEOMETRIC:
        # read is one step after the call, so an age of 1 is the next step only
        steps.add(min(end, read - 1 + int(draws.geometric(1 / GEOMETRIC_MEAN))))
    elif kind >= NEXT_ONLY + GEOMETRIC:
        step = read
        while (step := step + SILENT_STEPS + int(draws.geometric(1 / GEOMETRIC_MEAN)) - 1) <= end:
            steps.add(step)
    if end == last and draws.random() < COMES_BACK:
        steps.add(last)
    return sorted(steps)


def with_uses(task: Task, uses: Sequence[Sequence[int]], how: Carried) -> Task:
    """Give a task these uses, one sequence of cursors a step, and the method that found them."""
    turns = tuple(
        turn.model_copy(update={"uses": tuple(sorted(set(uses[index])))})
        for index, turn in enumerate(task.turns)
    )
    answer = task.answer and task.answer.model_copy(update={"uses": tuple(sorted(set(uses[len(turns)])))})
    carries = task.carries.model_copy(update={"references": how})
    return task.model_copy(update={"turns": turns, "answer": answer, "carries": carries})
