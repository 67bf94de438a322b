# SPDX-License-Identifier: Apache-2.0
"""Share of a variant's evicted responses that was needed later.

Trajectories are held fixed, so a wrong eviction costs nothing in a run: a careless policy looks fast for free.
No throughput is shown as the best without these numbers.
"""

from __future__ import annotations

from sqsim.report.data.measures import EVICTED_THEN_USED, EVICTIONS, counted, number, share, written
from sqsim.report.data.sources import Point

CAREFUL = 0.10
"""A variant counts as careful while at most this share of its evicted responses is needed later: a stated rule."""

RULE = f"at most {100 * CAREFUL:g} % of what it evicts is needed later"


def share_needed_later(point: Point) -> float | None:
    """Compute the share of evicted responses needed later; 0 where nothing is evicted, None where unknown."""
    evicted, needed = (number(point.metrics.get(m.key)) for m in (EVICTIONS, EVICTED_THEN_USED))
    if evicted == 0 or point.policy == "none":
        return 0.0
    return None if evicted is None or needed is None else needed / evicted


def is_careful(point: Point) -> bool:
    """Whether the variant is careful by the rule; an unknown share is not careful."""
    part = share_needed_later(point)
    return part is not None and part <= CAREFUL


def evicts(point: Point) -> bool:
    """Whether the run evicted anything."""
    return bool(number(point.metrics.get(EVICTIONS.key)))


def needed_later(point: Point) -> str:
    """State `2,615 of its 7,795 evicted responses (33.5 %) were needed later`."""
    if share_needed_later(point) is None:
        return "how many of its evicted responses were needed later is not available"
    needed, evicted = (point.metrics.get(m.key) for m in (EVICTED_THEN_USED, EVICTIONS))
    were = "was" if needed == 1 else "were"
    return f"{written(needed)} of its {counted(evicted, 'evicted response')} ({share(share_needed_later(point))}) {were} needed later"
