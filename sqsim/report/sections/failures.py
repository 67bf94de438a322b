# SPDX-License-Identifier: Apache-2.0
"""Failed tasks in one sentence for each panel: their number, runs and limit, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.report.data.measures import FAILED, counted, number, written
from sqsim.report.data.sources import Panel, Point
from sqsim.report.html.markup import warning

_FIXES = {
    "context_limit": "Choose a model with a longer context, or leave such tasks out of the trace.",
    "turn_limit": "Raise max_turns.",
}
_LISTED = 3
"""Most kinds of failure that are listed run by run; for more, the sentence gives a range."""


def _limit(reason: str, panel: Panel) -> str:
    """Write `context_limit (131,072 tokens)` where the kept runs agree on the limit."""
    if reason == "context_limit":
        known = {run.get("context_length") for run in panel.runs}
        noun = "token"
    elif reason == "turn_limit":
        known = {(run.get("scenario") or {}).get("max_turns") for run in panel.runs}
        noun = "turn"
    else:
        return reason
    value = known.pop() if len(known) == 1 else None
    return reason if not isinstance(value, int) else f"{reason} ({counted(value, noun)})"


def _reasons(point: Point) -> dict[str, int | float]:
    return {
        key.removeprefix("failed_"): count
        for key, value in point.metrics.items()
        if key.startswith("failed_") and (count := number(value))
    }


def _why(point: Point, panel: Panel) -> str:
    reasons = _reasons(point)
    if len(reasons) == 1:
        return _limit(next(iter(reasons)), panel)
    return ", ".join(f"{int(count):,} {_limit(reason, panel)}" for reason, count in reasons.items()) or (
        "no reason given"
    )


def _tasks(point: Point) -> str:
    """Write `14 of 88 tasks fail`, noting where sub-agents count."""
    failed, total = point.metrics.get(FAILED.key), point.metrics.get("tasks_total")
    with_children = (
        point.record is not None and point.record.tasks["parent"].null_count < point.record.tasks.num_rows
    )
    children = " (sub-agents included)" if with_children else ""
    fail = "fails" if failed == 1 else "fail"
    return f"{written(failed)} of {counted(total, 'task')}{children} {fail}"


def _places(points: Sequence[Point], panel: Panel) -> str:
    if panel.swept != "concurrency" or None in {point.concurrency for point in points}:
        return ", ".join(map(panel.name, points))
    variants: dict[str, list[str]] = {}
    for point in points:
        variants.setdefault(point.variant, []).append(f"{point.concurrency}")
    return ", ".join(
        f"{variant} · {', '.join(loads)} {'task' if loads == ['1'] else 'tasks'} at a time"
        for variant, loads in variants.items()
    )


def _where_and_why(panel: Panel) -> str | None:
    bad = [point for point in panel.points if number(point.metrics.get(FAILED.key))]
    if not bad:
        return None
    kinds: dict[tuple[str, str, str], list[Point]] = {}
    for point in bad:
        numbers = (written(point.metrics.get(FAILED.key)), written(point.metrics.get("tasks_total")))
        kinds.setdefault((*numbers, _why(point, panel)), []).append(point)
    if len(kinds) == 1 and len(bad) == len(panel.points):
        points = next(iter(kinds.values()))
        # Only kept records distinguish sub-agents from root tasks.
        best = next((point for point in points if point.record is not None), points[0])
        every = " in every run of this panel" if len(bad) > 1 else ""
        return f"{_tasks(best)}{every}: {_why(best, panel)}."
    if len(kinds) <= _LISTED:
        parts = [f"{_places(points, panel)}: {_tasks(points[0])}, {why}" for (*_, why), points in kinds.items()]
        return f"{'; '.join(parts)}."
    counts = [number(point.metrics[FAILED.key]) or 0 for point in bad]
    names = dict.fromkeys(_limit(reason, panel) for point in bad for reason in _reasons(point))
    span = f"{min(counts):,.0f}" if min(counts) == max(counts) else f"{min(counts):,.0f} to {max(counts):,.0f}"
    totals = {written(point.metrics.get("tasks_total")) for point in bad}
    of = f" of {totals.pop()}" if len(totals) == 1 else ""
    return (
        f"{span}{of} tasks fail in {len(bad)} of the {counted(len(panel.points), 'run')} of this panel: "
        f"{', '.join(names) or 'no reason given'}."
    )


def failing(panel: Panel) -> str | None:
    """State how many tasks of a panel fail, where, why, and the remedy; None where none fails."""
    text = _where_and_why(panel)
    if text is None:
        return None
    reasons = dict.fromkeys(reason for point in panel.points for reason in _reasons(point))
    return " ".join([text, *(_FIXES[reason] for reason in reasons if reason in _FIXES)])


def failures(panel: Panel) -> str:
    """Write the same as a warning, with the effect of failed tasks on the numbers; empty where none fails."""
    text = failing(panel)
    if text is None:
        return ""
    return warning(
        f"{text} Tokens of failed tasks count in throughput, their early end shortens the run, and they lower mean peak tokens."
    )
