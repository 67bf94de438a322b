# SPDX-License-Identifier: Apache-2.0
"""Curves of throughput, task time, KV usage and TTFT over the number of tasks at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.report.data import kv_full, published
from sqsim.report.data.measures import (
    COMPLETED,
    FAILED,
    KV_MEAN,
    KV_PEAK,
    OUTPUT_TOK_S,
    RELEASED,
    RETRACTIONS,
    RUN_TIME,
    TASK_P50,
    TASK_P90,
    TASK_P99,
    TOTAL_TOK_S,
    TPOT_P50,
    TPOT_P90,
    TTFT_P50,
    TTFT_P90,
    TTFT_P99,
    Measure,
    counted,
    full,
    number,
    written,
)
from sqsim.report.data.palette import Palette
from sqsim.report.data.sources import Panel, Point
from sqsim.report.html.figure import Figure, Trace, axis, concurrency_axis, grid, line, merged, plain
from sqsim.report.html.markup import Choice, chooser, details, escape, paragraph, table, value_cell, warning

_COLUMNS = (
    OUTPUT_TOK_S, TOTAL_TOK_S, RUN_TIME, TASK_P50, TASK_P90, KV_PEAK, RETRACTIONS, RELEASED,
    TTFT_P50, TTFT_P90, TPOT_P50, COMPLETED, FAILED,
)  # fmt: skip


class _Plot:
    """Figures to choose from at one of the four places of the grid."""

    def __init__(self, label: str, caption: str, measures: Sequence[Measure]) -> None:
        self.label, self.caption, self.measures = label, caption, measures


_PLOTS = (
    _Plot(
        "Throughput",
        "Higher is better. Look for the variant that keeps rising after the ringed points.",
        (OUTPUT_TOK_S, TOTAL_TOK_S),
    ),
    _Plot(
        "Task time",
        "Lower is better. The time of one task, from its arrival to its answer, tool waits included.",
        (TASK_P50, TASK_P90, TASK_P99, RUN_TIME),
    ),
    _Plot(
        "Memory",
        "The share of the full-attention KV slots in use; from the dotted line on KV counts as full.",
        (KV_PEAK, KV_MEAN, RETRACTIONS, RELEASED),
    ),
    _Plot(
        "Main's latency",
        "Lower is better. Queueing time counts: TTFT climbs once requests have to wait for admission.",
        (TTFT_P50, TTFT_P90, TTFT_P99, TPOT_P50, TPOT_P90),
    ),
)


def _hover(point: Point, measure: Measure) -> str:
    value = full(point.metrics.get(measure.key))
    return (
        f"<b>{plain(point.variant)}</b>, {counted(point.concurrency, 'task')} at a time<br>"
        f"{plain(measure.name)}: {value} {plain(measure.unit)}<br>{kv_full.why_full(point)}"
    )


def _ring(points: Sequence[Point], measure: Measure, variant: str, palette: Palette) -> Trace | None:
    point = next((one for one in points if kv_full.is_full(one)), None)
    if point is None or number(point.metrics.get(measure.key)) is None:
        return None
    ring = line(
        variant,
        palette.look(variant),
        [point.concurrency],
        [point.metrics[measure.key]],
        [f"<b>KV is full from here</b><br>{_hover(point, measure)}"],
    )
    return merged(
        ring,
        {
            "mode": "markers",
            "marker": {"symbol": "circle-open", "size": 18, "line": {"width": 2}},
        },
    )


def _published() -> Trace:
    points = published.THROUGHPUT_POINTS
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "published",
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "text": [f"published:<br>{who}" for _, _, who in points],
        # Throughput rises with concurrency, so no curve passes above and left of a point that lies on or over it.
        "textposition": ["top left", "middle left"],
        "textfont": {"size": 11, "color": published.COLOUR},
        "hovertext": [f"{published.WHERE}<br>{who}: {y:,} tok/s at {x} tasks" for x, y, who in points],
        "hoverinfo": "text",
        "marker": {"symbol": "asterisk-open", "size": 11, "color": published.COLOUR, "line": {"width": 2}},
    }


def _summary(panel: Panel, measure: Measure) -> str:
    parts = []
    for variant in panel.variants:
        points = [p for p in panel.of(variant) if number(p.metrics.get(measure.key)) is not None]
        if not points:
            parts.append(f"{variant}: not available")
            continue
        ends = [points[0], points[-1]] if len(points) > 1 else points
        text = ", ".join(f"{written(p.metrics[measure.key])} at {p.concurrency}" for p in ends)
        full_at = kv_full.fills_at(panel, variant)
        parts.append(
            f"{variant}: {text}" + (f", KV full from {full_at.concurrency}" if full_at else ", KV never full")
        )
    return f"{measure.title} against tasks at a time. {'; '.join(parts)}."


def _figure(panel: Panel, measure: Measure, caption: str, palette: Palette, with_published: bool) -> Figure:
    traces: list[Trace] = []
    for variant in panel.variants:
        points = panel.of(variant)
        look = palette.look(variant)
        values = [point.metrics.get(measure.key) for point in points]
        hover = [_hover(point, measure) for point in points]
        traces.append(line(variant, look, [point.concurrency for point in points], values, hover))
        if ring := _ring(points, measure, variant, palette):
            traces.append(ring)
    layout: dict[str, Any] = {
        "xaxis": concurrency_axis(panel.concurrencies),
        "yaxis": axis(measure.title, rangemode="tozero"),
    }
    if marks := with_published and measure in (OUTPUT_TOK_S, TOTAL_TOK_S):
        traces.append(_published())
    if measure is KV_PEAK:
        layout["shapes"] = [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": kv_full.FULL, "y1": kv_full.FULL,
                "line": {"dash": "dot", "width": 1, "color": "#6b7785"},
            }
        ]  # fmt: skip
    note = f" Asterisks: {published.WHERE}." if marks else ""
    return Figure(measure.name, caption + note, _summary(panel, measure), traces, layout, titled=False)


def _table(panel: Panel) -> str:
    rows = [
        [
            escape(point.variant),
            str(point.concurrency),
            *(value_cell(point.metrics.get(measure.key)) for measure in _COLUMNS),
        ]
        for variant in panel.variants
        for point in panel.of(variant)
    ]
    head = ["variant", "tasks at a time", *(escape(measure.title) for measure in _COLUMNS)]
    return table(head, rows, f"{panel.title}: every point", "data sortable", row_heads=2)


def curves(panel: Panel, palette: Palette, with_published: bool) -> str:
    """Write the key, four figures, and their numbers as a table."""
    if not panel.concurrencies:
        return ""
    figures = [
        chooser(
            f"{panel.ident}-curve-{place}",
            plot.label,
            [
                Choice(m.title, _figure(panel, m, plot.caption, palette, with_published).html())
                for m in plot.measures
            ],
        )
        for place, plot in enumerate(_PLOTS)
    ]
    one = (
        warning(
            "There is a single point per variant: a curve needs runs at several numbers of tasks at a time."
        )
        if len(panel.concurrencies) == 1
        else ""
    )
    return "\n".join(
        [
            palette.key(panel.variants),
            paragraph(filled) if (filled := kv_full.filling(panel)) is not None else "",
            f'<p class="rule"><span class="ring" aria-hidden="true"></span> {escape(kv_full.RULE)} The ring marks that point.</p>',
            one,
            grid(f'<div class="cell">{figure}</div>' for figure in figures),
            details("All numbers of these curves", _table(panel)),
        ]
    )
