# SPDX-License-Identifier: Apache-2.0
"""Last use (METHOD.md, "Words"; SPEC.md: never before the step that first reads the response), and drawn references."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.trace import references as module
from sqsim.trace.checks import Checks
from sqsim.trace.references import first_reads, last_uses, references, synthesise_uses, uses_after
from sqsim.trace.schema import Reset
from tests.sqsim.tasks import call, chain, task, tasks, turn


def test_last_use_is_the_last_step_that_refers_to_a_cursor():
    """By hand: turn t opens cursor t; cursor 0 is used at steps 1 and 3, cursor 1 by the answer, which is step 4."""
    known = chain(4, uses={1: (0,), 3: (0,), 4: (1,)})
    assert last_uses(known) == {0: 3, 1: 4, 2: 3, 3: 4}


def test_a_response_nobody_refers_to_is_last_used_when_it_is_first_read():
    assert last_uses(chain(3)) == {0: 1, 1: 2, 2: 3}


def test_a_last_response_that_nobody_read_is_due_at_the_step_after_it():
    assert last_uses(chain(2, answer=None)) == {0: 1, 1: 2}


def test_failed_calls_have_no_last_use_and_parallel_ones_each_have():
    assert last_uses(task(turn(call(None), call(5), call(2)), turn(uses=(2,)))) == {5: 1, 2: 1}


def test_uses_after_counts_the_steps_from_a_boundary_on():
    """An eviction at boundary t comes before main step t, so it loses that step's reference too."""
    known = chain(5, uses={1: (0,), 3: (0, 1), 5: (0,)})
    assert [uses_after(references(known)[0], step) for step in range(1, 7)] == [3, 2, 2, 1, 1, 0]
    assert uses_after(references(known)[4], 5) == 0


@settings(deadline=None, max_examples=50)
@given(tasks())
def test_last_use_agrees_with_uses_after(drawn):
    for cursor, last in last_uses(drawn).items():
        assert first_reads(drawn)[cursor] <= last
        assert uses_after(references(drawn)[cursor], last + 1) == 0
        assert last == first_reads(drawn)[cursor] or uses_after(references(drawn)[cursor], last) == 1
        assert uses_after(references(drawn)[cursor], 0) == len(references(drawn)[cursor])


@settings(deadline=None, max_examples=50)
@given(tasks(), st.integers(0, 2**31))
def test_drawn_references_are_sound_and_change_nothing_else(drawn, seed):
    made = synthesise_uses(drawn, seed)
    Checks().task(made)
    assert made.carries.references == "synthesised"
    assert made == synthesise_uses(made, seed), "drawing again draws the same"
    assert module.with_uses(made, [()] * made.steps, "absent") == module.with_uses(
        drawn, [()] * drawn.steps, "absent"
    )


def test_drawn_references_are_keyed_by_cursor():
    """A cursor's uses do not depend on which other cursors the task has."""
    many = task(*(turn(call(index), call(index + 100)) for index in range(30)))
    few = task(*(turn(call(index)) for index in range(30)))
    one, other = references(synthesise_uses(many, 7)), references(synthesise_uses(few, 7))
    assert {cursor: one[cursor] for cursor in other} == other
    assert references(synthesise_uses(few, 8)) != other


def test_a_compaction_ends_drawn_references():
    turns = [turn(call(i), reset=Reset(keep_tokens=9) if i == 10 else None) for i in range(20)]
    made = references(synthesise_uses(task(*turns), 0))
    assert all(step < 10 for cursor in range(10) for step in made[cursor])
    assert made[9] == [], "cursor 9 would first be read by the turn that the compaction precedes"


def test_drawn_references_have_the_mixture_that_is_stated():
    """FORMATS.md, "Last use": never 0.4; of the used 0.35 next step only, 0.30 geometric, 0.35 anchors; 0.3 come back.

    5,000 responses of long tasks, none near the end; 4 standard errors are 0.03.
    """
    used, shapes, back = 0, Counter(), 0
    for number in range(100):
        made = references(synthesise_uses(chain(150, name=f"t{number}"), 0))
        for cursor in range(50):
            steps, read = made[cursor], cursor + 1
            if not steps:
                continue
            used += 1
            assert steps[0] == read, "a used response is used by the step that first reads it"
            back += 150 in steps
            inner = [step for step in steps if step != 150]
            shapes["anchor" if len(inner) > 2 else "short"] += 1
            if len(inner) > 2:
                gaps = [b - a for a, b in pairwise(inner)]
                assert min(gaps) >= module.SILENT_STEPS
    assert abs(used / 5000 - 0.6) < 0.03
    assert abs(shapes["anchor"] / used - 0.35) < 0.03
    # an anchor may reach step 150 by its own gaps as well (mean gap 9 steps)
    assert 0.27 < back / used < 0.3 + 0.7 * 0.35 / 9 + 0.03
