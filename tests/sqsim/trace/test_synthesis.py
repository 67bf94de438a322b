# SPDX-License-Identifier: Apache-2.0
"""Synthetic profiles: the targets of FORMATS.md ("Generator defaults"), keyed draws, and what scale does."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest

from sqsim.errors import InputError
from sqsim.trace.checks import Checks
from sqsim.trace.references import references
from sqsim.trace.statistics import final_context, statistics
from sqsim.trace.synthesis import PROFILES, synthesise


@functools.cache
def drawn(profile: str, tasks: int = 424, seed: int = 0):
    return tuple(synthesise(profile, tasks, seed))


def outputs(tasks) -> list[int]:
    return [turn.output_tokens for task in tasks for turn in task.turns]


def responses(tasks, tool: str) -> list[int]:
    return [
        call.response_tokens
        for task in tasks
        for turn in task.turns
        for call in turn.calls
        if call.tool == tool and call.error is None
    ]


def test_frames_meets_the_targets_of_the_paper():
    """FORMATS.md: turns mean 20-24, p90 about 36; a task ends at 10K-40K tokens, mean 25K or more; output mean 190."""
    tasks = drawn("frames")
    steps = [task.steps for task in tasks]
    finals = [final_context(task) for task in tasks]
    assert 20 <= np.mean(steps) - 1 <= np.mean(steps) <= 24
    assert 34 <= np.percentile(steps, 90) <= 38
    assert np.mean(finals) >= 25_000
    assert np.mean([10_000 <= final <= 40_000 for final in finals]) > 0.85
    assert 180 <= np.mean(outputs(tasks)) <= 200
    assert {t.prefix.id for t in tasks} == {tasks[0].prefix.id}, "system prompt and tools are shared"


def test_frames_responses_fill_the_browser_s_view():
    """gpt-oss shows 1,024 tokens by default; find about 150."""
    tasks = drawn("frames")
    for tool in ("search", "open"):
        assert 950 <= np.mean(responses(tasks, tool)) <= 1024
        assert max(responses(tasks, tool)) == 1024
    assert 120 <= np.median(responses(tasks, "find")) <= 180


def test_frames_turns_divide_into_reasoning_text_and_a_call():
    turns = [turn for task in drawn("frames") for turn in task.turns]
    assert all(30 <= call.call_tokens <= 60 for turn in turns for call in turn.calls)
    assert all(turn.reasoning_tokens > 0 and len(turn.calls) == 1 for turn in turns)
    assert all(200 <= task.answer.output_tokens <= 600 for task in drawn("frames"))


def test_some_calls_fail_and_take_no_cursor():
    calls = [call for task in drawn("frames") for turn in task.turns for call in turn.calls]
    failed = [call for call in calls if call.error is not None]
    assert 0.02 < len(failed) / len(calls) < 0.08
    assert all(call.cursor is None and call.response_tokens <= 60 for call in failed)
    for task in drawn("frames"):
        cursors = [call.cursor for turn in task.turns for call in turn.calls if call.cursor is not None]
        assert cursors == list(range(len(cursors))), "a cursor is the index of a successful response"


def test_web_latency_has_a_median_of_two_seconds_and_a_tail():
    waits = [call.latency_s for task in drawn("frames") for turn in task.turns for call in turn.calls]
    assert 1.8 <= np.median(waits) <= 2.2
    assert np.mean([16 <= wait <= 19 for wait in waits]) == pytest.approx(0.04, abs=0.01)
    assert min(waits) >= 0.2


def test_browsecomp_has_a_heavy_tail_and_runaways():
    """FORMATS.md: median 35-45, cut at 100-200, 2-3 % runaway reasoning, tails over 120K tokens."""
    tasks = drawn("browsecomp")
    steps = [task.steps for task in tasks]
    assert 35 <= np.median(steps) <= 45
    assert 100 <= max(steps) <= 200
    ends = Counter(task.outcome.finish for task in tasks)
    assert set(ends) == {"answer", "unparsable"}
    assert 0.01 < ends["unparsable"] / len(tasks) < 0.045, "2.5 % of 424; 2 standard errors are 1.5 %"
    assert 0.02 < np.mean([final_context(task) > 120_000 for task in tasks]) < 0.15
    for task in tasks:
        if task.outcome.finish == "unparsable":
            assert task.answer.reasoning_tokens >= 8_000
            assert task.answer.text_tokens == 0


def test_coding_has_lognormal_responses_and_shell_and_file_latencies():
    """FORMATS.md: lognormal(5.6, 1.7) responses capped at 30K (p50 270); file tools 0.01-0.05 s, shell p50 1.65 s."""
    tasks = drawn("coding")
    assert 250 <= np.median(responses(tasks, "Bash")) <= 290
    assert max(responses(tasks, "Bash")) <= 30_000
    calls = [call for task in tasks for turn in task.turns for call in turn.calls]
    assert all(0.01 <= call.latency_s <= 0.05 for call in calls if call.tool in {"Read", "Edit", "Grep"})
    shell = [call.latency_s for call in calls if call.tool == "Bash"]
    assert 1.5 <= np.median(shell) <= 1.8
    assert 22 <= np.percentile(shell, 99) <= 33
    assert any(len(turn.calls) > 1 and all(c.parallel for c in turn.calls) for t in tasks for turn in t.turns)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_task_does_not_depend_on_how_many_there_are(profile):
    assert tuple(synthesise(profile, 3, 0)) == drawn(profile)[:3]
    assert tuple(synthesise(profile, 3, 1)) != drawn(profile)[:3]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("scale", [0.001, 0.25, 3.0])
def test_synthetic_tasks_are_sound_at_any_scale(profile, scale):
    checks = Checks()
    for task in synthesise(profile, 10, 5, scale):
        checks.task(task)


def test_scale_multiplies_every_token_count():
    for one, half in zip(synthesise("frames", 5), synthesise("frames", 5, scale=0.5), strict=True):
        assert one.steps == half.steps
        assert abs(half.question.tokens - one.question.tokens / 2) <= 0.5
        assert half.prefix.tokens == one.prefix.tokens / 2
        assert half.prefix.id != one.prefix.id, "tasks of two scales share no prompt"
        assert references(one) == references(half)
        for turn, scaled in zip(one.turns, half.turns, strict=True):
            for name in ("reasoning_tokens", "text_tokens", "template_tokens"):
                assert abs(getattr(scaled, name) - getattr(turn, name) / 2) <= 0.5
            for call, smaller in zip(turn.calls, scaled.calls, strict=True):
                assert abs(smaller.response_tokens - call.response_tokens / 2) <= 0.5
                assert smaller.latency_s == call.latency_s


def test_the_readme_states_what_the_profiles_come_out_as():
    """traces/README.md, "Synthetic profiles": 424 tasks, seed 0, scale 1."""
    frames = statistics(drawn("frames"))
    assert round(frames["steps_mean"], 1) == 23.4
    assert (frames["steps_p50"], frames["steps_p90"], frames["steps_max"]) == (21.5, 36, 63)
    assert round(frames["final_context_mean"]) == 25_680
    assert (round(frames["final_context_p50"]), round(frames["final_context_p90"])) == (24_127, 38_787)
    assert round(frames["output_tokens_a_step_mean"]) == 200
    assert round(frames["oracle_saves_peak_share_p50"], 2) == 0.69
    assert round(statistics(drawn("browsecomp"))["final_context_mean"]) == 52_456
    assert round(statistics(drawn("coding"))["final_context_mean"]) == 66_754


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("swe", 3), "profile 'swe' does not exist; choose one of frames, browsecomp, coding"),
        (("frames", 0), "0 tasks make no trace"),
        (("frames", 3, 0, 0.0), "scale 0.0 is not a positive number"),
        (("frames", 3, 0, float("nan")), "scale nan"),
        (("frames", 3, 0, float("inf")), "scale inf"),
    ],
)
def test_what_cannot_be_drawn_is_refused_at_once(arguments, message):
    with pytest.raises(InputError, match=message):
        synthesise(*arguments)
