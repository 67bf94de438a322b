# SPDX-License-Identifier: Apache-2.0
"""Types of the keys that Python code may give a scenario, for type checkers and editors; `scenario.py` checks the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Required, TypedDict

from sqsim.base.part import Part
from sqsim.scenario.engine import Router

Given = Part | Mapping[str, Any]
"""A part of a scenario, or the mapping that a file would have."""
Traces = str | PathLike[str] | Sequence[str | PathLike[str]]


class _AllButTraces(TypedDict, total=False):
    tasks: int | Literal["all"] | None
    resample: bool
    model: str
    engine: Given
    replicas: int
    router: Router
    load: Given
    policy: Given
    apply: Literal["boundary", "turn_end"]
    max_turns: int | Literal["none"] | None
    tool_wait_cap_s: float | Literal["none"] | None
    seed: int


class ScenarioKeys(_AllButTraces):
    """All keys; `traces` must be given."""

    traces: Required[Traces]


class ScenarioChanges(_AllButTraces, total=False):
    """Some of the keys."""

    traces: Traces
