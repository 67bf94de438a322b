"""The K sweep and the recall sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sqsim.report import published
from sqsim.report.concurrency import failures
from sqsim.report.figure import Figure, Trace, axis, grid, line, plain
from sqsim.report.markup import badge, details, escape, missing, table, value_cell
from sqsim.report.measures import (
    AUX_LATE,
    AUX_TOKENS,
    EVICTED_THEN_USED,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    READS_AUX,
    READS_MAIN,
    RUN_TIME,
    Measure,
    Value,
    change,
    full,
    number,
    percent,
    written,
)
from sqsim.report.palette import Palette
from sqsim.report.side_by_side import baseline
from sqsim.report.sources import Panel, Point

_K_MEASURES = (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S, AUX_TOKENS, AUX_LATE, EVICTED_THEN_USED)
_K_CAPTIONS = {
    PEAK_TOKENS: "Rarer decisions leave stale responses resident for longer.",
    READS_MAIN: "What every decoded token reads; follows the resident tokens.",
    OUTPUT_TOK_S: "Main's output alone: aux tokens are not counted as work done.",
    AUX_TOKENS: "The price: halving K about doubles it.",
    AUX_LATE: "Threads that had not finished at the next boundary; their slot is skipped.",
    EVICTED_THEN_USED: "Wrong evictions: a later step referred to the response.",
}
_COLUMNS = (
    PEAK_TOKENS, READS_MAIN, READS_AUX, AUX_TOKENS, AUX_LATE, EVICTED_THEN_USED, OUTPUT_TOK_S, RUN_TIME,
)  # fmt: skip


class _Series(NamedTuple):
    name: str
    points: list[Point]


def _swept(panel: Panel) -> list[_Series]:
    """The points that carry the swept label, one series a variant, in ascending order."""
    key = panel.swept
    groups: dict[str, list[Point]] = {}
    for point in panel.points:
        if point.policy != "none" and number(point.labels.get(key)) is not None:
            groups.setdefault(point.variant, []).append(point)
    return [
        _Series(name, sorted(points, key=lambda point: number(point.labels[key]) or 0))
        for name, points in groups.items()
    ]


def _reference(panel: Panel, others: Sequence[Panel]) -> tuple[Point | None, str]:
    """The run without eviction to compare with, and where it comes from if not from the panel itself.

    Another panel's run serves only under the same load, capacity and number of tasks.
    """
    if (own := baseline(panel.points)) is not None:
        return own, ""
    alike = {
        (p.concurrency, p.metrics.get("kv_capacity_tokens"), p.metrics.get("tasks_total")) for p in panel.points
    }
    for other in others:
        fitting = [
            p
            for p in other.points
            if (p.concurrency, p.metrics.get("kv_capacity_tokens"), p.metrics.get("tasks_total")) in alike
        ]
        if (found := baseline(fitting)) is not None:
            return found, f" (from “{other.title}”: same load, capacity and number of tasks)"
    return None, ""


def _k_figure(measure: Measure, series: Sequence[_Series], base: Point | None, palette: Palette) -> Figure:
    values = sorted({float(number(p.labels["k"]) or 0) for one in series for p in one.points})
    traces: list[Trace] = []
    for name, points in series:
        hover = [
            f"<b>{plain(name)}</b>, K = {p.labels['k']}<br>{plain(measure.name)}: {full(p.metrics.get(measure.key))} {plain(measure.unit)}"
            for p in points
        ]
        x = [p.labels["k"] for p in points]
        traces.append(line(name, palette.look(name), x, [p.metrics.get(measure.key) for p in points], hover))
    level = None if base is None else number(base.metrics.get(measure.key))
    if base is not None and level is not None and measure in (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S):
        hover = [f"<b>{plain(base.variant)}</b>: {full(base.metrics[measure.key])} {plain(measure.unit)}"] * 2
        ends = [min(values), max(values)]
        traces.append(line(base.variant, palette.look(base.variant), ends, [level] * 2, hover, mode="lines"))
    layout = {
        "xaxis": axis(
            "K: turns between aux threads", type="log", tickvals=values, ticktext=[f"{v:g}" for v in values]
        ),
        "yaxis": axis(measure.unit, rangemode="tozero"),
    }
    text = "; ".join(
        f"{name}: " + ", ".join(f"{written(p.metrics.get(measure.key))} at K = {p.labels['k']}" for p in points)
        for name, points in series
    )
    return Figure(measure.name, _K_CAPTIONS[measure], f"{text}.", traces, layout, height=260)


def _table(panel: Panel, series: Sequence[_Series], base: Point | None) -> str:
    shown = ([base] if base is not None else []) + [point for one in series for point in one.points]

    def cell(point: Point, measure: Measure) -> str:
        text = value_cell(point.metrics.get(measure.key))
        if base is None or point is base or measure not in (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S, RUN_TIME):
            return text
        return f'{text}<span class="change">{percent(change(point.metrics.get(measure.key), base.metrics.get(measure.key)))}</span>'

    label = "K" if panel.swept == "k" else panel.swept
    rows = [
        [
            escape(point.variant),
            "—" if point is base else value_cell(point.labels.get(panel.swept)),
            *(cell(point, measure) for measure in _COLUMNS),
        ]
        for point in shown
    ]
    head = ["variant", label, *(escape(measure.title) for measure in _COLUMNS)]
    return details(
        "All numbers of this sweep", table(head, rows, f"{panel.title}: every point", "data", row_heads=2)
    )


def k_sweep(panel: Panel, others: Sequence[Panel], palette: Palette) -> str:
    """Six small figures over K, and their numbers."""
    series = _swept(panel)
    if not series:
        return missing("This panel holds no point with a K.", "sqsim sweep SCENARIO --grid policy.k=1,2,4,8,16")
    base, whence = _reference(panel, others)
    names = [one.name for one in series] + ([base.variant] if base else [])
    note = (
        f"The level line is {base.variant}{whence}."
        if base
        else "No run without eviction is at hand to compare with."
    )
    return "".join(
        [
            palette.key(dict.fromkeys(names)),
            f"<p>{escape(note)}</p>",
            grid((_k_figure(measure, series, base, palette).html() for measure in _K_MEASURES), wide=False),
            _table(panel, series, base),
            failures(panel),
        ]
    )


def crossing(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Where a piecewise linear curve first reaches `target`, along x; None where it never does."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 == target:
            return x0
        if (y0 - target) * (y1 - target) < 0:
            return x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return points[-1][0] if points and points[-1][1] == target else None


def _changes(points: Sequence[Point], base: Point, measure: Measure) -> list[tuple[float, float]]:
    pairs = [
        (number(p.labels["recall"]), change(p.metrics.get(measure.key), base.metrics.get(measure.key)))
        for p in points
    ]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    if not points or not points[0][0] <= x <= points[-1][0]:
        return None
    return float(np.interp(x, [x for x, _ in points], [y for _, y in points]))


def _reached(one: _Series, base: Point) -> list[str]:
    """Which recall gives the published reductions of peak tokens, and what KV reads then do."""
    peaks, reads = (_changes(one.points, base, measure) for measure in (PEAK_TOKENS, READS_MAIN))
    if not peaks:
        return [f"{one.name}: peak tokens are not available."]
    lines = []
    for target in (published.PEAK_TOKENS.high, published.PEAK_TOKENS.low):
        where = crossing(peaks, target)
        if where is None:
            x, y = min(peaks, key=lambda pair: pair[1])
            lines.append(
                f"{one.name}: {percent(target)} peak tokens is not reached in this sweep; the furthest is {percent(y)}, at recall {x:g}."
            )
            continue
        then = _at(reads, where)
        text = "not available" if then is None else percent(then)
        lines.append(
            f"{one.name}: {percent(target)} peak tokens takes a recall of {where:.2f} (interpolated); KV reads then change by {text}."
        )
    return lines


def _recall_figure(
    measure: Measure, known: published.Published, series: Sequence[_Series], base: Point, palette: Palette
) -> Figure:
    traces: list[Trace] = []
    for name, points in series:
        changes = [change(p.metrics.get(measure.key), base.metrics.get(measure.key)) for p in points]
        hover = [
            f"<b>{plain(name)}</b>, recall {p.labels['recall']}<br>{full(p.metrics.get(measure.key))} {measure.unit}"
            f"<br>{percent(value)} against {plain(base.variant)}"
            for p, value in zip(points, changes, strict=True)
        ]
        y: list[Value] = [None if value is None else 100 * value for value in changes]
        traces.append(line(name, palette.look(name), [p.labels["recall"] for p in points], y, hover))
    low, high = 100 * known.low, 100 * known.high
    drawn = [value for trace in traces for value in trace["y"] if value is not None]
    layout = {
        "xaxis": axis("recall: probability that an expired response is named"),
        "yaxis": axis(f"change against {base.variant} (%)", range=[min([low, *drawn]) - 4, max([0, *drawn]) + 3]),
        "shapes": [
            {
                "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high,
                "fillcolor": published.COLOUR, "opacity": 0.13, "line": {"width": 0}, "layer": "below",
            }
        ],
        "annotations": [
            {
                "xref": "paper", "x": 0.01, "xanchor": "left", "y": high, "yanchor": "top", "showarrow": False,
                "text": f"published: {known.change}", "font": {"size": 12, "color": published.COLOUR},
            }
        ],
    }  # fmt: skip
    summary = "; ".join(
        f"{name}: " + ", ".join(f"{percent(y)} at recall {x:g}" for x, y in _changes(points, base, measure))
        for name, points in series
    )
    return Figure(
        f"{measure.name}, change",
        "Follow the curve to where it enters the band.",
        f"{summary}. Published: {known.change}.",
        traces,
        layout,
    )


def recall_sweep(panel: Panel, others: Sequence[Panel], palette: Palette) -> str:
    """Peak tokens and KV reads over the recall of the decision model, with the published ranges."""
    series = _swept(panel)
    if not series:
        return missing(
            "This panel holds no point with a recall.",
            "sqsim sweep SCENARIO --grid policy.recall=0.5,0.7,0.85,1.0",
        )
    base, whence = _reference(panel, others)
    if base is None:
        return missing("No run with policy none under the same load, so there is no change to draw.") + _table(
            panel, series, None
        )
    found = "".join(f"<li>{escape(text)}</li>" for one in series for text in _reached(one, base))
    figures = [
        _recall_figure(measure, known, series, base, palette).html()
        for measure, known in ((PEAK_TOKENS, published.PEAK_TOKENS), (READS_MAIN, published.KV_READS))
    ]
    return "".join(
        [
            palette.key(one.name for one in series),
            f'<ul class="found">{found}</ul><p>Compared with {escape(base.variant + whence)}; bands are {badge("published")}.</p>',
            grid(figures),
            _table(panel, series, base),
            failures(panel),
        ]
    )
