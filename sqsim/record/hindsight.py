# SPDX-License-Identifier: Apache-2.0
"""Hindsight on evictions: how often later steps of the recording used an evicted response."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from sqsim.record.schema import EVICTIONS
from sqsim.trace.references import last_uses, references, uses_after
from sqsim.trace.schema import Task


class Hindsight:
    """Judges a task's evictions by its recording, after the run."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def _steps(self) -> dict[int, list[int]]:
        return references(self._task)

    @cached_property
    def _last(self) -> dict[int, int]:
        return last_uses(self._task)

    def judge(self, turn: int, cursor: int) -> tuple[int | None, int | None]:
        """Return `last_use_turn` and `used_later` of a cursor evicted before main step `turn`; None without references.

        `used_later` is the number of references at main steps from `turn` on: the eviction comes before that step.
        """
        if self._task.carries.references == "absent":
            return None, None
        return self._last[cursor], uses_after(self._steps[cursor], turn)


def judge_evictions(evictions: pa.Table, tasks: Mapping[str, Task]) -> pa.Table:
    """Fill `last_use_turn` and `used_later`. `tasks` maps the record's task names to their traces."""
    known: dict[str, Hindsight] = {}
    judged: list[tuple[int | None, int | None]] = []
    rows: tuple[list[Any], ...] = tuple(evictions[name].to_pylist() for name in ("task", "turn", "cursor"))
    for name, turn, cursor in zip(*rows, strict=True):
        if name not in known:
            known[name] = Hindsight(tasks[name])
        judged.append(known[name].judge(turn, cursor))
    for at, name in enumerate(("last_use_turn", "used_later")):
        position = EVICTIONS.get_field_index(name)
        values = pa.array([each[at] for each in judged], pa.int64())
        evictions = evictions.set_column(position, EVICTIONS.field(position), values)
    return evictions
