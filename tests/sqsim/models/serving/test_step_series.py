# SPDX-License-Identifier: Apache-2.0
"""Closed forms equal sums, with coefficients that make both exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqsim.models.serving.step_series import StepSeries

ramps = st.builds(
    lambda base, more: StepSeries(base / 2**10, more / 2**20),
    st.integers(1, 200),
    st.sampled_from([0, 0, 1, 7, 300]),
)


@given(ramps, st.integers(0, 80))
def test_the_seconds_of_many_steps(series, steps):
    assert series.total_s(steps) == sum(series.base_s + step * series.more_s for step in range(1, steps + 1))


@given(ramps, st.integers(0, 80), st.integers(0, 100), st.integers(1, 5000))
def test_how_many_steps_end_before_an_event(series, at_most, start, wait):
    start_s, due_s = start / 64, start / 64 + wait / 2**10
    ends = [start_s + series.total_s(step) for step in range(1, at_most + 1)]
    assert series.steps_before(start_s, due_s, at_most) == sum(end < due_s for end in ends)


@given(ramps, st.integers(0, 80), st.sampled_from([1, 4, 16]), st.lists(st.integers(0, 40), max_size=5))
def test_the_token_seconds_of_rows_that_grow_by_pages(series, steps, page, lengths):
    def held(step: int) -> int:
        return sum(-(-(length + step) // page) * page for length in lengths)

    crossings: dict[int, int] = {}
    for length in lengths:
        crossings[1 + -length % page] = crossings.get(1 + -length % page, 0) + 1
    one_by_one = sum(held(step) * (series.base_s + step * series.more_s) for step in range(1, steps + 1))
    assert series.held_token_s(steps, held(0), page, crossings) == one_by_one
