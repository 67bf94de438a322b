"""What a run of a study, a sweep or a plan is called by, the values that tables sort by; and what it evicts and needs later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqsim.scenario.load import ClosedLoad
from sqsim.scenario.scenario import Scenario

_ALWAYS = ("k", "recall", "false_rate")
"""Keys that every table has a column for."""


def labels(scenario: Scenario) -> dict[str, Any]:
    """Policy, cache, load and what the policy is set to; None where a scenario has no such thing."""
    policy, load = scenario.policy, scenario.load
    return {
        "policy": policy.name,
        "cache": scenario.engine.cache,
        "after_eviction": scenario.after_eviction,
        "concurrency": load.concurrency if isinstance(load, ClosedLoad) else None,
        **dict.fromkeys(_ALWAYS),
        **{key: getattr(policy, key) for key in policy.labelled},
    }


def evicted_then_used_share(metrics: Mapping[str, Any]) -> float | None:
    """Give the share of what a run evicts that is needed later; None where it evicts nothing, or its record does not say."""
    used, evicted = metrics.get("evicted_then_used"), metrics.get("evictions")
    return used / evicted if evicted and used is not None else None


def evicted_then_used_note(share: float | None) -> str:
    """Write that share in brackets, to follow a setting's name; empty where there is none."""
    return f" ({share:.1%} of what it evicts is needed later)" if share else ""
