# SPDX-License-Identifier: Apache-2.0
"""The decision model against its own numbers (SPEC.md, "Aux threads")."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from sqsim.policies.decisions import DecisionModel
from tests.sqsim.tasks import chain

TURNS = 40
MADE = chain(
    TURNS, uses={TURNS: tuple(range(0, TURNS, 2))}
)  # even cursors are needed to the end, odd ones never
OPEN = range(TURNS - 1)  # the newest is read by the answer itself, so it is live


def model(name: str = "t", **options) -> DecisionModel:
    fields = {
        "seed": 0,
        "recall": 0.85,
        "false_rate": 0.02,
        "aux_tokens": 125,
        "aux_max_new_tokens": 256,
        **options,
    }
    return DecisionModel(MADE, name, **fields)


def test_expired_are_named_with_recall_and_live_with_false_rate():
    expired = live = 0
    for index in range(200):
        named = model().decide(index, TURNS, OPEN).decision.named
        expired += sum(cursor % 2 for cursor in named)
        live += sum(1 - cursor % 2 for cursor in named)
    for found, chance, calls in ((expired, 0.85, 200 * 19), (live, 0.02, 200 * 20)):
        low, high = binom.interval(0.9999, calls, chance)
        assert low <= found <= high


@pytest.mark.parametrize(("recall", "false_rate", "named"), [(1.0, 0.0, 1), (0.0, 1.0, 0)])
def test_the_corners_are_exact(recall, false_rate, named):
    decision = model(recall=recall, false_rate=false_rate).decide(0, TURNS, OPEN).decision
    assert decision.named == tuple(range(named, TURNS - 1, 2))


def test_a_draw_depends_on_its_key_and_on_nothing_else():
    """Common random numbers: what else is open, and when, changes no cursor's luck."""
    all_open = model().decide(3, TURNS, OPEN).decision.named
    some = model().decide(3, TURNS, range(10, 20)).decision.named
    assert some == tuple(cursor for cursor in all_open if 10 <= cursor < 20)
    assert model("other").decide(3, TURNS, OPEN).decision.named != all_open
    assert model(seed=1).decide(3, TURNS, OPEN).decision.named != all_open


def test_lengths_are_those_of_figure_7():
    lengths = [model().decide(index, TURNS, ()).output_tokens for index in range(500)]
    assert min(lengths) >= 110
    assert max(lengths) <= 140
    assert sum(lengths) / 500 == pytest.approx(125, abs=1.5)


def test_an_output_cut_off_by_its_limit_names_nothing():
    script = model(aux_max_new_tokens=100).decide(0, TURNS, OPEN)
    assert script == (100, ((), True))
