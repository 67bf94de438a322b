# SPDX-License-Identifier: Apache-2.0
"""Page of a calibration's residuals: every measured step against its prediction, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import numpy as np
import plotly.graph_objects as go

from sqsim.fidelity.step_fit import Residuals, RunScore
from sqsim.report.data.measures import percent, share, written
from sqsim.report.html.markup import escape, table

_DRAWN = 4000
"""Number of steps of a run that are drawn, evenly spread over it; the tables count all."""
_BINS = 8


def residual_page(title: str, residuals: Sequence[Residuals], held_out: Sequence[RunScore]) -> str:
    """Build one HTML page that opens without a network."""
    css = resources.files("sqsim.report").joinpath("templates/page.css").read_text(encoding="utf-8")
    figures = [_over_time(residuals), _over_size(residuals)]
    drawn = "".join(
        figure.to_html(full_html=False, include_plotlyjs=at == 0, div_id=f"residuals-{at}")
        for at, figure in enumerate(figures)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{css}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>"
        "<p>Measured over predicted time of each step; 1 is a perfect prediction. A trend means that the model's form is wrong "
        "there; a band at another height means that the run used another machine.</p>"
        f"{_runs(held_out)}{_sizes(residuals)}{drawn}</main></body></html>\n"
    )


def _runs(held_out: Sequence[RunScore]) -> str:
    rows = [
        [
            escape(each.run),
            written(each.steps),
            written(each.measured_s),
            percent(each.total_error),
            share(each.mean_abs_error),
        ]
        for each in held_out
    ]
    head = ["run", "steps", "measured, s", "error of the sum", "mean absolute error of a step"]
    return table(head, rows, "Each run, predicted by a fit to the others")


def _sizes(residuals: Sequence[Residuals]) -> str:
    """Tabulate errors of sums by kind of step and predicted time, in bins of equal counts."""
    predicted, measured, prefill = (
        np.concatenate([getattr(each, name) for each in residuals])
        for name in ("predicted_s", "measured_s", "prefill")
    )
    rows = []
    for kind, mine in (("decode", ~prefill), ("prefill", prefill)):
        if not mine.any():
            continue
        edges = np.unique(np.quantile(predicted[mine], np.linspace(0, 1, _BINS + 1)))
        bins = np.clip(np.digitize(predicted[mine], edges[1:-1]), 0, None)
        for at in np.unique(bins):
            some, really = predicted[mine][bins == at], measured[mine][bins == at]
            size = f"{written(float(1e3 * some.min()))} to {written(float(1e3 * some.max()))}"
            rows.append([escape(kind), size, written(len(some)), percent(float(some.sum() / really.sum() - 1))])
    return table(
        ["step", "predicted, ms", "steps", "error of the sum"],
        rows,
        "By kind and size, in the fit to all runs",
        row_heads=2,
    )


def _thinned(one: Residuals) -> slice:
    return slice(None, None, max(1, len(one.measured_s) // _DRAWN))


def _over_size(residuals: Sequence[Residuals]) -> go.Figure:
    figure = go.Figure()
    for one in residuals:
        some = _thinned(one)
        for kind, mine in (("decode", ~one.prefill[some]), ("prefill", one.prefill[some])):
            x, y = one.predicted_s[some][mine], one.measured_s[some][mine]
            figure.add_scattergl(
                x=1e3 * x,
                y=y / x,
                mode="markers",
                name=f"{one.run}: {kind}",
                marker={"size": 3, "opacity": 0.5},
            )
    figure.update_xaxes(title="predicted time of the step, ms", type="log")
    return _styled(figure)


def _over_time(residuals: Sequence[Residuals]) -> go.Figure:
    figure = go.Figure()
    for one in residuals:
        some = _thinned(one)
        figure.add_scattergl(
            x=np.cumsum(one.measured_s)[some],
            y=(one.measured_s / one.predicted_s)[some],
            mode="markers",
            name=one.run,
            marker={"size": 3, "opacity": 0.5},
        )
    figure.update_xaxes(title="seconds of steps into the run")
    return _styled(figure)


def _styled(figure: go.Figure) -> go.Figure:
    figure.update_yaxes(title="measured / predicted", type="log", range=[-0.7, 0.9])
    figure.add_hline(y=1, line={"color": "#1d2733", "width": 1})
    figure.update_layout(height=420, legend={"itemsizing": "constant"}, margin={"t": 20})
    return figure
