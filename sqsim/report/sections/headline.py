# SPDX-License-Identifier: Apache-2.0
"""Headline of the answer: the fastest variant, and how much it evicted and needed later."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.report.data.measures import OUTPUT_TOK_S, Measure, change, counted, number, percent, written
from sqsim.report.data.sources import Panel, Point
from sqsim.report.sections.evicted_then_used import RULE, evicts, is_careful, needed_later, share_needed_later
from sqsim.report.sections.side_by_side import baseline

HEADS = ("Highest throughput:", "Highest of the careful")
"""Beginnings of the sentences of `headline`."""


def best(points: Sequence[Point], measure: Measure) -> Point | None:
    """Find the point with the highest value; None where no point has one."""
    known = [point for point in points if number(point.metrics.get(measure.key)) is not None]
    return max(known, key=lambda point: number(point.metrics[measure.key]) or 0.0, default=None)


def where(point: Point) -> str:
    """Write ` at 48 tasks`, or nothing where the load is not a concurrency."""
    return "" if point.concurrency is None else f" at {counted(point.concurrency, 'task')}"


def _rate(point: Point, panel: Panel, unit: str = "") -> str:
    place = where(point) if len(panel.concurrencies) > 1 else ""
    return f"{written(point.metrics[OUTPUT_TOK_S.key])}{unit}{place}"


def _against(point: Point, base: Point | None, panel: Panel) -> str:
    """Compare a point with the best of the baseline."""
    if base is None:
        return ""
    if point.variant == base.variant:
        return ", so nothing that evicts beats it here" if any(map(evicts, panel.points)) else ""
    own = best(panel.of(base.variant), OUTPUT_TOK_S)
    if own is None:
        return ""
    relative = percent(change(point.metrics[OUTPUT_TOK_S.key], own.metrics[OUTPUT_TOK_S.key]))
    best_of = " at its best" if len(panel.concurrencies) > 1 else ""
    return f", {relative} against {base.variant}{best_of} ({_rate(own, panel)})"


def _leaders(panel: Panel) -> tuple[Point | None, Point | None]:
    """Find the fastest point that a server can run and, if that one is careless, the fastest careful one."""
    real = [point for point in panel.points if not point.is_oracle]
    top = best(real, OUTPUT_TOK_S)
    if top is None or is_careful(top):
        return top, None
    return top, best([point for point in real if is_careful(point)], OUTPUT_TOK_S)


def headline(panel: Panel, base: Point | None) -> list[str]:
    """Name the fastest variant and how much it evicted and needed later.

    If that is much, the fastest careful variant follows; the oracle's throughput comes last.
    """
    top, careful = _leaders(panel)
    if top is None:
        return []
    text = f"Highest throughput: {top.variant}, {written(top.metrics[OUTPUT_TOK_S.key])} main output tok/s{where(top)}"
    text += _against(top, base, panel)
    if evicts(top):
        text += f". {'But ' if not is_careful(top) else ''}{needed_later(top)}"
        text += (
            ", and with trajectories held fixed that costs it nothing here" if share_needed_later(top) else ""
        )
    lines = [f"{text}."]
    if careful is not None:
        if base is not None and careful.variant == base.variant:
            own = ", as nothing that evicts is both careful and faster"
        else:
            own = _against(careful, base, panel)
            own += f"; {needed_later(careful)}" if evicts(careful) else ", which evicts nothing"
        lines.append(f"Highest of the careful ({RULE}): {careful.variant}, {_rate(careful, panel)}{own}.")
    oracle = best([point for point in panel.points if point.is_oracle], OUTPUT_TOK_S)
    if oracle is not None:
        lines[-1] += f" The hindsight oracle, which no server can run, reaches {_rate(oracle, panel)}"
        beaten = (change(top.metrics[OUTPUT_TOK_S.key], oracle.metrics[OUTPUT_TOK_S.key]) or 0) > 0
        lines[-1] += ": less, as it keeps what is needed later." if beaten and share_needed_later(top) else "."
    return lines


def elsewhere(panel: Panel) -> str | None:
    """Write a sentence or two on a further panel, without its title: its fastest variant and the evictions needed later."""
    top, careful = _leaders(panel)
    if top is None:
        return None
    if len(panel.variants) < 2:
        return (
            f"{top.variant} reaches {_rate(top, panel, ' tok/s')}, and nothing in its panel to compare it with."
        )
    base = baseline(panel.points)
    text = f"Highest throughput with {top.variant}, {_rate(top, panel, ' tok/s')}{_against(top, base, panel)}"
    if evicts(top):
        text += f"; {needed_later(top)}"
    if careful is not None:
        against = "" if base is not None and careful.variant == base.variant else _against(careful, base, panel)
        used_later = f"; {needed_later(careful)}" if evicts(careful) else ""
        text += f". Of the careful: {careful.variant}, {_rate(careful, panel)}{against}{used_later}"
    return f"{text}."
