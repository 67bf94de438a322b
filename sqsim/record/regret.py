# SPDX-License-Identifier: Apache-2.0
"""Regret: the memory that a run held over time, compared with the oracle's."""

from __future__ import annotations

import pyarrow.compute as pc

from sqsim.record.columns import ratio
from sqsim.record.schema import COMPLETED, RunRecord


def regret_tokens(record: RunRecord, oracle: RunRecord) -> float | None:
    """Compute a run's resident token-seconds above the oracle's, as a share of the oracle's.

    A main step counts the context after it (`resident_tokens_after`) from its submission to the next step's; the
    last step counts it until its task ends. Only tasks that completed in both runs are counted; None where there
    is none, or the oracle held nothing.
    """
    mine, best = _held_token_s(record), _held_token_s(oracle)
    both = mine.keys() & best.keys()
    least = sum(best[task] for task in sorted(both))
    return ratio(sum(mine[task] for task in sorted(both)) - least, least)


def _held_token_s(record: RunRecord) -> dict[str, float]:
    """Sum the resident token-seconds of each completed task."""
    tasks = record.tasks.filter(pc.equal(record.tasks["outcome"], COMPLETED))
    end = dict(zip(tasks["task"].to_pylist(), tasks["end_s"].to_pylist(), strict=True))
    turns = record.turns.sort_by([("task", "ascending"), ("turn", "ascending")])
    names, start = turns["task"].to_pylist(), turns["submit_s"].to_pylist()
    held = dict.fromkeys(end, 0.0)
    for row, tokens in enumerate(turns["resident_tokens_after"].to_pylist()):
        task = names[row]
        if task in held:
            last = row + 1 == len(names) or names[row + 1] != task
            held[task] += tokens * ((end[task] if last else start[row + 1]) - start[row])
    return held
