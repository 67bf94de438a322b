"""What a run of a study, a sweep or a plan is called by: the few values of its scenario that tables sort by."""

from __future__ import annotations

from typing import Any

from sqsim.scenario import Scenario
from sqsim.scenario_parts import ClosedLoad, SideQuest


def labels(scenario: Scenario) -> dict[str, Any]:
    """Policy, cache, load and what SideQuest is set to; None where a scenario has no such thing."""
    policy, load = scenario.policy, scenario.load
    return {
        "policy": policy.name,
        "cache": scenario.engine.cache,
        "after_eviction": scenario.after_eviction,
        "concurrency": load.concurrency if isinstance(load, ClosedLoad) else None,
        "k": policy.k if isinstance(policy, SideQuest) else None,
        "recall": policy.recall if isinstance(policy, SideQuest) else None,
        "false_rate": policy.false_rate if isinstance(policy, SideQuest) else None,
    }
