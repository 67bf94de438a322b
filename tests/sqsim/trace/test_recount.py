# SPDX-License-Identifier: Apache-2.0
"""Counts for another model: scaled prompts stay sums, estimated ones come from the texts, and the labels say so."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.errors import InputError, TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.importing import import_files
from sqsim.trace.recount import Recount, scaled
from sqsim.trace.schema import Prefix, Question
from sqsim.trace.statistics import prompts, statistics
from sqsim.trace.store import read_tasks, write_tasks
from tests.sqsim.tasks import call, chain, task, tasks, turn

TRACES = Path(__file__).parents[3] / "traces"


def counts(value: object) -> list[int]:
    """Every token count of a task's JSON, in order."""
    if isinstance(value, list):
        return [count for item in value for count in counts(item)]
    if not isinstance(value, dict):
        return []
    own = [tokens for key, tokens in value.items() if key == "tokens" or key.endswith("_tokens")]
    return [tokens for tokens in own if tokens is not None] + [
        count for item in value.values() for count in counts(item)
    ]


@given(drawn=tasks(), factor=st.fractions(Fraction(1, 1000), 1000, max_denominator=1000))
def test_every_part_keeps_a_token_and_an_empty_one_none(drawn, factor):
    made = Checks().task(scaled(drawn, factor))
    before, after = (counts(json.loads(each.model_dump_json())) for each in (drawn, made))
    assert [tokens > 0 for tokens in after] == [tokens > 0 for tokens in before]


@given(drawn=tasks(), factor=st.fractions(Fraction(1, 1000), 1000, max_denominator=1000))
def test_a_scaled_prompt_is_the_recorded_one_times_x(drawn, factor):
    """To half a token, and above it at most by the parts that may not vanish."""
    parts = 6 + sum(4 + 2 * len(turn.calls) for turn in drawn.turns)
    for before, after in zip(prompts(drawn), prompts(scaled(drawn, factor)), strict=True):
        assert before * factor - parts <= after <= before * factor + parts


def test_where_no_part_is_small_a_scaled_prompt_is_exact():
    drawn = chain(40, 1234)
    factor = Fraction("0.67")
    assert prompts(scaled(drawn, factor)) == [round(tokens * factor) for tokens in prompts(drawn)]


@given(drawn=tasks())
def test_a_factor_of_one_changes_nothing(drawn):
    assert scaled(drawn, Fraction(1)) == drawn


def test_what_is_read_by_hand():
    """Half of prefix 40, question 30, a step of 20 + 5 + 10 with a response of 101, an answer of 51."""
    made = scaled(task(turn(call(0, 101)), answer=51), Fraction(1, 2))
    (step,) = made.turns
    assert (made.prefix.tokens, made.question.tokens) == (20, 15)
    assert (step.reasoning_tokens, step.text_tokens, step.calls[0].call_tokens) == (
        10,
        3,
        4,
    )  # to 45, 48 (47.5), 52 (52.5)
    assert step.calls[0].response_tokens == 51  # to 103
    assert prompts(made) == [35, 103]
    assert made.answer.output_tokens == 25  # to 128 (128.5)


def test_one_prefix_stays_one_prefix():
    a, b = (scaled(task(turn(call(0)), question=Question(tokens=n)), Fraction("0.37")) for n in (3, 301))
    assert a.prefix == b.prefix == Prefix(id="p", tokens=15)


@pytest.mark.parametrize("factor", ["0.67", "2.5", "0.001"])
def test_shared_blocks_stay_shared(factor):
    name = "mooncake/conversation_head300.jsonl"
    plain, made = (import_files([TRACES / name], tokens=how).tasks for how in ("recorded", f"scale={factor}"))
    for before, after in zip(plain, made, strict=True):
        Checks().task(after)
        assert after.question.hash_ids == before.question.hash_ids
        assert after.question.block_tokens == max(1, round(512 * Fraction(factor)))


def test_token_ids_of_another_tokenizer_go():
    drawn = task(turn(call(0)), prefix=Prefix(id="p", tokens=3, token_ids=(1, 2, 3), text="abc"))
    made = scaled(drawn, Fraction(2)).prefix
    assert (made.tokens, made.token_ids, made.text) == (6, None, "abc")


def test_a_count_beyond_the_format_is_named():
    with pytest.raises(
        TraceError, match="task t: 600000000000 tokens in one part; use a smaller --tokens scale=X"
    ):
        scaled(task(turn(call(0, 600_000_000))), Fraction(1000))


def test_labels_say_what_was_done_and_factors_multiply(tmp_path):
    report = import_files([TRACES / "weka/trace_0617.json"], tokens="scale=0.5")
    assert report.carries["usage"] == {"recorded, scaled by 0.5": 1}
    write_tasks(tmp_path / "half.jsonl", report.tasks)
    again = import_files([tmp_path / "half.jsonl"], tokens="scale=0.5")
    assert again.carries["usage"] == {"recorded, scaled by 0.25": 1}
    write_tasks(tmp_path / "quarter.jsonl", again.tasks)
    assert list(read_tasks(tmp_path / "quarter.jsonl")) == again.tasks
    assert statistics(again.tasks)["carries_usage_scaled"] == 1


@pytest.mark.parametrize("name", ["tau_bench", "webdancer"])
def test_estimated_counts_are_estimated_the_same_again(name):
    """A recording without usage has the counts of its texts already."""
    plain, made = (import_files([TRACES / name], tokens=how).tasks for how in ("recorded", "model"))
    assert made == plain


def test_model_counts_texts_and_keeps_what_has_none():
    report = import_files([TRACES / "claude_code"], tokens="model")
    (plain,) = import_files([TRACES / "claude_code"]).tasks
    (made,) = report.tasks
    assert made.carries.usage == "derived"
    assert made.prefix == plain.prefix, "a Claude Code log holds no system prompt"
    for before, after in zip(plain.turns, made.turns, strict=True):
        for old, new in zip(before.calls, after.calls, strict=True):
            surplus = max(0, old.call_tokens - len(old.call_text.encode()))  # the publisher cut texts
            assert new.call_tokens == estimate_tokens(old.call_text) + surplus
        if before.reasoning_text is None:
            assert after.reasoning_tokens == before.reasoning_tokens
    assert re.fullmatch(
        r"estimated from text for \d+ % of tokens \(\d\.\d\d times as many as recorded\),"
        r" as recorded for \d+ %, which have no text",
        report.usage,
    )


def test_model_without_any_text_is_refused_by_name():
    with pytest.raises(TraceError, match=r"trace_0617\.json: no task holds a text.*use --tokens scale=X"):
        import_files([TRACES / "weka/trace_0617.json"], tokens="model")


@pytest.mark.parametrize(
    "text", ["scale", "scale=", "scale=0", "scale=-1", "scale=nan", "scale=1e9", "scale=1/0"]
)
def test_a_factor_that_is_none_is_refused(text):
    with pytest.raises(InputError, match=r"from 0\.001 to 1000, as in scale=0\.67"):
        Recount.named(text)


def test_an_unknown_word_is_refused_with_the_choices():
    with pytest.raises(InputError, match="tokens 'gpt' does not exist; choose recorded, model or scale=X"):
        import_files([TRACES / "weka"], tokens="gpt")
