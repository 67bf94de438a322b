# SPDX-License-Identifier: Apache-2.0
"""Labels of a run in a study, a sweep or a plan: the values that tables sort by, and the share evicted but needed later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqsim.scenario.load import ClosedLoad
from sqsim.scenario.scenario import Scenario

_ALWAYS = ("k", "recall", "false_rate")
"""Policy keys that have a column in every table."""


def labels(scenario: Scenario) -> dict[str, Any]:
    """Return policy, cache, load and the policy's labelled keys; None for what a scenario does not have."""
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
    """Compute the share of evicted cursors that a later step needs; None where nothing is evicted or evictions are not judged."""
    used, evicted = metrics.get("evicted_then_used"), metrics.get("evictions")
    return used / evicted if evicted and used is not None else None


def evicted_then_used_note(share: float | None) -> str:
    """Write that share in brackets, to follow a setting's name; empty for no share or zero."""
    return f" ({share:.1%} of what it evicts is needed later)" if share else ""
