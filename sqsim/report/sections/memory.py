"""KV over time by owner, one figure a kept record."""

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


def _traces(kept: RecordView) -> list[Trace]:
    # A row's state stands at its end and is drawn back to the end of the row before it (vh).
    times = rounded(kept.times, 7)
    traces: list[Trace] = []
    for key, owner in _OWNERS.items():
        if key in ("kv_idle_sessions", "kv_aux") and not kept.owners[key].any():
            continue
        trace: Trace = {
            "type": "scatter", "mode": "lines", "name": owner.name, "stackgroup": "kv", "x": times,
            "y": rounded(kept.owners[key], 9),
            "line": {"width": 0.4, "color": "#9aa5b1" if key == "kv_free" else owner.colour, "shape": "vh"},
            "fillcolor": owner.colour,
            "hovertemplate": "%{y:,} tokens",
        }  # fmt: skip
        if owner.pattern:
            # The pattern stands on the owner's colour.
            trace["fillpattern"] = {
                "shape": owner.pattern,
                "fgcolor": "#ffffff",
                "bgcolor": owner.colour,
                "size": 6,
                "solidity": 0.25,
            }
        traces.append(trace)
    if kept.pressure:
        capacity = sum(float(values[0]) for values in kept.owners.values())
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "retractions or releases",
                "x": rounded([p.time_s for p in kept.pressure]), "y": [round(capacity * 1.03)] * len(kept.pressure),
                "text": [f"retracted {p.retracted}, sessions released {p.released}" for p in kept.pressure],
                "hovertemplate": "%{text}",
                "marker": {"symbol": "triangle-down", "size": 8, "color": "#1d2733"},
            }
        )  # fmt: skip
    return traces


def _figure(kept: RecordView, name: str) -> str:
    held = kept.owners["kv_running"] + kept.owners["kv_idle_sessions"] + kept.owners["kv_aux"]
    capacity = sum(float(values[0]) for values in kept.owners.values())
    top = int(np.argmax(held))
    shares = ", ".join(
        f"{owner.name} {written(float(np.max(kept.owners[key])) / capacity)}" for key, owner in _OWNERS.items()
    )
    summary = (
        f"{name}: capacity {written(round(capacity))} tokens; most in use {written(int(held[top]))} "
        f"at {written(float(kept.times[top]))} s. Largest share of capacity: {shares}. "
        f"Moments with retractions or releases: {len(kept.pressure)}."
    )
    thinned = (
        f" Drawn from {len(kept.times):,} of {kept.engine_rows:,} engine rows; each moment's peak and trough are kept."
        if len(kept.times) < kept.engine_rows
        else ""
    )
    caption = (
        "The dark bands cannot be taken back without cost; the sandy one is cache that the server may reclaim at any time. "
        + ("Triangles on top mark retracted requests or released sessions." if kept.pressure else "")
        + thinned
    )
    layout = {
        "xaxis": axis("time since the start of the run (s)", rangemode="tozero"),
        "yaxis": axis("KV slots (tokens)", rangemode="tozero"),
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return Figure("KV over time, by owner", caption, summary, _traces(kept), layout, height=400).html()


def over_time(sources: Sources, start: int) -> str:
    """The stacked figure of each kept record; `start` is the one shown first."""
    choices = []
    for panel, point, kept in sources.kept:
        name = sources.name(panel, point)
        content = (
            _figure(kept, name)
            if len(kept.times)
            else missing(f"{name}: the engine table of this record has no row, so nothing was served.")
        )
        choices.append(Choice(name, content))
    if not choices:
        return missing("No source keeps a full record.", "sqsim report RECORD_DIRECTORY... -o page.html")
    lead = (
        "<p>"
        + escape("Who holds the full-attention KV slots at each moment. The bands add up to the capacity.")
        + "</p>"
    )
    return lead + chooser("kv-record", "Run shown", choices, min(start, len(choices) - 1))
