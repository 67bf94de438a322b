# SPDX-License-Identifier: Apache-2.0
"""Closed-form sums over steps that each take a constant time longer than the step before.

A decode step's time is affine in what its rows read (step_cost.py), and every row reads one token more each step: step j of a
fixed batch takes `base_s + j * more_s`. Counts stay integers up to the last product. So with coefficients that are
dyadic rationals every sum is exact, in closed form as step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple


class StepSeries(NamedTuple):
    """Steps 1, 2, 3, ... of `base_s + j * more_s` seconds."""

    base_s: float
    more_s: float

    def total_s(self, steps: int) -> float:
        """Sum the seconds of the first `steps` steps."""
        return steps * self.base_s + steps * (steps + 1) // 2 * self.more_s

    def steps_before(self, start_s: float, due_s: float, at_most: int) -> int:
        """Count the steps that end before `due_s` when the first begins at `start_s`; at most `at_most`."""
        if start_s + self.total_s(at_most) < due_s:
            return at_most
        half, seconds = self.more_s / 2, due_s - start_s
        linear = self.base_s + half
        steps = min(at_most, int(2 * seconds / (linear + sqrt(linear * linear + 4 * half * seconds))))
        while steps and not start_s + self.total_s(steps) < due_s:  # the root is off by a rounding
            steps -= 1
        while steps < at_most and start_s + self.total_s(steps + 1) < due_s:
            steps += 1
        return steps

    def held_token_s(self, steps: int, held: int, page: int, crossings: Mapping[int, int]) -> float:
        """Sum, over the steps, the tokens held in a step times its seconds: token-seconds.

        `held`: tokens before step 1. `crossings`: step -> rows that take a page in it, and again every `page` steps.
        """
        whole_s = self.total_s(steps)
        token_s = held * whole_s
        for first, rows in crossings.items():
            pages = (steps - first) // page + 1
            if pages > 0:
                # Page k is held from step first + k * page on: all seconds except those of earlier steps.
                token_s += rows * page * (pages * whole_s - self._sum_of_totals_s(first - 1, page, pages))
        return token_s

    def _sum_of_totals_s(self, first: int, stride: int, terms: int) -> float:
        """Sum `total_s(first + k * stride)` for k from 0 to terms - 1."""
        ones = terms * (terms - 1) // 2
        squares = ones * (2 * terms - 1) // 3
        linear = terms * first + stride * ones
        quadratic = terms * first * first + 2 * first * stride * ones + stride * stride * squares
        return linear * self.base_s + (quadratic + linear) // 2 * self.more_s
