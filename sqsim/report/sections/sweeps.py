# SPDX-License-Identifier: Apache-2.0
"""Series, level lines and table of the K sweep and the recall sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqsim.report.data.measures import (
    AUX_LATE,
    AUX_TOKENS,
    EVICTED_THEN_USED,
    EVICTIONS,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    READS_AUX,
    READS_MAIN,
    RUN_TIME,
    Measure,
    Value,
    change,
    number,
    percent,
)
from sqsim.report.data.sources import Panel, Point
from sqsim.report.html.markup import details, escape, table, value_cell
from sqsim.report.sections.side_by_side import baseline

_COLUMNS = (
    PEAK_TOKENS, READS_MAIN, READS_AUX, AUX_TOKENS, AUX_LATE, EVICTIONS, EVICTED_THEN_USED, OUTPUT_TOK_S, RUN_TIME,
)  # fmt: skip


class Series(NamedTuple):
    """Points of one variant in ascending order of the swept label."""

    name: str
    points: list[Point]


def swept(panel: Panel) -> list[Series]:
    """List the points with the swept label in ascending order, a series for each variant."""
    key = panel.swept
    groups: dict[str, list[Point]] = {}
    for point in panel.points:
        if point.policy != "none" and number(point.labels.get(key)) is not None:
            groups.setdefault(point.variant, []).append(point)
    return [
        Series(name, sorted(points, key=lambda point: number(point.labels[key]) or 0))
        for name, points in groups.items()
    ]


class Level(NamedTuple):
    """Run outside the sweep, drawn as a level line."""

    point: Point
    panel: Panel


def _first_oracle(points: Sequence[Point]) -> Point | None:
    return next((point for point in points if point.is_oracle), None)


def _level(
    panel: Panel, others: Sequence[Panel], pick: Callable[[Sequence[Point]], Point | None]
) -> Level | None:
    if (own := pick(panel.points)) is not None:
        return Level(own, panel)
    alike = {_work(p) for p in panel.points}
    for other in others:
        if other.origin is None or other.origin != panel.origin or len(other.systems | panel.systems) > 1:
            continue
        fitting = [p for p in other.points if _work(p) in alike]
        if (found := pick(fitting)) is not None:
            return Level(found, other)
    return None


def _work(point: Point) -> tuple[Value, ...]:
    """Identify the work of a run and its system. Trajectories are held fixed, so main's output identifies the tasks."""
    keys = ("kv_capacity_tokens", "tasks_total", "tasks_failed", "output_tokens")
    return (point.concurrency, *(point.metrics.get(key) for key in keys))


def levels(panel: Panel, others: Sequence[Panel]) -> tuple[Level | None, Level | None]:
    """Find the run without eviction and the oracle's, in the panel itself or in another one.

    Another panel's runs are used only if they are the same work on the same system: the same study, load and capacity,
    and the same number of tasks with the same output.
    """
    return _level(panel, others, baseline), _level(panel, others, _first_oracle)


def source(panel: Panel, *shown: Level | None) -> str:
    """Name the panel of the level lines, if it is another one."""
    titles = dict.fromkeys(one.panel.title for one in shown if one is not None and one.panel is not panel)
    return "".join(f" (from “{title}”: same study, tasks, load and capacity)" for title in titles)


def numbers_table(panel: Panel, series: Sequence[Series], shown: Sequence[Level | None]) -> str:
    """Tabulate every number of a sweep, the level runs first; changes are relative to the first of them."""
    base = shown[0].point if shown and shown[0] is not None else None
    fixed = [one.point for one in shown if one is not None]

    def cell(point: Point, measure: Measure) -> str:
        text = value_cell(point.metrics.get(measure.key))
        if base is None or point is base or measure not in (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S, RUN_TIME):
            return text
        return f'{text}<span class="change">{percent(change(point.metrics.get(measure.key), base.metrics.get(measure.key)))}</span>'

    label = "K" if panel.swept == "k" else panel.swept
    rows = [
        [
            escape(point.variant),
            "—" if point in fixed else value_cell(point.labels.get(panel.swept)),
            *(cell(point, measure) for measure in _COLUMNS),
        ]
        for point in [*fixed, *(point for one in series for point in one.points)]
    ]
    head = ["variant", label, *(escape(measure.title) for measure in _COLUMNS)]
    return details(
        "All numbers of this sweep", table(head, rows, f"{panel.title}: every point", "data", row_heads=2)
    )
