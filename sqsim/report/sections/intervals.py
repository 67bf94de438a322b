# SPDX-License-Identifier: Apache-2.0
"""Intervals of runs that were made with `sqsim run --bands`."""

from __future__ import annotations

from sqsim.experiments.intervals import Intervals, read_intervals
from sqsim.report.data.measures import GROUPS, share
from sqsim.report.data.sources import Sources
from sqsim.report.html.markup import badged, escape, table, value_cell

IDENT, TITLE = "intervals", "How sure are these numbers?"

_HELD = (
    "Each interval holds the middle 90 % of runs under other seeds and under profiles sampled from the stated uncertainty. "
    "The two standard deviations state how much of the spread comes from the cost profile and how much from chance. The "
    "interval does not cover values that the scenario fixes or assumes, the scheduler, or steps beyond the measured ranges."
)


def intervals(sources: Sources) -> str:
    """Write a table for each record that has intervals; nothing where none has."""
    found = [
        (sources.short(panel, point), bands)
        for panel, point, record in sources.records
        if (bands := read_intervals(record.path)) is not None
    ]
    if not found:
        return ""
    return f"<p>{escape(_HELD)}</p>" + "".join(_run(name, bands) for name, bands in found)


def _alternatives(bands: Intervals) -> str:
    """List the metrics under the kernels that a server may run instead; empty where there is no such choice."""
    if not bands.alternatives:
        return ""
    names = list(bands.alternatives)
    rows = [
        [
            escape(measure.title),
            *(value_cell(bands.alternatives[name].metrics.get(measure.key)) for name in names),
        ]
        for measure in (measure for group in GROUPS for measure in group.measures)
        if any(measure.key in other.metrics for other in bands.alternatives.values())
    ]
    shown = "".join(
        f"<li>{escape(name)}: {escape(other.shown_by)}</li>" for name, other in bands.alternatives.items()
    )
    head = ["metric", *(f"if the server runs {name}" for name in names)]
    return table(head, rows, "Other kernels that the server may run", "data") + f"<ul>{shown}</ul>"


def _run(name: str, bands: Intervals) -> str:
    head = ["metric", "value", f"{share(bands.confidence)} from", "to", "sd: profile", "sd: chance"]
    rows = []
    for measure in (measure for group in GROUPS for measure in group.measures):
        band = bands.bands.get(measure.key)
        if band is not None and (band.low, band.high) != (0.0, 0.0):
            values = (band.value, band.low, band.high, band.parameter_sd, band.sampling_sd)
            rows.append([escape(measure.title), *map(value_cell, values)])
    doubts = "".join(f"<li>{escape(term)}: {badged(what)}</li>" for term, what in bands.doubts.items())
    drawn = ", ".join(bands.sampled) or "nothing: another seed gives the same run"
    return (
        table(head, rows, f"90 % intervals: {name}", "data")
        + _alternatives(bands)
        + f"<p>Drawn of the profile:</p><ul>{doubts or '<li>nothing</li>'}</ul><p>Drawn by chance: {escape(drawn)}.</p>"
    )
