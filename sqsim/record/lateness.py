# SPDX-License-Identifier: Apache-2.0
"""Sensitivity of aux threads' lateness to step times: what a profile that was not calibrated leaves open.

A thread is late when it ends after its task's next boundary. Its own time and the rest of the main step scale with step times; tools
and users do not. So from one run follows how many threads would be late if every step took half or twice as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from sqsim.record.columns import floats

FACTORS = (0.5, 2.0)
"""Factors on step times that a profile from rooflines may be off by; assumed."""
DECIDES = 0.1
"""Share of threads that must change sides before lateness is said to decide a run."""


class Threads(Protocol):
    """The parts of a record that are read here: run.json and two tables of record/schema.py."""

    @property
    def run(self) -> dict[str, Any]: ...
    @property
    def aux(self) -> pa.Table: ...
    @property
    def turns(self) -> pa.Table: ...


class Lateness(NamedTuple):
    """Number of threads, and of those that are late: as simulated, and between the factors of `FACTORS`."""

    threads: int
    late: int
    least: int
    most: int

    @property
    def decides(self) -> bool:
        """Whether more than a tenth of the threads change sides between the factors."""
        return self.most - self.least > DECIDES * self.threads


def lateness(record: Threads) -> Lateness | None:
    """Compute how many threads are late under each factor; None without a thread whose next boundary is known."""
    aux, turns = record.aux, record.turns
    places = {
        key: place
        for place, key in enumerate(zip(turns["task"].to_pylist(), turns["turn"].to_pylist(), strict=True))
    }
    spawned = list(zip(aux["task"].to_pylist(), aux["spawn_turn"].to_pylist(), strict=True))
    known = [
        (row, places[task, turn], places[task, turn + 1])
        for row, (task, turn) in enumerate(spawned)
        if (task, turn) in places and (task, turn + 1) in places
    ]
    if not known:
        return None
    rows, main, following = (list(column) for column in zip(*known, strict=True))
    start, end = floats(aux, "submit_s")[rows], floats(aux, "end_s")[rows]
    rest = np.maximum(0.0, floats(turns, "end_s")[main] - start)  # of the main step, beside the thread
    wait = floats(turns, "submit_s")[following] - start - rest  # for tools and users
    took = np.where(np.isnan(end), np.inf, end - start)  # a cancelled thread never came in time

    def late(factor: float) -> int:
        return int((factor * took > factor * rest + wait + _SAME_S).sum())

    counts = [late(factor) for factor in (1.0, *FACTORS)]
    return Lateness(len(rows), counts[0], min(counts), max(counts))


_SAME_S = 1e-9
"""Seconds below which two instants of a simulation are one."""


def lateness_note(record: Threads) -> str | None:
    """Say that lateness decides a run whose step times were not calibrated; None where it does not, or they were."""
    profile = record.run.get("profile", {})
    if record.run.get("kind") != "simulated" or profile.get("evidence", {}).get("step") == "measured":
        return None
    found = lateness(record)
    if found is None or not found.decides:
        return None
    return (
        f"not calibrated: lateness decides: {found.late} of {found.threads} aux threads are late, {found.least} to "
        f"{found.most} if steps take half to twice as long, and what is evicted when follows; calibrate the profile "
        "(sqsim calibrate)"
    )
