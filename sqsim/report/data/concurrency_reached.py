# SPDX-License-Identifier: Apache-2.0
"""Concurrency that a run reached: the number asked for, bounded by the number of root tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqsim.report.data.measures import counted, joined, number
from sqsim.report.data.sources import Point


def _roots(points: Sequence[Point]) -> dict[int, int]:
    """Map the number of all tasks to the number of root tasks, from records that hold every counted task."""
    found = {}
    for point in points:
        total = number(point.metrics.get("tasks_total"))
        if point.record is not None and point.record.complete and point.record.tasks.num_rows == total:
            found[point.record.tasks.num_rows] = point.record.tasks["parent"].null_count
    return found


def concurrency_reached(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Give each point the concurrency it reached, and warn where that is less than was asked for.

    Sub-agents take no place of their own. Where no record tells roots from sub-agents, the number of all tasks is the bound.
    The number asked for stays as the label `asked`.
    """
    roots = _roots(points)
    reached: list[Point] = []
    never: dict[int, set[int]] = {}
    for point in points:
        total = number(point.metrics.get("tasks_total"))
        bound = None if not total else roots.get(int(total), int(total))
        asked = point.concurrency
        if (
            asked is None
            or bound is None
            or asked <= bound
            or (point.record is not None and not point.record.complete)
        ):
            reached.append(point)
            continue
        never.setdefault(bound, set()).add(asked)
        reached.append(replace(point, labels={**point.labels, "concurrency": bound, "asked": asked}))
    return reached, [_sentence(bound, sorted(asked)) for bound, asked in sorted(never.items())]


def _sentence(bound: int, asked: Sequence[int]) -> str:
    were = "was" if len(asked) == 1 else "were"
    return (
        f"Only {counted(bound, 'task')}: {joined(list(map(str, asked)))} at a time {were} never reached, and the page says {bound}; "
        "use resample: true with tasks: a number of at least that, or a trace with more tasks."
    )
