# SPDX-License-Identifier: Apache-2.0
"""Distributions of TTFT, TPOT, task time and peak tokens: one curve for each kept record."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sqsim.report.data.measures import counted, written
from sqsim.report.data.palette import Palette
from sqsim.report.data.record_view import Numbers, RecordView, numbers
from sqsim.report.data.sources import Panel, Point, Sources
from sqsim.report.html.figure import Figure, Trace, axis, grid, line, plain, rounded
from sqsim.report.html.markup import Choice, chooser, missing

_LEVELS = np.concatenate((np.linspace(0, 0.98, 99), np.array([0.985, 0.99, 0.995, 1.0])))


def _ttft(view: RecordView) -> Numbers:
    return numbers(view.turns, "first_token_s") - numbers(view.turns, "submit_s")


def _tpot(view: RecordView) -> Numbers:
    """Time per output token (SPEC.md): (last - first token) / (n - 1); a step of one token has none."""
    tokens = numbers(view.turns, "output_tokens")
    time = numbers(view.turns, "end_s") - numbers(view.turns, "first_token_s")
    return np.divide(time, tokens - 1, out=np.full_like(time, np.nan), where=tokens > 1)


def _task_time(view: RecordView) -> Numbers:
    return numbers(view.tasks, "end_s") - numbers(view.tasks, "start_s")


def _peak_tokens(view: RecordView) -> Numbers:
    return numbers(view.tasks, "peak_tokens")


class _Quantity(NamedTuple):
    title: str
    axis: str
    of: Callable[[RecordView], Numbers]
    what: str


_QUANTITIES = (
    _Quantity("Main TTFT", "TTFT (s)", _ttft, "main steps"),
    _Quantity("Main TPOT", "TPOT (s/token)", _tpot, "main steps"),
    _Quantity("Task time", "task time (s)", _task_time, "tasks"),
    _Quantity("Peak tokens", "peak tokens a task (tokens)", _peak_tokens, "tasks"),
)


def _figure(quantity: _Quantity, panel: Panel, points: list[Point], palette: Palette) -> Figure:
    traces: list[Trace] = []
    summary = []
    for point in points:
        assert point.record is not None
        values = quantity.of(point.record)
        values = values[np.isfinite(values)]
        name = panel.name(point)
        if not len(values):
            summary.append(f"{name}: not available")
            continue
        # Only values that occurred, no interpolation.
        quantiles = np.quantile(values, _LEVELS, method="inverted_cdf")
        hover = f"<b>{plain(name)}</b><br>%{{y}} % of {len(values):,} {quantity.what}: at most %{{x:,.4~g}}"
        x = rounded(quantiles)
        y = rounded(100 * _LEVELS)
        traces.append(
            line(point.variant, palette.look(point.variant), x, y, hover, mode="lines", line={"shape": "hv"})
        )
        middle, high = (float(np.quantile(values, level, method="inverted_cdf")) for level in (0.5, 0.9))
        summary.append(
            f"{name}: median {written(middle)}, p90 {written(high)}, largest {written(float(values.max()))}"
        )
    spread = [v for trace in traces for v in trace["x"] if v]
    # Waiting times span decades; a linear axis would show only the longest.
    scale = (
        {"type": "log", "dtick": 1, "minor": {"dtick": "D1", "ticks": "outside"}}
        if spread and min(spread) > 0 and max(spread) / min(spread) > 50
        else {"rangemode": "tozero"}
    )
    layout = {
        "xaxis": axis(quantity.axis, **scale),
        "yaxis": axis(f"share of {quantity.what} (%)", range=[0, 101]),
    }
    return Figure(quantity.title, "", "; ".join(summary) + ".", traces, layout, height=300)


def distributions(sources: Sources, palette: Palette) -> str:
    """Draw four figures for each load that has kept records."""
    choices = []
    for panel in sources.panels:
        for concurrency in dict.fromkeys(point.concurrency for point in panel.recorded):
            points = [point for point in panel.recorded if point.concurrency == concurrency]
            where = "the load as given" if concurrency is None else f"{counted(concurrency, 'task')} at a time"
            figures = grid(_figure(quantity, panel, points, palette).html() for quantity in _QUANTITIES)
            key = palette.key(dict.fromkeys(point.variant for point in points))
            choices.append(Choice(f"{panel.title}, {where}", key + figures))
    if not choices:
        return missing(
            "No source keeps a full record; only the percentiles in the tables above are known.",
            "sqsim report RECORD_DIRECTORY... -o page.html",
        )
    lead = "<p>Read a curve at 50 % for the median, and follow it to the right for the slowest. A curve further left is better.</p>"
    return lead + chooser("distribution-load", "Load", choices)
