"""What a run of a study, a sweep or a plan is called by, the values that tables sort by; and what it evicts in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqsim.scenario import Scenario
from sqsim.scenario_parts import ClosedLoad

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


def harm(metrics: Mapping[str, Any]) -> float | None:
    """The share of what a run evicts that is needed later; None where it evicts nothing, or its record does not say."""
    lost, evicted = metrics.get("evicted_then_used"), metrics.get("evictions")
    return lost / evicted if evicted and lost is not None else None


def harm_said(share: float | None) -> str:
    """That share in brackets, to stand behind a setting's name; empty where there is none."""
    return f" ({share:.1%} of what it evicts is needed later)" if share else ""
