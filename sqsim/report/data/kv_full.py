# SPDX-License-Identifier: Apache-2.0
"""Rule for when the KV cache counts as full, used by every section."""

from __future__ import annotations

from sqsim.report.data.measures import KV_PEAK, RELEASED, RETRACTIONS, counted, joined, number, written
from sqsim.report.data.sources import Panel, Point

FULL = 0.95
"""Share of capacity. Admission reserves room for the output of running requests, so a full cache peaks
below 1: the paper's uncompressed run at 0.977, simulated ones from some 0.955 on."""

RULE = (
    f"KV counts as full from the first point at which its peak usage reaches {FULL} of capacity, a request is "
    "retracted, or an idle session has to be released. What is then still free is reserved by running requests."
)


def is_full(point: Point) -> bool | None:
    """Whether a run filled its KV cache; None where its metrics lack the figures."""
    usage, retracted, released = (number(point.metrics.get(m.key)) for m in (KV_PEAK, RETRACTIONS, RELEASED))
    if usage is None and retracted is None and released is None:
        return None
    return (usage or 0) >= FULL or (retracted or 0) > 0 or (released or 0) > 0


def why_full(point: Point) -> str:
    """State the three numbers that the rule uses."""
    usage, retracted, released = (written(point.metrics.get(m.key)) for m in (KV_PEAK, RETRACTIONS, RELEASED))
    return f"peak usage {usage}, retractions {retracted}, sessions released {released}"


def fills_at(panel: Panel, variant: str) -> Point | None:
    """Find the lowest concurrency at which this variant fills the cache."""
    return next((point for point in panel.of(variant) if is_full(point)), None)


def filling(panel: Panel) -> str | None:
    """State from which load each variant fills the cache; None where the metrics lack the figures."""
    if not any(is_full(point) is not None for point in panel.points):
        return None
    loads = panel.concurrencies
    several = len(loads) > 1
    fills: dict[str, list[str]] = {}
    for variant in panel.variants:
        point = fills_at(panel, variant)
        place = (
            f"from {counted(point.concurrency, 'task')} at a time"
            if point is not None and several
            else "never"
            if several
            else "yes"
            if point is not None
            else "no"
        )
        fills.setdefault(place, []).append(variant)
    if not fills.keys() - {"never", "no"}:
        top = f", {'up to' if several else 'at'} {counted(loads[-1], 'task')} at a time" if loads else ""
        return f"KV never fills, with any variant{top}: memory does not limit these runs."
    parts = "; ".join(f"{joined(names)} {place}" for place, names in fills.items())
    return f"Where KV fills: {parts}." if several else f"Does KV fill? {parts}."
