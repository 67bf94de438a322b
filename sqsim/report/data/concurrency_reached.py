"""How many tasks ran at a time: as many as asked for, but no more than there are root tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqsim.report.data.measures import counted, joined, number
from sqsim.report.data.sources import Point


def _roots(points: Sequence[Point]) -> dict[int, int]:
    """Root tasks by the number of all tasks, from the records that hold all the tasks their metrics count."""
    found = {}
    for point in points:
        total = number(point.metrics.get("tasks_total"))
        if point.kept is not None and point.kept.complete and point.kept.tasks.num_rows == total:
            found[point.kept.tasks.num_rows] = point.kept.tasks["parent"].null_count
    return found


def reach(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Points with the number of tasks at a time that they had, and a sentence where fewer than asked for.

    Sub-agents take no place of their own. Where no record tells roots from sub-agents, all tasks bound the number.
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
            or (point.kept is not None and not point.kept.complete)
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
