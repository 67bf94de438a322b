"""How TTFT, TPOT, task time and peak tokens are distributed: one curve a kept record."""

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


def _ttft(kept: RecordView) -> Numbers:
    return numbers(kept.turns, "first_token_s") - numbers(kept.turns, "submit_s")


def _tpot(kept: RecordView) -> Numbers:
    """SPEC.md: (last - first token) / (n - 1); a step of one token has none."""
    tokens = numbers(kept.turns, "output_tokens")
    time = numbers(kept.turns, "end_s") - numbers(kept.turns, "first_token_s")
    return np.divide(time, tokens - 1, out=np.full_like(time, np.nan), where=tokens > 1)


def _task_time(kept: RecordView) -> Numbers:
    return numbers(kept.tasks, "end_s") - numbers(kept.tasks, "start_s")


def _peak_tokens(kept: RecordView) -> Numbers:
    return numbers(kept.tasks, "peak_tokens")


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
        assert point.kept is not None
        values = quantity.of(point.kept)
        values = values[np.isfinite(values)]
        name = panel.name(point)
        if not len(values):
            summary.append(f"{name}: not available")
            continue
        # Values that occurred, not values between them.
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
    # Waiting times span decades; a linear axis would show the longest alone.
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
    """Four figures for each load that has kept records."""
    choices = []
    for panel in sources.panels:
        for concurrency in dict.fromkeys(point.concurrency for point in panel.kept):
            points = [point for point in panel.kept if point.concurrency == concurrency]
            where = "the load as given" if concurrency is None else f"{counted(concurrency, 'task')} at a time"
            figures = grid(_figure(quantity, panel, points, palette).html() for quantity in _QUANTITIES)
            key = palette.key(dict.fromkeys(point.variant for point in points))
            choices.append(Choice(f"{panel.title}, {where}", key + figures))
    if not choices:
        return missing(
            "No source keeps a full record; the percentiles in the tables above are all there is.",
            "sqsim report RECORD_DIRECTORY... -o page.html",
        )
    lead = "<p>Read a curve at 50 % for the median, and follow it to the right for the slowest. A curve further left is better.</p>"
    return lead + chooser("distribution-load", "Load", choices)
