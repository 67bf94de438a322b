# SPDX-License-Identifier: Apache-2.0
"""Figures over K: costs and savings of rarer decisions."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.report.data.measures import (
    AUX_LATE,
    AUX_TOKENS,
    EVICTED_THEN_USED,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    READS_MAIN,
    Measure,
    full,
    number,
    written,
)
from sqsim.report.data.palette import Palette
from sqsim.report.data.sources import Panel
from sqsim.report.html.figure import Figure, Trace, axis, grid, line, plain
from sqsim.report.html.markup import escape, missing
from sqsim.report.sections.failures import failures
from sqsim.report.sections.sweeps import Level, Series, levels, numbers_table, source, swept

_MEASURES = (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S, AUX_TOKENS, AUX_LATE, EVICTED_THEN_USED)
_LEVELLED = (PEAK_TOKENS, READS_MAIN, OUTPUT_TOK_S)
_CAPTIONS = {
    PEAK_TOKENS: "Lower is better. Rarer decisions leave stale responses resident for longer.",
    READS_MAIN: "Lower is better. Tokens of KV that each decoded token reads; follows the resident tokens.",
    OUTPUT_TOK_S: "Higher is better. Main's output alone: aux tokens are not counted as work done.",
    AUX_TOKENS: "The price: halving K about doubles it.",
    AUX_LATE: "Threads that had not finished at the next boundary; the next thread is skipped.",
    EVICTED_THEN_USED: "Wrong evictions: a later step referred to the response.",
}


def _figure(measure: Measure, series: Sequence[Series], shown: Sequence[Level], palette: Palette) -> Figure:
    values = sorted({float(number(p.labels["k"]) or 0) for one in series for p in one.points})
    traces: list[Trace] = []
    for name, points in series:
        hover = [
            f"<b>{plain(name)}</b>, K = {p.labels['k']}<br>{plain(measure.name)}: {full(p.metrics.get(measure.key))} {plain(measure.unit)}"
            for p in points
        ]
        x = [p.labels["k"] for p in points]
        traces.append(line(name, palette.look(name), x, [p.metrics.get(measure.key) for p in points], hover))
    for point in (one.point for one in shown if measure in _LEVELLED):
        if number(level := point.metrics.get(measure.key)) is None:
            continue
        hover = [f"<b>{plain(point.variant)}</b>: {full(level)} {plain(measure.unit)}"] * 2
        ends = [min(values), max(values)]
        traces.append(line(point.variant, palette.look(point.variant), ends, [level] * 2, hover, mode="lines"))
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
    return Figure(measure.name, _CAPTIONS[measure], f"{text}.", traces, layout, height=260)


def k_sweep(panel: Panel, others: Sequence[Panel], palette: Palette) -> str:
    """Draw six small figures over K, and list their numbers."""
    series = swept(panel)
    if not series:
        return missing(
            "This panel holds no point with a K.",
            "a study with `kind: k_sweep, vary: {policy.k: [1, 2, 4, 8, 16]}`",
        )
    base, oracle = levels(panel, others)
    shown = [one for one in (base, oracle) if one is not None]
    lines = " and ".join(one.point.variant for one in shown)
    note = (
        f"Level lines, which do not depend on K: {lines}{source(panel, *shown)}."
        if shown
        else "There is no run without eviction to compare with."
    )
    names = [*(one.name for one in series), *(one.point.variant for one in shown)]
    return "".join(
        [
            palette.key(dict.fromkeys(names)),
            f"<p>{escape(note)}</p>",
            grid((_figure(measure, series, shown, palette).html() for measure in _MEASURES), wide=False),
            numbers_table(panel, series, (base, oracle)),
            failures(panel),
        ]
    )
