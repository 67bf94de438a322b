# SPDX-License-Identifier: Apache-2.0
"""Figures of KV over time by owner, one for each kept record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sqsim.report.data.measures import written
from sqsim.report.data.record_view import RecordView
from sqsim.report.data.sources import Sources
from sqsim.report.html.figure import Figure, Trace, axis, rounded
from sqsim.report.html.markup import Choice, chooser, escape, missing


class _Owner(NamedTuple):
    name: str
    colour: str
    pattern: str


# A sequence of its own (never a variant's colour), from dark to light; patterns for print and colour blindness.
_OWNERS = {
    "kv_running": _Owner("running requests", "#274060", ""),
    "kv_idle_sessions": _Owner("idle sessions", "#7c9cbf", ""),
    "kv_aux": _Owner("aux threads", "#c1502e", "/"),
    "kv_tree_evictable": _Owner("tree, reclaimable", "#e6d3a3", "."),
    "kv_free": _Owner("free", "#f3f4f6", ""),
}


def _traces(view: RecordView) -> list[Trace]:
    # A row holds the state at its end, drawn back to the end of the row before it (vh).
    times = rounded(view.times, 7)
    traces: list[Trace] = []
    for key, owner in _OWNERS.items():
        if key in ("kv_idle_sessions", "kv_aux") and not view.owners[key].any():
            continue
        trace: Trace = {
            "type": "scatter", "mode": "lines", "name": owner.name, "stackgroup": "kv", "x": times,
            "y": rounded(view.owners[key], 9),
            "line": {"width": 0.4, "color": "#9aa5b1" if key == "kv_free" else owner.colour, "shape": "vh"},
            "fillcolor": owner.colour,
            "hovertemplate": "%{y:,} tokens",
        }  # fmt: skip
        if owner.pattern:
            # The pattern is drawn on the owner's colour.
            trace["fillpattern"] = {
                "shape": owner.pattern,
                "fgcolor": "#ffffff",
                "bgcolor": owner.colour,
                "size": 6,
                "solidity": 0.25,
            }
        traces.append(trace)
    if view.pressure:
        capacity = sum(float(values[0]) for values in view.owners.values())
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "retractions or releases",
                "x": rounded([p.time_s for p in view.pressure]), "y": [round(capacity * 1.03)] * len(view.pressure),
                "text": [f"retracted {p.retracted}, sessions released {p.released}" for p in view.pressure],
                "hovertemplate": "%{text}",
                "marker": {"symbol": "triangle-down", "size": 8, "color": "#1d2733"},
            }
        )  # fmt: skip
    return traces


def _figure(view: RecordView, name: str) -> str:
    held = view.owners["kv_running"] + view.owners["kv_idle_sessions"] + view.owners["kv_aux"]
    capacity = sum(float(values[0]) for values in view.owners.values())
    top = int(np.argmax(held))
    shares = ", ".join(
        f"{owner.name} {written(float(np.max(view.owners[key])) / capacity)}" for key, owner in _OWNERS.items()
    )
    summary = (
        f"{name}: capacity {written(round(capacity))} tokens; most in use {written(int(held[top]))} "
        f"at {written(float(view.times[top]))} s. Largest share of capacity: {shares}. "
        f"Moments with retractions or releases: {len(view.pressure)}."
    )
    thinned = (
        f" Drawn from {len(view.times):,} of {view.engine_rows:,} engine rows; each moment's peak and trough are kept."
        if len(view.times) < view.engine_rows
        else ""
    )
    caption = (
        "Reclaiming the dark bands has a cost; the sandy one is cache that the server may reclaim at any time. "
        + ("Triangles at the top mark retracted requests or released sessions." if view.pressure else "")
        + thinned
    )
    layout = {
        "xaxis": axis("time since the start of the run (s)", rangemode="tozero"),
        "yaxis": axis("KV slots (tokens)", rangemode="tozero"),
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return Figure("KV over time, by owner", caption, summary, _traces(view), layout, height=400).html()


def over_time(sources: Sources, start: int) -> str:
    """Draw the stacked figure of each kept record; `start` is the one shown first."""
    choices = []
    for panel, point, view in sources.records:
        name = sources.name(panel, point)
        content = (
            _figure(view, name)
            if len(view.times)
            else missing(f"{name}: the engine table of this record is empty: nothing was served.")
        )
        choices.append(Choice(name, content))
    if not choices:
        return missing("No source keeps a full record.", "sqsim report RECORD_DIRECTORY... -o page.html")
    lead = (
        "<p>"
        + escape("The owners of the full-attention KV slots at each moment. The bands add up to the capacity.")
        + "</p>"
    )
    return lead + chooser("kv-record", "Run shown", choices, min(start, len(choices) - 1))
