# SPDX-License-Identifier: Apache-2.0
"""Policies side by side under one load: a figure of the changes, and the numbers with their differences."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from sqsim.record.definitions import DEFINITIONS
from sqsim.report.data import kv_full, published
from sqsim.report.data.measures import (
    COMPLETED,
    EVICTED_THEN_USED,
    FAILED,
    GROUPS,
    KV_PEAK,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    READS_MAIN,
    RUN_TIME,
    TASK_P50,
    TOTAL_TOK_S,
    TPOT_P50,
    TTFT_P50,
    Measure,
    change,
    counted,
    full,
    number,
    percent,
    share,
)
from sqsim.report.data.palette import Palette
from sqsim.report.data.sources import Panel, Point
from sqsim.report.html.figure import GRID, Figure, Trace, axis, plain
from sqsim.report.html.markup import Choice, badge, chooser, details, escape, missing, table, value_cell
from sqsim.report.sections.evicted_then_used import evicts, share_needed_later

_PICTURED = (
    OUTPUT_TOK_S,
    TOTAL_TOK_S,
    RUN_TIME,
    TASK_P50,
    KV_PEAK,
    PEAK_TOKENS,
    READS_MAIN,
    TTFT_P50,
    TPOT_P50,
)
_WITHOUT_CHANGE = {COMPLETED.key, FAILED.key, "regret_tokens"}
_EDGE = 150  # %; a queue that grows a hundredfold must not hide every other change


def baseline(points: Sequence[Point]) -> Point | None:
    """Choose the baseline: `none` with the cache that servers run today, else any `none`."""
    nones = [point for point in points if point.policy == "none"]
    return next(
        (point for point in nones if point.labels.get("cache", "radix") == "radix"), nones[0] if nones else None
    )


def comparison_concurrency(panel: Panel) -> int | None:
    """Choose the concurrency shown first: where the baseline fills its KV cache, else 24 as in the paper, else the highest."""
    base = baseline(panel.points)
    if base is not None and (point := kv_full.fills_at(panel, base.variant)) is not None:
        return point.concurrency
    values = panel.concurrencies
    return 24 if 24 in values else values[-1] if values else None


def _bands(shown: Sequence[Measure]) -> list[Trace]:
    """Draw the paper's own changes, a band for each row."""
    known = [(row, published.PUBLISHED[m.key]) for row, m in enumerate(shown) if m.key in published.PUBLISHED]
    return [
        {
            "type": "scatter", "mode": "lines+markers", "name": "published",
            "x": [100 * one.low, 100 * one.high], "y": [row, row],
            "hoverinfo": "text", "hovertext": f"published: {one.change}", "opacity": 0.35,
            "line": {"color": published.COLOUR, "width": 9},
            "marker": {"symbol": "line-ns-open", "size": 22, "color": published.COLOUR, "line": {"width": 3}},
        }
        for row, one in known
    ]  # fmt: skip


def _dots(point: Point, base: Point, shown: Sequence[Measure], offset: float, palette: Palette) -> Trace:
    """Draw a variant's changes, a row for each measure; an arrow head at the edge is a value beyond it."""
    look = palette.look(point.variant)
    changes = [change(point.metrics.get(m.key), base.metrics.get(m.key)) for m in shown]
    return {
        "type": "scatter", "mode": "markers", "name": plain(point.variant), "legendgroup": point.variant,
        "x": [None if value is None else min(100 * value, _EDGE) for value in changes],
        "y": [row + offset for row in range(len(shown))],
        "hoverinfo": "text",
        "text": [
            f"<b>{plain(point.variant)}</b><br>{plain(m.name)}: {full(point.metrics.get(m.key))} {plain(m.unit)}"
            f"<br>{percent(value)} against {plain(base.variant)}"
            for m, value in zip(shown, changes, strict=True)
        ],
        "marker": {
            "color": look.colour, "size": 10, "line": {"width": 1.5, "color": look.colour},
            "symbol": ["triangle-right" if value is not None and 100 * value > _EDGE else look.marker for value in changes],
        },
    }  # fmt: skip


def _picture(points: Sequence[Point], base: Point, palette: Palette, with_published: bool) -> Figure | None:
    others = [point for point in points if point is not base]
    shown = [
        m
        for m in _PICTURED
        if any(change(p.metrics.get(m.key), base.metrics.get(m.key)) is not None for p in others)
    ]
    if not others or not shown:
        return None
    traces = _bands(shown) if with_published else []
    # Variants of one row are drawn below each other, so that equal values stay visible.
    step = min(0.15, 0.7 / len(others))
    for place, point in enumerate(others):
        traces.append(_dots(point, base, shown, step * (place - (len(others) - 1) / 2), palette))
    lines = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": row + 0.5, "y1": row + 0.5, "line": {"width": 1, "color": GRID}}
        for row in range(len(shown) - 1)
    ]  # fmt: skip
    layout = {
        "xaxis": axis("change (%)", zeroline=True, zerolinewidth=2),
        "yaxis": axis(
            "",
            range=[len(shown) - 0.5, -0.5],
            tickvals=list(range(len(shown))),
            ticktext=["<br>".join(map(plain, wrap(measure.name, 18))) for measure in shown],
            showgrid=False,
            zeroline=False,
        ),
        "shapes": lines,
    }
    summary = "; ".join(
        f"{point.variant}: "
        + ", ".join(
            f"{m.name} {percent(change(point.metrics.get(m.key), base.metrics.get(m.key)))}" for m in shown
        )
        for point in others
    )
    caption = f"Right of zero is more, left is less than {base.variant}. Throughput is better on the right, everything else on the left."
    if any("triangle-right" in trace["marker"]["symbol"] for trace in traces):
        caption += f" An arrow head at the right edge means more than +{_EDGE} %."
    if with_published:
        caption += " Purple: what the paper prints for SideQuest, each rate at its own best concurrency."
    title = f"Change against {base.variant}"
    return Figure(title, caption, f"{summary}.", traces, layout, height=90 + 42 * len(shown))


def _cell(point: Point, base: Point | None, measure: Measure) -> str:
    text = value_cell(point.metrics.get(measure.key))
    if measure is EVICTED_THEN_USED and evicts(point) and share_needed_later(point) is not None:
        return f'{text}<span class="change">{share(share_needed_later(point))} of evicted</span>'
    if base is None or point is base or measure.key in _WITHOUT_CHANGE:
        return text
    relative = change(point.metrics.get(measure.key), base.metrics.get(measure.key))
    return text if relative is None else f'{text}<span class="change">{percent(relative)}</span>'


def _published_cell(measure: Measure) -> str:
    known = published.PUBLISHED.get(measure.key)
    if known is None:
        return ""
    pair = f"{known.uncompressed} → {known.sidequest}" if known.sidequest else ""
    return f'{escape(pair)}<span class="change">{known.change}</span>'


def _table(
    points: Sequence[Point], base: Point | None, palette: Palette, title: str, with_published: bool
) -> str:
    rows: list[list[str]] = []
    for group in GROUPS:
        shown = [m for m in group.measures if any(m.key in point.metrics for point in points)]
        if not shown or (
            group.optional and not any(number(p.metrics.get(m.key)) for m in shown for p in points)
        ):
            continue
        rows.append(
            [f'<span class="group">{escape(group.title)}</span>', *[""] * (len(points) + with_published)]
        )
        rows += [
            [
                f'<span title="{escape(_meaning(m))}">{escape(m.name)}</span> <span class="unit">{escape(m.unit)}</span>',
                *(_cell(point, base, m) for point in points),
                *([_published_cell(m)] if with_published else []),
            ]
            for m in shown
        ]
    head = [
        "",
        *(f"{palette.swatch(p.variant)}<br>{'<br>'.join(map(escape, p.variant.split(' / ')))}" for p in points),
    ]
    if with_published:
        head.append(f"{badge('published')}<br>uncompressed → SideQuest")
    return table(head, rows, title, "data compare few" if len(points) <= 2 else "data compare")


def _meaning(measure: Measure) -> str:
    known = DEFINITIONS.get(measure.key)
    return f"{measure.key}: {known.meaning}" if known is not None else measure.key


def _comparison(
    panel: Panel, points: Sequence[Point], palette: Palette, with_published: bool, opened: bool
) -> str:
    base = baseline(points)
    parts = []
    if base is None and len(points) > 1:
        parts.append(missing("No run with policy none under this load, so no differences can be computed."))
    if base is not None and (figure := _picture(points, base, palette, with_published)) is not None:
        parts += [palette.key([p.variant for p in points if p is not base]), figure.html()]
    title = f"{panel.title}: values"
    if base is not None and len(points) > 1:
        title += f", and their change against {base.variant}"
    numbers = _table(points, base, palette, title, with_published)
    parts.append(numbers if opened else details("All numbers of this comparison", numbers))
    return "".join(parts)


def compare(panel: Panel, palette: Palette, with_published: bool, opened: bool) -> str:
    """Compare at each concurrency, one of them shown; `opened` shows its table at once."""
    where: list[int | None] = [*panel.concurrencies]
    if any(point.concurrency is None for point in panel.points):
        where.append(None)
    choices = [
        Choice(
            f"{counted(value, 'task')} at a time" if value is not None else "the load as given",
            _comparison(panel, points, palette, with_published, opened or len(points) == 1),
        )
        for value in where
        if (points := panel.at(value))
    ]
    if not choices:
        return missing("This panel holds no run.", "sqsim run SCENARIO --output-dir DIR")
    start = comparison_concurrency(panel)
    chosen = where.index(start) if start in where else 0
    return chooser(f"{panel.ident}-compare", "Load", choices, chosen)
