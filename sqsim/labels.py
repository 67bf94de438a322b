"""What a run of a study, a sweep or a plan is called by, the values that tables sort by; and on what runs rest, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def evidence_lines(evidence: Iterable[Mapping[str, Any]]) -> list[str]:
    """On what the numbers of many runs rest, each thing once; for tables on a terminal and for pages alike."""
    lines: dict[str, None] = {}
    for each in evidence:
        lines["every number is simulated"] = None
        if each["profile"]:
            lines[f"profile {each['profile']}: {each['summary']}"] = None
        if each["assumed"]:
            lines[f"assumed, not calibrated: {', '.join(each['assumed'])}"] = None
        if each["references"].get("synthesised"):
            lines["references are synthesised: which responses are needed later is a guess"] = None
        for name in each["out_of_range"]:
            lines[f"some steps left the measured range: {name}"] = None
    return list(lines)


def evidence_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the lines above need of a simulated run's `run.json`."""
    profile = run.get("profile", {})  # a record written by hand may say less
    return {
        "profile": profile.get("name"),
        "summary": profile.get("summary"),
        "assumed": run.get("assumed", []),
        "references": run.get("references", {}),
        "out_of_range": run.get("out_of_range", {}),
    }


def each_once(evidence: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same evidence, without what was there before; in order."""
    found: list[dict[str, Any]] = []
    for each in evidence:
        if each not in found:
            found.append(each)
    return found


def harm(metrics: Mapping[str, Any]) -> float | None:
    """The share of what a run evicts that is needed later; None where it evicts nothing, or its record does not say."""
    lost, evicted = metrics.get("evicted_then_used"), metrics.get("evictions")
    return lost / evicted if evicted and lost is not None else None


def harm_said(share: float | None) -> str:
    """That share in brackets, to stand behind a setting's name; empty where there is none."""
    return f" ({share:.1%} of what it evicts is needed later)" if share else ""
