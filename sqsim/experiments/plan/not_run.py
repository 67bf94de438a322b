# SPDX-License-Identifier: Apache-2.0
"""Settings that a plan or a region could not run, each with its reason, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def of_plan(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write a line for each setting of plan.json that could not be run, or not to the end of its search."""
    return [
        f"{each['setting']} on {each['gpu']}: could not be run{' to the end' if each['runs'] else ''}: "
        f"{one_line(each['error'])}"
        for each in settings
        if each["error"] is not None
    ]


def of_region(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write a line for each setting and reason of region.json, with the number of places that it is true of."""
    counts: dict[tuple[str, str], int] = {}
    for place in places:
        for name, error in place["errors"].items():
            key = name, one_line(error)
            counts[key] = counts.get(key, 0) + 1
    return [
        f"{name}: could not be run at {count} of {len(places)} places: {error}"
        for (name, error), count in counts.items()
    ]


def one_line(error: object) -> str:
    """Write an error of several lines as one."""
    return "; ".join(str(error).splitlines())
