# SPDX-License-Identifier: Apache-2.0
"""Open loads: a mean rate that holds, bursts of their size, a day's shape, the same luck for all of them."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import cos, pi

import numpy as np
import pytest

from sqsim.errors import ScenarioError
from sqsim.scenario.load import RateLoad
from sqsim.scenario.scenario import make_scenario
from sqsim.scenario.workload import _at_rate


def times(number: int, **load) -> list[float]:
    return list(islice(_at_rate(RateLoad(**load), seed=3), number))


@pytest.mark.parametrize(
    "more", [{}, {"arrivals": "bursts", "burst": 4}, {"arrivals": "daily", "period_s": 50.0}]
)
def test_the_mean_rate_is_the_one_that_was_asked_for(more):
    """8,000 arrivals at 2/s: 4,000 s, give or take 3 standard deviations of the gaps (more for bursts of 4)."""
    found = times(8000, rate_per_s=2.0, **more)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(4000, abs=3 * 0.5 * 8000**0.5 * 4**0.5)


def test_a_burst_comes_at_one_instant():
    found = Counter(times(32_000, rate_per_s=2.0, arrivals="bursts", burst=8))
    assert set(found.values()) == {8}
    gaps = np.diff(sorted(found))
    assert gaps.mean() == pytest.approx(
        4.0, rel=0.05
    )  # 4,000 exponential gaps: 1.6 % is one standard deviation
    assert gaps.std() == pytest.approx(4.0, rel=0.07)


def test_the_day_has_its_shape():
    """Arrivals in tenths of a period, against the integral of 1 - 0.8 cos over each."""
    period = 100.0
    found = np.array(times(40_000, rate_per_s=2.0, arrivals="daily", swing=0.8, period_s=period))
    found = found[found < 19_000]
    seen, _ = np.histogram(found % period, bins=10, range=(0, period))
    middle = (np.arange(10) + 0.5) / 10
    expected = np.array([1 - 0.8 * cos(2 * pi * at) for at in middle]) * found.size / 10
    assert seen == pytest.approx(expected, rel=0.08)


def test_a_day_without_a_swing_is_the_poisson_stream():
    """Common random numbers: the shape bends time, the draws are the same."""
    flat = times(50, rate_per_s=2.0, arrivals="daily", swing=0.0)
    assert flat == pytest.approx(times(50, rate_per_s=2.0), rel=1e-12)


def test_what_means_nothing_is_refused_and_not_written():
    content = {"traces": "t.jsonl", "load": {"rate_per_s": 1.0, "burst": 3}}
    with pytest.raises(ScenarioError, match=r"load\.burst: means nothing .* set load\.arrivals: bursts"):
        make_scenario(content)
    load = {"rate_per_s": 1.0, "arrivals": "bursts", "burst": 3}
    resolved = make_scenario({"traces": "t.jsonl", "load": load}).resolved()
    assert resolved["load"] == load
    assert make_scenario(resolved).resolved() == resolved
