# SPDX-License-Identifier: Apache-2.0
"""Labels of a run, read from its scenario, and the name of its variant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqsim.report.data.measures import Value


def flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List every value of a JSON object with its dotted path."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list) and any(isinstance(item, (dict, list)) for item in content):
        for place, item in enumerate(content):
            yield from flat(item, f"{path}[{place}]")
    else:
        yield path, content


def variant_of(labels: dict[str, Value]) -> str:
    """Name a variant: by its label, else by its policy and the cache."""
    if labels.get("variant"):
        return str(labels["variant"])
    policy = str(labels.get("policy", "run"))
    second = labels.get("after_eviction") or labels.get("cache")
    return f"{policy} / {second}" if second else policy


def labels_of(run: dict[str, Any]) -> dict[str, Value]:
    """Label a record that no study names, from the scenario in its run.json."""
    scenario = run.get("scenario") or {}
    policy, engine, load = (scenario.get(part) or {} for part in ("policy", "engine", "load"))
    drawn = (
        policy if policy.get("decisions") != "live" else {}
    )  # a model wrote these decisions, so none were drawn
    labels: dict[str, Value] = {
        "policy": policy.get("name", "run"),
        "cache": engine.get("cache"),
        "after_eviction": policy.get("after_eviction"),
        "concurrency": load.get("concurrency"),
        "k": policy.get("k"),
        "recall": drawn.get("recall"),
        "false_rate": drawn.get("false_rate"),
    }
    return {key: value for key, value in labels.items() if value is not None}
