# SPDX-License-Identifier: Apache-2.0
"""Figures of a trace against counts by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from sqsim.trace.schema import Reset
from sqsim.trace.statistics import final_context, prompts, statistics
from tests.sqsim.tasks import call, chain, task, tasks, turn


def test_prompts_add_up_by_hand():
    """Prefix 40 + question 30; a turn adds reasoning 20, text 5, calls, template 3 and responses."""
    known = task(turn(call(0), template_tokens=3), turn(call(None, 50)), turn(reset=Reset(keep_tokens=7)))
    assert prompts(known) == [70, 70 + 25 + 10 + 3 + 100, 47, 47 + 25]
    assert final_context(known) == 72 + 50


def test_stripped_reasoning_leaves_the_next_prompt():
    known = task(turn(call(0)), turn(call(1)), reasoning_kept=False)
    assert prompts(known) == [70, 70 + 5 + 110, 70 + 2 * 115]


@settings(deadline=None, max_examples=50)
@given(tasks())
def test_there_is_one_prompt_a_step(drawn):
    assert len(prompts(drawn)) == drawn.steps
    assert min(prompts(drawn)) >= 1


def test_counts_and_shares_by_hand():
    """Three turns of one call; cursor 0 is used at step 1 and by the answer, cursor 1 never, cursor 2 failed."""
    known = task(turn(call(0, 100)), turn(call(1, 300), uses=(0,)), turn(call(None, 20)), answer_uses=(0,))
    found = statistics([known])
    assert (found["tasks"], found["model_calls"], found["tool_calls"], found["failed_calls"]) == (1, 4, 3, 1)
    assert found["output_tokens"] == 3 * 35 + 50
    assert found["tool_response_tokens"] == 420
    assert found["final_context_p50"] == 70 + 3 * 35 + 420 + 50
    assert found["tool_share"] == pytest.approx(420 / 645)
    assert found["response_tokens_p50"] == 200, "of the successful ones"
    assert found["references_recorded"] == 2
    assert found["never_used_share"] == 0.5
    # age 1: cursors 0 (100 tokens, used at step 1 and later) and 1 (300, never): 100 of 400
    assert found["still_needed_at_1"] == 0.25
    assert found["still_needed_at_5"] is None, "no step is five behind a call"


def test_what_an_oracle_saves_by_hand():
    """Tool tokens are 110 a turn. Without eviction the answer's prompt holds all four; every response is used in the
    next step only, so an oracle never holds more than one."""
    assert statistics([chain(4)])["oracle_saves_peak_share_p50"] == pytest.approx(1 - 110 / 440)
    kept = chain(4, uses={4: (0, 1, 2, 3)})
    assert statistics([kept])["oracle_saves_peak_share_p50"] == 0


def test_a_reset_frees_without_an_oracle():
    known = task(
        turn(call(0)), turn(call(1), reset=Reset(keep_tokens=9)), turn(call(2), reset=Reset(keep_tokens=9))
    )
    assert statistics([known])["oracle_saves_peak_share_p50"] == 0
    assert statistics([known])["resets"] == 2


@settings(deadline=None, max_examples=50)
@given(tasks())
def test_an_oracle_saves_a_share(drawn):
    saved = statistics([drawn])["oracle_saves_peak_share_p50"]
    assert saved is None or 0 <= saved <= 1


def test_no_tasks_have_no_figures_but_counts():
    found = statistics([])
    assert found["tasks"] == 0
    assert found["steps_mean"] is None
    assert found["final_context_p50"] is None
