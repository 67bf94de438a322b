# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a replica: the part of tasks' time that grew most from light load to the load that breaks the SLO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

KV_FULL = 0.95
"""Peak usage from which KV counts as full."""
_GREW = 0.05  # share of a task's time; less is no growth
_LOST = 0.25  # share of the tokens prefilled under light load; more means that prefixes were lost


class Bottleneck(NamedTuple):
    """A bottleneck. `name`: kv, compute, tools or aux; `evidence`: the numbers that show it, in a sentence."""

    name: str
    evidence: str


def bottleneck(light: Mapping[str, Any], heavy: Mapping[str, Any], *, outside: bool = True) -> Bottleneck:
    """Name the bottleneck between a light and a heavy load of the same setting. Both are points (points.py).

    `outside`: count time outside of the server; leave it out where requests alone broke the SLO (TTFT, TPOT).
    """
    before, after = _counted(light, outside=outside), _counted(heavy, outside=outside)
    metrics = heavy["metrics"]
    if before is None or after is None:
        return Bottleneck("kv", "no task completed: what a task needs does not fit the pool")
    grown = {part: after[part] - before[part] for part in before}
    most = max(grown, key=lambda part: grown[part])
    whole = sum(after.values())
    if grown[most] < _GREW * whole:
        return _at_rest(after, whole)
    said = f"{_NAMES[most]} grew from {before[most]:.1f} to {after[most]:.1f} s a task (of {whole:.0f} s)"
    usage, lost = metrics.get("kv_usage_peak"), _lost(light, heavy)
    full = usage is not None and usage >= KV_FULL
    if most == "rest_s" and metrics.get("pauses"):
        return Bottleneck("kv", f"agents paused for want of KV: {said}")
    if most == "queue_s" and full:
        return Bottleneck("kv", f"{said}; KV usage peaked at {usage:.2f}")
    if lost > _LOST and most != "tools_s":  # repeated prefills also slow down the decode of other requests
        return Bottleneck("kv", f"{said}; prefixes were lost and {lost:.0%} more tokens a task prefilled again")
    aux = metrics.get("aux_output_tokens") or 0
    if aux > 0.15 * (metrics.get("output_tokens") or 1) and most != "tools_s":
        return Bottleneck(
            "aux", f"{said}; aux threads write {aux / metrics['output_tokens']:.0%} of main's output on top"
        )
    return Bottleneck("compute", f"{said}; KV usage peaked at {usage:.2f}" if usage is not None else said)


def _counted(point: Mapping[str, Any], *, outside: bool) -> dict[str, float] | None:
    spent = point.get("time_spent")
    return spent and {part: value for part, value in spent.items() if outside or part not in _OUTSIDE}


_OUTSIDE = ("tools_s", "rest_s")
_NAMES = {
    "queue_s": "waiting for admission",
    "prefill_s": "prefill",
    "decode_s": "decode",
    "tools_s": "tools",
    "rest_s": "waiting outside of the server",
}


def _at_rest(spent: Mapping[str, float], whole: float) -> Bottleneck:
    """Name the largest part of a task's time, where load changes little."""
    most = max(spent, key=lambda part: spent[part])
    name = "tools" if most in _OUTSIDE else "compute"
    where = "" if len(spent) == len(_NAMES) else " on the server"
    said = f"load changes little; {_NAMES[most]} takes {spent[most]:.1f} of {whole:.0f} s a task{where}"
    return Bottleneck(name, said)


def _lost(light: Mapping[str, Any], heavy: Mapping[str, Any]) -> float:
    """Compute the growth of prefilled tokens a task over light load, as a share."""
    per_task = [
        each["metrics"]["prefill_tokens"] / max(1, each["metrics"]["tasks_completed"])
        for each in (light, heavy)
    ]
    return per_task[1] / per_task[0] - 1 if per_task[0] else 0.0
