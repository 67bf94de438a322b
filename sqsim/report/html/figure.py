# SPDX-License-Identifier: Apache-2.0
"""Plotly figure as HTML: compact JSON in the page, which page.js draws when the figure is first shown."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqsim.report.data.measures import Value, number
from sqsim.report.data.palette import Look
from sqsim.report.html.markup import escape, unbroken

Trace = dict[str, Any]

INK, GRID, FONT = "#1d2733", "#e4e7eb", "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

_BASE: dict[str, Any] = {
    "font": {"family": FONT, "size": 13, "color": INK},
    "margin": {"l": 64, "r": 14, "t": 12, "b": 50},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "#ffffff",
    "hoverlabel": {
        "bgcolor": "#ffffff",
        "bordercolor": "#9aa5b1",
        "align": "left",
        "font": {"color": INK, "size": 13},
    },
    "hovermode": "closest",
    "showlegend": False,
    "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
}

_AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "linecolor": "#9aa5b1",
    "zerolinecolor": "#9aa5b1",
    "ticks": "outside",
    "tickcolor": "#9aa5b1",
    "automargin": True,
}


def plain(text: object) -> str:
    """Escape text for plotly, which reads a little HTML."""
    return html.escape(str(text), quote=False)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Merge `more` into `base`, dictionary by dictionary."""
    result = dict(base)
    for key, value in more.items():
        mine = result.get(key)
        result[key] = merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return result


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Make an axis with a title that names its unit."""
    return merged(_AXIS, {"title": {"text": plain(title), "standoff": 8}, **more})


def concurrency_axis(values: Sequence[int]) -> dict[str, Any]:
    """Make an axis of tasks at a time on a log2 scale: equal factors are equally far apart."""
    low, high = (min(values), max(values)) if values else (1, 1)
    return axis(
        "tasks at a time",
        type="log",
        tickvals=list(values),
        ticktext=[str(value) for value in values],
        tickangle=0,
        tickfont={"size": 11},  # 24 and 32 are close together
        range=[math.log10(low) - 0.08, math.log10(high) + 0.08],
    )


def rounded(values: Iterable[float], digits: int = 6) -> list[float | int | None]:
    """Round numbers for drawing to `digits` significant digits; whole numbers become integers, non-finite ones None."""
    result: list[float | int | None] = []
    for value in values:
        if not math.isfinite(value):
            result.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        result.append(int(short) if short.is_integer() else short)
    return result


def line(
    name: str, look: Look, x: Sequence[Any], y: Sequence[Value], hover: Sequence[str] | str, **more: Any
) -> Trace:
    """Draw a variant's curve with exact values; a missing value leaves a gap.

    `hover` is a text for each point, or a plotly template for all of them.
    """
    shown = (
        {"hovertemplate": f"{hover}<extra></extra>"}
        if isinstance(hover, str)
        else {"text": list(hover), "hoverinfo": "text"}
    )
    trace: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "legendgroup": name,
        "x": list(x),
        "y": [number(value) for value in y],
        **shown,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {
            "color": look.colour,
            "symbol": look.marker,
            "size": 8,
            "line": {"width": 1.5, "color": look.colour},
        },
    }
    return merged(trace, more)


@dataclass
class Figure:
    """Figure. `summary` is its text for screen readers, `caption` tells what to look at."""

    title: str
    caption: str
    summary: str
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 340  # px
    titled: bool = True  # False where the chooser above already names the figure

    def spec(self) -> dict[str, Any]:
        """Data and layout in plotly's format."""
        layout = merged(merged(_BASE, self.layout), {"height": self.height})
        layout.setdefault("xaxis", _AXIS)
        layout.setdefault("yaxis", _AXIS)
        return {"data": self.traces, "layout": layout}

    def html(self) -> str:
        """Write the figure with its title, caption and data."""
        spec = json.dumps(self.spec(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        # `</script>` or `<!--` inside a text must not end the element early.
        spec = spec.replace("<", "\\u003c")
        caption = f"<figcaption>{unbroken(self.caption)}</figcaption>" if self.caption else ""
        title = f'<p class="figure-title">{escape(self.title)}</p>' if self.titled else ""
        return (
            f'<figure class="figure">{title}'
            f'<div class="plot" role="img" aria-label="{escape(f"{self.title}. {self.summary}")}" '
            f'style="height:{self.height}px"></div>'
            f'<script type="application/json" class="spec">{spec}</script>{caption}</figure>'
        )


def grid(figures: Iterable[str], wide: bool = True) -> str:
    """Put figures in rows of three, or two if `wide`; in a narrow window one below the other."""
    return f'<div class="figures{" wide" if wide else ""}">{"".join(figures)}</div>'
