# SPDX-License-Identifier: Apache-2.0
"""How completed tasks spend their time: the evidence for a bottleneck."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from sqsim.record.columns import Floats, floats
from sqsim.record.schema import COMPLETED, RunRecord

PARTS = {
    "queue_s": "from a main step's submission to its admission",
    "prefill_s": "from its admission to its first token",
    "decode_s": "from its first token to its end",
    "tools_s": "from its end to the last tool response",
    "rest_s": "the rest: users, pauses, summaries, waiting for a place in the load",
}
"""Parts of a task's time, in seconds a task; they sum to its mean time."""


def time_spent(record: RunRecord) -> dict[str, float] | None:
    """Compute the mean seconds that a completed task spent in each of `PARTS`; None where none completed."""
    done = record.tasks.filter(pc.equal(record.tasks["outcome"], COMPLETED))
    if not done.num_rows:
        return None
    turns = record.turns.filter(pc.is_in(record.turns["task"], value_set=done["task"].combine_chunks()))
    submit, admit, first, end, tools = (
        floats(turns, name) for name in ("submit_s", "admit_s", "first_token_s", "end_s", "tool_end_s")
    )
    whole = float((floats(done, "end_s") - floats(done, "start_s")).sum())
    parts = {
        "queue_s": _sum(admit - submit),
        "prefill_s": _sum(first - admit),
        "decode_s": _sum(end - first),
        "tools_s": _sum(tools - end),
    }
    parts["rest_s"] = max(0.0, whole - sum(parts.values()))
    return {name: seconds / done.num_rows for name, seconds in parts.items()}


def _sum(values: Floats) -> float:
    return float(np.nansum(values))
