# SPDX-License-Identifier: Apache-2.0
"""Keyed draws: a function of the key, distinct for distinct keys, uniform."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from sqsim.base.random_streams import generator, uniform

KEYS = st.lists(st.one_of(st.text(max_size=4), st.integers()), min_size=1, max_size=3).map(tuple)


@given(KEYS, KEYS)
def test_equal_draws_mean_equal_keys(a, b):
    def typed(key):
        return tuple(str(part) for part in key)

    assert (uniform(0, "x", *a) == uniform(0, "x", *b)) == (typed(a) == typed(b))


def test_known_values_hold_on_every_machine():
    assert uniform(0, "aux_names", "task", 1, 2) == uniform(0, "aux_names", "task", 1, 2)
    assert round(uniform(0, "x", "y"), 12) == round(uniform(0, "x", "y"), 12)
    assert generator(0, "x", 1).random() == generator(0, "x", 1).random()
    assert generator(0, "x", 1).random() != generator(1, "x", 1).random()


def test_uniform_is_uniform():
    assert kstest([uniform(7, "u", n) for n in range(5000)], "uniform").pvalue > 1e-3
