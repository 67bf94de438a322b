# SPDX-License-Identifier: Apache-2.0
"""Figures of measured against simulated: KV usage over time, and errors by KV pressure."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.comparison.kv_usage import Curve, KvUsage
from sqsim.comparison.pressure import Bin, Errors
from sqsim.report.data.measures import counted, share
from sqsim.report.html.figure import Figure, Trace, axis, plain, rounded

_MEASURED, _SIMULATED = "#05603a", "#c1502e"
_TIMES = (
    ("ttft", "TTFT", "circle", "#0072b2"),
    ("e2e", "submission to end", "square", "#3d3d3d"),
    ("tpot", "TPOT", "diamond", "#b87700"),
)
_APART = 0.18  # between the times of one bin, in bins


def usage_over_seconds(found: KvUsage) -> Figure:
    """Draw the curves in seconds since each run's first arrival."""
    return _usage(
        found,
        "KV usage over time",
        "time since the start of the run (s)",
        [curve.run_time_s for curve in found.curves],
        found.mean.absolute,
        "over seconds; a finished run uses nothing",
    )


def usage_over_the_run(found: KvUsage) -> Figure:
    """Draw the curves over the elapsed share of each run, which compares their shapes at any speed."""
    return _usage(
        found,
        "KV usage over the run",
        "elapsed share of the run (%)",
        [100.0] * len(found.curves),
        found.mean.normalised,
        "over normalised time",
    )


def _usage(
    found: KvUsage, title: str, x_title: str, lengths: Sequence[float], apart: float, how: str
) -> Figure:
    traces = [_curve(curve, length) for curve, length in zip(found.curves, lengths, strict=True)]
    caption = f"Mean distance of the simulated curve from the measured: {apart:.1f} % of capacity, {how}."
    summary = "; ".join(
        f"{_called(curve)}: largest mean usage of a piece {share(max(curve.usage))} in {curve.run_time_s:.4g} s"
        for curve in found.curves
    )
    layout = {
        "xaxis": axis(x_title, rangemode="tozero"),
        "yaxis": axis("KV in use (% of capacity)", rangemode="tozero"),
        "showlegend": True,
    }
    return Figure(title, caption, f"{caption} {summary}.", traces, layout)


def _called(curve: Curve) -> str:
    return f"{'measured' if curve.real else 'simulated'}: {curve.run}"


def _curve(curve: Curve, length: float) -> Trace:
    pieces = len(curve.usage)
    return {
        "type": "scatter", "mode": "lines", "name": plain(_called(curve)),
        "x": rounded([(piece + 0.5) / pieces * length for piece in range(pieces)]),
        "y": rounded([100 * value for value in curve.usage]),
        "hovertemplate": f"%{{y:.1f}} %<extra>{plain(_called(curve))}</extra>",
        "opacity": 0.65 if curve.real else 1.0,
        "line": {
            "color": _MEASURED if curve.real else _SIMULATED, "width": 1.6 if curve.real else 2.2,
            "dash": "solid" if curve.real else "dash", "shape": "hvh",
        },
    }  # fmt: skip


def errors_by_pressure(bins: Sequence[Bin]) -> Figure:
    """Draw the median and quartiles of each time's error, bin by bin."""
    traces = [
        _errors(bins, key, name, symbol, colour, _APART * (place - 1))
        for place, (key, name, symbol, colour) in enumerate(_TIMES)
    ]
    layout = {
        "xaxis": axis(
            "measured KV usage at a turn's submission (% of capacity)",
            tickvals=list(range(len(bins))),
            ticktext=[f"{plain(one.name)}<br>{counted(one.e2e.turns, 'turn')}" for one in bins],
            range=[-0.5, len(bins) - 0.5],
            showgrid=False,
            zeroline=False,
        ),
        "yaxis": axis(
            "error, simulated against measured (%)", rangemode="tozero", zeroline=True, zerolinewidth=2
        ),
        "showlegend": True,
    }
    caption = (
        "Medians of simulated / measured - 1 over turns, with their quartiles. Below zero the simulation is too fast. "
        "A turn's measured values are means over the repeated runs."
    ).replace(" - 1", " − 1")
    summary = "; ".join(
        f"{one.name}: " + ", ".join(f"{name} {_said(getattr(one, key))}" for key, name, *_ in _TIMES)
        for one in bins
    )
    return Figure("Errors by KV pressure", caption, f"{summary}.", traces, layout)


def _said(errors: Errors) -> str:
    return "no turn" if errors.median_percent is None else f"{errors.median_percent:+.1f} %"


def _errors(bins: Sequence[Bin], key: str, name: str, symbol: str, colour: str, offset: float) -> Trace:
    shown = [(place, errors) for place, one in enumerate(bins) if (errors := getattr(one, key)).turns]
    medians = [errors.median_percent for _, errors in shown]
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [place + offset for place, _ in shown], "y": rounded(medians),
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1.5, "width": 4,
            "array": rounded([errors.p75_percent - errors.median_percent for _, errors in shown]),
            "arrayminus": rounded([errors.median_percent - errors.p25_percent for _, errors in shown]),
        },
        "text": [
            f"<b>{name}</b>, {counted(errors.turns, 'turn')}<br>median {errors.median_percent:+.1f} %, "
            f"quartiles {errors.p25_percent:+.1f} to {errors.p75_percent:+.1f} %"
            for _, errors in shown
        ],
        "hoverinfo": "text", "marker": {"symbol": symbol, "size": 10, "color": colour},
    }  # fmt: skip
