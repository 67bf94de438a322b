# SPDX-License-Identifier: Apache-2.0
"""Figures over recall: the decisions needed for the published reductions, and reductions beyond any decision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sqsim.report.data import published
from sqsim.report.data.measures import (
    PEAK_TOKENS,
    READS_MAIN,
    Measure,
    Value,
    change,
    full,
    number,
    percent,
)
from sqsim.report.data.palette import Palette
from sqsim.report.data.sources import Panel, Point
from sqsim.report.html.figure import Figure, Trace, axis, grid, line, plain
from sqsim.report.html.markup import badge, escape, missing, unbroken
from sqsim.report.sections.failures import failures
from sqsim.report.sections.sweeps import Level, Series, levels, numbers_table, source, swept


def crossing(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Find the x at which a piecewise linear curve first reaches `target`; None where it never does."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 == target:
            return x0
        if (y0 - target) * (y1 - target) < 0:
            return x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return points[-1][0] if points and points[-1][1] == target else None


def _change(point: Point, base: Point, measure: Measure) -> float | None:
    return change(point.metrics.get(measure.key), base.metrics.get(measure.key))


def _changes(points: Sequence[Point], base: Point, measure: Measure) -> list[tuple[float, float]]:
    pairs = [(number(p.labels["recall"]), _change(p, base, measure)) for p in points]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    if not points or not points[0][0] <= x <= points[-1][0]:
        return None
    return float(np.interp(x, [x for x, _ in points], [y for _, y in points]))


def _recall_needed(one: Series, base: Point) -> tuple[list[str], list[float]]:
    """State the recall that gives the published reductions of peak tokens, and the reductions that none gives."""
    peaks, reads = (_changes(one.points, base, measure) for measure in (PEAK_TOKENS, READS_MAIN))
    if not peaks:
        return [f"{one.name}: peak tokens are not available."], []
    lines, missed = list[str](), list[float]()
    for target in (published.PEAK_TOKENS.high, published.PEAK_TOKENS.low):
        found = crossing(peaks, target)
        if found is None:
            missed.append(target)
            continue
        then = _at(reads, found)
        text = "not available" if then is None else percent(then)
        lines.append(
            f"{one.name}: {percent(target)} peak tokens takes a recall of {found:.2f} (interpolated); KV reads then change by {text}."
        )
    if missed:
        x, y = min(peaks, key=lambda pair: pair[1])
        targets = " and ".join(map(percent, missed))
        lines.append(
            f"{one.name}: {targets} peak tokens {'is' if len(missed) == 1 else 'are'} not reached in this sweep; "
            f"the furthest is {percent(y)}, at recall {x:g}."
        )
    return lines, missed


def _why(base: Point, oracle: Level, missed: Sequence[float]) -> str | None:
    """Explain, by the oracle, the reductions that were not reached."""
    peak, reads = (_change(oracle.point, base, measure) for measure in (PEAK_TOKENS, READS_MAIN))
    if peak is None or not missed:
        return None
    kinds = oracle.panel.references
    references = f"these {'synthesised ' if 'synthesised' in kinds else ''}references"
    text = (
        f"The oracle, which evicts every response right after its last use, reaches {percent(peak)} peak tokens and {percent(reads)} KV reads "
        "at the same load and capacity"
    )
    beyond = [target for target in missed if target < peak]
    if len(beyond) == len(missed):
        return f"Why not? {text}: with {references} the rest of the context is not stale; freeing more evicts what is needed later."
    rest = f" {' and '.join(map(percent, beyond))} is beyond it." if beyond else ""
    return f"Why not? {text}: the sweep misses it because responses are evicted late or not at all.{rest}"


def _figure(
    measure: Measure,
    known: published.Published | None,
    series: Sequence[Series],
    base: Point,
    oracle: Point | None,
    palette: Palette,
) -> Figure:
    traces: list[Trace] = []
    for name, points in series:
        changes = [_change(p, base, measure) for p in points]
        hover = [
            f"<b>{plain(name)}</b>, recall {p.labels['recall']}<br>{full(p.metrics.get(measure.key))} {measure.unit}"
            f"<br>{percent(value)} against {plain(base.variant)}"
            for p, value in zip(points, changes, strict=True)
        ]
        y: list[Value] = [None if value is None else 100 * value for value in changes]
        traces.append(line(name, palette.look(name), [p.labels["recall"] for p in points], y, hover))
    summary = "; ".join(
        f"{name}: " + ", ".join(f"{percent(y)} at recall {x:g}" for x, y in _changes(points, base, measure))
        for name, points in series
    )
    caption = _caption(known, [_changes(points, base, measure) for _, points in series])
    if oracle is not None and (level := _change(oracle, base, measure)) is not None:
        recalls = [number(p.labels["recall"]) or 0.0 for one in series for p in one.points]
        hover = [f"<b>{plain(oracle.variant)}</b>: {percent(level)} against {plain(base.variant)}"] * 2
        ends = [min(recalls), max(recalls)]
        look = palette.look(oracle.variant)
        traces.append(line(oracle.variant, look, ends, [100 * level] * 2, hover, mode="lines"))
        summary += f"; {oracle.variant}: {percent(level)}"
        caption += f" Level line: {oracle.variant}, {percent(level)}."
    drawn = [value for trace in traces for value in trace["y"] if value is not None]
    bottom = min([0 if known is None else 100 * known.low, *drawn])
    layout: dict[str, Any] = {
        "xaxis": axis("recall (probability)"),
        "yaxis": axis(f"change against {base.variant} (%)", range=[bottom - 4, max([0, *drawn]) + 3]),
    }
    if known is None:
        return Figure(f"{measure.name}, change", caption, f"{summary}.", traces, layout)
    layout |= _band(100 * known.low, 100 * known.high, known.change)
    return Figure(f"{measure.name}, change", caption, f"{summary}. Published: {known.change}.", traces, layout)


def _caption(known: published.Published | None, curves: Sequence[Sequence[tuple[float, float]]]) -> str:
    if known is None:
        return "Lower is better."
    enters = any(
        crossing(curve, known.high) is not None or any(known.low <= y <= known.high for _, y in curve)
        for curve in curves
    )
    if enters:
        return "Follow the curve to where it enters the band."
    return "No curve of this sweep enters the band."


def _band(low: float, high: float, change: str) -> dict[str, Any]:
    """Draw the paper's range as a band behind the curves (%)."""
    return {
        "shapes": [
            {
                "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high,
                "fillcolor": published.COLOUR, "opacity": 0.13, "line": {"width": 0}, "layer": "below",
            }
        ],
        "annotations": [
            {
                # At the far end of the band, which curves and the oracle enter from above.
                "xref": "paper", "x": 0.01, "xanchor": "left", "y": low, "yanchor": "bottom", "showarrow": False,
                "text": f"published: {change}", "font": {"size": 12, "color": published.COLOUR},
            }
        ],
    }  # fmt: skip


def recall_sweep(panel: Panel, others: Sequence[Panel], palette: Palette) -> str:
    """Draw peak tokens and KV reads over the recall of the decision model, with the published ranges and the oracle's level."""
    series = swept(panel)
    if not series:
        return missing(
            "This panel holds no point with a recall.",
            "a study with `kind: recall_sweep, vary: {policy.recall: [0.5, 0.7, 0.85, 1.0]}`",
        )
    reference, oracle = levels(panel, others)
    if reference is None:
        return missing(
            "No run with policy none under the same load, so there is no change to draw."
        ) + numbers_table(panel, series, ())
    base = reference.point
    lines, missed = list[str](), list[float]()
    shown_beside = published.applies(panel)
    for one in series if shown_beside else ():
        own, not_reached = _recall_needed(one, base)
        lines += own
        missed += not_reached
    if oracle is not None and (why := _why(base, oracle, missed)) is not None:
        lines.append(why)
    found = "".join(f"<li>{unbroken(text)}</li>" for text in lines)
    names = [*(one.name for one in series), *([] if oracle is None else [oracle.point.variant])]
    figures = [
        _figure(
            measure,
            known if shown_beside else None,
            series,
            base,
            None if oracle is None else oracle.point,
            palette,
        ).html()
        for measure, known in ((PEAK_TOKENS, published.PEAK_TOKENS), (READS_MAIN, published.KV_READS))
    ]
    compared = (
        "Recall is the probability that an aux thread names a response that has expired. "
        f"Compared with {base.variant}{source(panel, reference, oracle)}."
    )
    bands = f" Bands are {badge('published')}."
    return "".join(
        [
            palette.key(dict.fromkeys(names)),
            f'<ul class="found">{found}</ul>' if found else "",
            f"<p>{escape(compared)}{bands if shown_beside else ''}</p>",
            grid(figures),
            numbers_table(panel, series, (reference, oracle)),
            failures(panel),
        ]
    )
