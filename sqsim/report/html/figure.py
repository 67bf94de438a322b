"""A plotly figure as HTML: its data as compact JSON beside it, drawn by page.js when it is first shown."""

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
    """Text for plotly, which reads a little HTML."""
    return html.escape(str(text), quote=False)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`base` with `more` on top, dictionary by dictionary."""
    result = dict(base)
    for key, value in more.items():
        mine = result.get(key)
        result[key] = merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return result


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title that names its unit."""
    return merged(_AXIS, {"title": {"text": plain(title), "standoff": 8}, **more})


def concurrency_axis(values: Sequence[int]) -> dict[str, Any]:
    """Tasks at a time, by powers of two: equal factors are equally far apart."""
    low, high = (min(values), max(values)) if values else (1, 1)
    return axis(
        "tasks at a time",
        type="log",
        tickvals=list(values),
        ticktext=[str(value) for value in values],
        tickangle=0,
        tickfont={"size": 11},  # 24 and 32 stand close
        range=[math.log10(low) - 0.08, math.log10(high) + 0.08],
    )


def rounded(values: Iterable[float], digits: int = 6) -> list[float | int | None]:
    """Numbers for drawing with `digits` significant ones; whole numbers as integers, what is not finite as None."""
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
    """One variant's curve. Exact values; a value that is missing leaves a gap.

    `hover` is one text a point, or a plotly template for all of them.
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
    """One figure. `summary` is its text for those who do not see it, `caption` tells what to look at."""

    title: str
    caption: str
    summary: str
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 340  # px
    titled: bool = True  # False where a list to choose from names the figure already

    def spec(self) -> dict[str, Any]:
        """Data and layout as plotly takes them."""
        layout = merged(merged(_BASE, self.layout), {"height": self.height})
        layout.setdefault("xaxis", _AXIS)
        layout.setdefault("yaxis", _AXIS)
        return {"data": self.traces, "layout": layout}

    def html(self) -> str:
        """The figure with its title, caption and data."""
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
    """Figures two (or three, not `wide`) in a row where the window allows it, one below the other else."""
    return f'<div class="figures{" wide" if wide else ""}">{"".join(figures)}</div>'
