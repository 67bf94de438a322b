# SPDX-License-Identifier: Apache-2.0
"""The declared decision model: lengths and names as SPEC.md, "Aux threads", has them."""

from __future__ import annotations

from sqsim.policies.decisions import DecisionModel
from tests.sqsim.tasks import chain


def model(limit: int) -> DecisionModel:
    """A thread that names whatever has expired."""
    return DecisionModel(
        chain(6), "t", seed=0, recall=1.0, false_rate=0.0, aux_tokens=125, aux_max_new_tokens=limit
    )


def test_an_output_of_exactly_the_limit_is_whole():
    """`aux_max_new_tokens` tokens may be written; only a longer output is cut off before its list is complete."""
    whole = model(256).decide(0, 5, range(5))
    assert whole.decision.named == (0, 1, 2, 3)  # step 5 is the first that reads cursor 4
    assert model(whole.output_tokens).decide(0, 5, range(5)) == whole
    cut = model(whole.output_tokens - 1).decide(0, 5, range(5))
    assert (cut.output_tokens, cut.decision.malformed) == (whole.output_tokens - 1, True)
