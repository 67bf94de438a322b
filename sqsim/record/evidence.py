# SPDX-License-Identifier: Apache-2.0
"""The evidence that the numbers of runs rest on, in words, for tables on a terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HELD_FIXED = "the recorded trajectory is held fixed: an agent that loses a response might act differently"
"""True of every run, simulated or real."""


def evidence_lines(evidence: Iterable[Mapping[str, Any]]) -> list[str]:
    """State the evidence that many runs rest on, each fact once."""
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
    """Extract what `evidence_lines` needs from a simulated run's `run.json`."""
    profile = run.get("profile", {})  # a record written by hand may lack it
    return {
        "profile": profile.get("name"),
        "summary": profile.get("summary"),
        "assumed": run.get("assumed", []),
        "references": run.get("references", {}),
        "out_of_range": run.get("out_of_range", {}),
    }


def each_once(evidence: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop repeated evidence; the order stays."""
    found: list[dict[str, Any]] = []
    for each in evidence:
        if each not in found:
            found.append(each)
    return found
