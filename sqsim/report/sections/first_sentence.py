# SPDX-License-Identifier: Apache-2.0
"""First sentence of the answer: best throughput and its concurrency, without eviction and with the policy of interest."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.report.data import kv_full
from sqsim.report.data.measures import OUTPUT_TOK_S, counted, written
from sqsim.report.data.sources import Panel, Point
from sqsim.report.sections.evicted_then_used import is_careful
from sqsim.report.sections.headline import best


def interest(panel: Panel) -> list[Point]:
    """Find the policy of interest: SideQuest in place (the paper's semantics), else one that evicts."""
    sidequest = [point for point in panel.points if point.policy == "sidequest"]
    in_place = [point for point in sidequest if point.labels.get("after_eviction") == "in_place"]
    others = [point for point in panel.points if point.policy != "none" and not point.is_oracle]
    careful = [point for point in others if is_careful(point)]
    return in_place or sidequest or careful or others


def _memory(panel: Panel, point: Point) -> str:
    """Write `, KV full at 48`: the lowest concurrency at which the point's variant fills the cache."""
    if all(kv_full.is_full(one) is None for one in panel.of(point.variant)):
        return ""
    several = len(panel.concurrencies) > 1
    at = kv_full.fills_at(panel, point.variant)
    if not several:
        return ", KV full" if at is not None else ", KV not full"
    if at is None:
        return f", KV not full up to {panel.of(point.variant)[-1].concurrency}"
    return f", KV full at {at.concurrency}"


def _rate(panel: Panel, point: Point, words: bool) -> str:
    rate = f"{written(point.metrics[OUTPUT_TOK_S.key])}{' tok/s' if words else ''}"
    several = len(panel.concurrencies) > 1 and point.concurrency is not None
    tasks = f"{counted(point.concurrency, 'task')} at a time" if words else str(point.concurrency)
    return f"{rate}{f' at {tasks}' if several else ''}{_memory(panel, point)}"


def _opening(panel: Panel) -> str:
    if len(panel.concurrencies) > 1:
        return "Best throughput"
    loads: Sequence[int] = panel.concurrencies
    return (
        f"Throughput at {counted(loads[0], 'task')} at a time" if loads else "Throughput under the given load"
    )


def first_sentence(panel: Panel) -> str | None:
    """Write `Best throughput without evicting anything: 908 tok/s at 36 tasks at a time, KV full at 48; with X: ...`.

    None where no throughput is known.
    """
    nones = [point for point in panel.points if point.policy == "none"]
    base, other = best(nones, OUTPUT_TOK_S), best(interest(panel), OUTPUT_TOK_S)
    if base is None and other is None:
        return None
    parts = []
    if base is not None:
        which = f" ({base.variant})" if len({point.variant for point in nones}) > 1 else ""
        parts.append(f" without evicting anything{which}: {_rate(panel, base, words=True)}")
    if other is not None:
        parts.append(f" with {other.variant}: {_rate(panel, other, words=base is None)}")
    return f"{_opening(panel)}{';'.join(parts)}."
