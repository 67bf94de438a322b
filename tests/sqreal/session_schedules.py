# SPDX-License-Identifier: Apache-2.0
"""Random schedules of a few sessions: what hypothesis draws, and a session agent carries out."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.sqreal.session_agent import Step


def driving(examples: int) -> settings:
    """For tests whose examples drive a server: so many (or $SQREAL_SCHEDULES), the same every time, none shrunk."""
    return settings(
        max_examples=int(os.environ.get("SQREAL_SCHEDULES", examples)),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a failing example is reported as it was found
    )


def schedules(
    *, most_new: int, turns: tuple[int, int] = (5, 20), squeeze: bool = True
) -> st.SearchStrategy[list[list[Step]]]:
    """One or two sessions of so many turns, of up to `most_new` tokens each; `squeeze`: may idle rows be released?"""
    steps = st.builds(
        Step,
        new=st.integers(1, most_new),
        out=st.integers(1, 6),
        drop=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=2).map(tuple),
        fork=st.sampled_from([None, None, "with", "first"]),
        fork_out=st.integers(1, 12),
        abort=st.sampled_from([False] * 7 + [True]),
        squeeze=st.sampled_from([False] * 9 + [squeeze]),
    )
    return st.lists(st.lists(steps, min_size=turns[0], max_size=turns[1]), min_size=1, max_size=2)
