# SPDX-License-Identifier: Apache-2.0
"""What is resident, where it lies, and what an eviction removes (SPEC.md, "Words"; SGLANG.md, "Guards")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.agent.context import Context, Span
from sqsim.models.serving.tokens import Segments, count
from sqsim.trace.schema import Prefix, Question, Reset
from tests.sqsim.tasks import call, chain, tasks, turn


def context(task, **options) -> Context:
    return Context(Segments(), task.prefix, task.question, **{"in_place": False, **options})


def play(made: Context, task, steps: int) -> Context:
    """Run the first `steps` turns, each fully computed by a server that ends by length."""
    for index, step in enumerate(task.turns[:steps]):
        made.kv_tokens = made.tokens + count(made.plan(step)) - 1
        made.extend(index, step, reasoning_kept=task.reasoning_kept)
    return made


def test_a_turn_appends_output_template_and_responses():
    task = chain(2)
    made = play(context(task), task, 1)
    assert made.tokens == 70 + (20 + 5 + 10) + 100  # prefix and question, output, response
    assert [c.cursor for c in made.cursors] == [0]
    assert made.cursors[0].tokens == 110  # call and response are the eviction unit


def test_reprefill_leaves_call_and_response_out_and_nothing_else():
    task = chain(3)
    made = play(context(task), task, 3)
    before = made.tokens
    clearing = made.evict([1])
    assert made.tokens == before - 110
    assert clearing.evicted[0][:2] == (1, 110)
    assert made.shift == 0


def test_in_place_spans_are_resident_coordinates_and_move_positions():
    task = chain(3)
    made = play(context(task, in_place=True), task, 3)
    clearing = made.evict([0])
    assert clearing.spans == (Span(95, 205),)  # 70 + 25 kept tokens of turn 0, then call 10 and response 100
    assert made.shift == 110
    second = made.evict([1])
    assert second.spans == (Span(120, 230),)  # counted with cursor 0 gone: 95 + 25


def test_neighbouring_spans_are_one():
    task = chain(1)
    wide = task.model_copy(update={"turns": (turn(call(0), call(1)), turn(call(2)), turn(call(3)))})
    made = play(context(wide, in_place=True), wide, 3)
    assert len(made.evict([0, 1]).spans) == 1  # two calls, then two responses, without a template between


def test_whole_pages_only_and_the_residue_stays():
    """KERNEL law of page sizes above 1 (SGLANG.md: "16: 288 of 300")."""
    task = chain(3)
    made = play(context(task, in_place=True, page_size=16), task, 3)
    before = made.tokens
    clearing = made.evict([0])
    # 95..105 the call: no whole page; 105..205 the response is one piece with it in the context
    assert clearing.spans == (Span(112, 192),)
    assert clearing.evicted[0].tokens == 80
    assert made.tokens == before - 80


def test_a_span_without_a_window_of_kv_behind_it_waits_and_is_not_lost():
    task = chain(3)
    made = play(context(task, in_place=True, tail_tokens=128), task, 2)
    made.kv_tokens = 300  # ends in turn 1's output: the end of cursor 0 is at 205, 95 tokens before it
    assert made.evict([0]).evicted == ()
    assert [c.cursor for c in made.cursors] == [0, 1]
    made.kv_tokens = made.tokens
    assert [e.cursor for e in made.evict([]).evicted] == [0]


@pytest.mark.parametrize("cursors", [[7], [0, 0], []])
def test_naming_what_is_gone_or_never_was_changes_nothing(cursors):
    task = chain(3)
    made = play(context(task), task, 3)
    made.evict([0])
    before = made.prompt
    assert made.evict(cursors).evicted == ()
    assert made.prompt == before


def test_a_restart_keeps_the_prefix_and_closes_every_cursor():
    task = chain(3)
    made = play(context(task), task, 3)
    made.restart(Reset(keep_tokens=500))
    assert made.tokens == 540
    assert made.cursors == ()
    assert made.evict([0]).evicted == ()


def test_stripped_reasoning_leaves_the_next_prompt():
    task = chain(2, reasoning_kept=False)
    made = play(context(task), task, 1)
    with_reasoning = made.tokens
    assert made.strip()
    assert made.tokens == with_reasoning - 20
    assert not made.strip()


def test_equal_hash_ids_are_equal_tokens():
    segments = Segments()
    one = Context(
        segments,
        Prefix(id="a", tokens=0),
        Question(tokens=25, hash_ids=(1, 2, 3), block_tokens=10),
        in_place=False,
    )
    two = Context(
        segments,
        Prefix(id="b", tokens=0),
        Question(tokens=30, hash_ids=(1, 2, 4), block_tokens=10),
        in_place=False,
    )
    assert one.tokens == 25
    assert one.prompt[:2] == two.prompt[:2]
    assert one.prompt[2] != two.prompt[2]


@given(tasks(), st.booleans(), st.sampled_from([1, 4, 16]), st.sampled_from([0, 32]), st.data())
def test_tokens_add_up_under_any_evictions(task, in_place, page, tail, data):
    """Evicted plus resident tokens are what was appended; spans lie in the KV, disjoint, on page bounds."""
    made = context(task, in_place=in_place, page_size=page, tail_tokens=tail)
    appended, evicted = made.tokens, 0
    for index, step in enumerate(task.turns):
        if not task.reasoning_kept and made.strip():
            appended = made.tokens + evicted
            made.rewritten()
        output = count(made.plan(step))
        made.kv_tokens = made.tokens + max(0, output - 1)
        made.extend(index, step, reasoning_kept=task.reasoning_kept)
        appended += step.output_tokens + step.template_tokens + sum(c.response_tokens for c in step.calls)
        before_kv, before_shift = made.kv_tokens, made.shift
        named = data.draw(st.lists(st.integers(0, 12)))
        clearing = made.evict([c.cursor for c in made.cursors if c.cursor in named and c.opened < index])
        evicted += sum(e.tokens for e in clearing.evicted)
        assert made.tokens == appended - evicted
        last = 0
        for start, stop in clearing.spans:
            assert last <= start < stop
            last = stop
            if in_place:
                assert stop + tail <= before_kv
                assert start % page == 0
                assert stop % page == 0
        if in_place:
            assert (
                made.shift - before_shift == before_kv - made.kv_tokens == sum(b - a for a, b in clearing.spans)
            )
