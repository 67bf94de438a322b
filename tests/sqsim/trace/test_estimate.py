# SPDX-License-Identifier: Apache-2.0
"""The token estimate: known o200k counts of sentences, and the medians that FORMATS.md gives for tau-bench."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.trace.estimate import estimate_tokens

TRACES = Path(__file__).parents[3] / "traces"


def test_no_text_has_no_token_and_any_text_has_one():
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") == 1
    assert estimate_tokens("\n") == 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog.", 10),  # one token a word and one for the full stop
        ("1234567", 3),  # o200k cuts numbers into groups of three digits
        ("Hello, World!", 4),
        ("def f(x):\n    return x\n", 9),
    ],
)
def test_texts_whose_o200k_count_follows_from_its_pieces(text, tokens):
    assert abs(estimate_tokens(text) - tokens) <= 1


def test_tau_bench_medians_are_those_of_o200k():
    """FORMATS.md, counted with o200k over 182 conversations: response p50 244, output p50 41, final context p50 3.4K.

    Ten of these conversations are here, so the medians differ by their choice as well: within 30 %.
    """
    rows = json.loads((TRACES / "tau_bench/airline_gpt4o.json").read_text())
    responses = [estimate_tokens(m["content"]) for row in rows for m in row["traj"] if m["role"] == "tool"]
    finals = [sum(estimate_tokens(m["content"] or "") for m in row["traj"]) for row in rows]
    assert abs(np.median(responses) / 244 - 1) < 0.3
    assert abs(np.median(finals) / 3400 - 1) < 0.3


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=200), st.text(max_size=200))
def test_estimates_are_subadditive_up_to_the_seam(one, other):
    """Joining two texts never adds more than the piece at the seam takes."""
    joined = estimate_tokens(one + other)
    assert joined <= estimate_tokens(one) + estimate_tokens(other) + 1
    assert joined <= max(1, len(one + other))
