# SPDX-License-Identifier: Apache-2.0
"""Laws of token ids (SPEC.md, "sqtrace/1"): deterministic, and equal exactly where the runs of segments are equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqreal.replay.token_ids import RESERVED, TokenIds
from sqsim.agent.turn_loop import LoopOptions, RunMain, Spawn, TurnLoop
from sqsim.errors import InputError
from sqsim.models.serving.tokens import Run, Segments, Tokens, common_prefix, count, whole
from sqsim.policies.base import Policy
from sqsim.policies.decisions import DecisionModel
from sqsim.policies.keep_last import KeepLast
from sqsim.policies.none import NoEviction
from sqsim.policies.sidequest import SideQuest
from sqsim.trace.schema import Prefix, Question, Task
from tests.sqsim.tasks import call, task, tasks, turn

VOCABULARY = 512
POLICIES: dict[str, Policy] = {"none": NoEviction(), "keep_last": KeepLast(n=1), "sidequest": SideQuest(k=2)}


def requests(
    made: Task, number: int, policy: Policy, segments: Segments
) -> Iterator[tuple[int, Tokens, Tokens]]:
    """Every request of a task on a server that takes no time, with the task's number."""
    name = f"{made.task_id}#{number}"
    decisions = DecisionModel(
        made, name, seed=0, recall=0.7, false_rate=0.3, aux_tokens=9, aux_max_new_tokens=64
    )
    loop = TurnLoop(made, policy, segments, LoopOptions(in_place=False), decisions)
    actions = loop.start()
    while main := next((action for action in actions if isinstance(action, RunMain)), None):
        yield number, main.prompt, main.output
        for spawn in loop.main_prefilled():
            assert isinstance(spawn, Spawn)
            yield number, spawn.aux.prompt, spawn.aux.output
            loop.aux_ended(spawn.aux)
        loop.main_ended(count(main.prompt) + count(main.output), fresh=False)
        if loop.turn >= len(made.turns):
            return
        actions = loop.tools_returned(kv_kept=True)


def shared(a: list[int], b: list[int]) -> int:
    return next(
        (at for at, (left, right) in enumerate(zip(a, b, strict=False)) if left != right), min(len(a), len(b))
    )


def ids_of(segments: Segments, **changes) -> TokenIds:
    options = {"recorded": segments.recorded, "everywhere": [segments.shared("trigger")], **changes}
    return TokenIds(VOCABULARY, 0, **options)


@settings(max_examples=60, deadline=None)
@given(made=st.lists(tasks(latencies=False), min_size=1, max_size=4), policy=st.sampled_from(sorted(POLICIES)))
def test_two_contexts_share_as_many_ids_as_they_share_tokens(made, policy):
    """A prefix never matches by accident: what a radix tree finds for the ids is what it finds for the runs."""
    segments = Segments()
    ids = ids_of(segments)
    sent = [
        (prompt + output, ids.call(number, prompt, output))
        for number, each in enumerate(made)
        for number, prompt, output in requests(each, number, POLICIES[policy], segments)
    ]
    contexts = [(tokens, prompt + output) for tokens, (prompt, output) in sent]
    for (left, left_ids), (right, right_ids) in itertools.combinations(contexts, 2):
        assert shared(left_ids, right_ids) == common_prefix(left, right)
    for tokens, encoded in contexts:
        assert len(encoded) == count(tokens)
        assert ids.ids(tokens) == encoded, "ids of a token never change"
        assert all(RESERVED <= token < VOCABULARY for token in encoded)
    for _, (_, output) in sent:
        assert output.index(output[-1]) == len(output) - 1, "the stop id stands at the end only"


@settings(max_examples=20, deadline=None)
@given(made=tasks(latencies=False))
def test_the_same_calls_give_the_same_ids(made):
    def encoded() -> list[tuple[list[int], list[int]]]:
        segments = Segments()
        ids = ids_of(segments)
        return [ids.call(*each) for each in requests(made, 0, POLICIES["sidequest"], segments)]

    assert encoded() == encoded()


def test_the_seed_draws_the_ids():
    tokens = whole(1, 200)
    one, two = (TokenIds(VOCABULARY, seed).call(0, tokens, ())[0] for seed in (1, 2))
    assert one != two


def test_the_inner_ids_of_a_segment_do_not_depend_on_where_it_is_cut():
    ids = TokenIds(VOCABULARY, 0)
    all_of_it, _ = ids.call(0, whole(5, 100), ())
    assert [*ids.ids((Run(5, 0, 40),)), *ids.ids((Run(5, 40, 100),))] == all_of_it


def test_recorded_ids_are_kept():
    segments = Segments()
    recorded = task(
        turn(call(0, 3), reasoning=2, text=1),
        prefix=Prefix(id="p", tokens=3, token_ids=(7, 7, 9)),
        question=Question(tokens=2, token_ids=(11, 500)),
    )
    ids = ids_of(segments)
    ((_, prompt, output), (_, later, _)) = requests(recorded, 0, POLICIES["none"], segments)
    sent, _ = ids.call(0, prompt, output)
    assert sent == [7, 7, 9, 11, 500]
    assert ids.call(0, later, ())[0][:5] == sent


def test_a_recorded_output_that_holds_its_last_id_earlier_gets_another_one_at_its_end():
    """It would stop there. The id that takes its place is part of every later prompt too."""
    ids = TokenIds(VOCABULARY, 0, {2: (40, 41, 40), 4: (50, 51)})
    _, said = ids.call(0, whole(1, 5), whole(2, 3))
    assert (said[:2], ids.replaced) == ([40, 41], 1)
    assert said[2] not in (40, 41)
    assert ids.call(0, whole(1, 5) + whole(2, 3), whole(4, 2)) == ([*ids.ids(whole(1, 5)), *said], [50, 51])
    assert ids.replaced == 1


def test_a_recorded_id_outside_the_vocabulary_is_named():
    with pytest.raises(InputError, match=r"token id 512, .* vocabulary has 512"):
        TokenIds(VOCABULARY, 0, {1: (512,)}).call(0, whole(1, 1), ())


def test_more_siblings_than_ids_are_refused_not_confused():
    ids = TokenIds(64, 0)
    firsts = {ids.call(number, whole(1, 4) + whole(2 + number, 4), ())[0][4] for number in range(25)}
    assert len(firsts) == 25
    with pytest.raises(InputError, match="cannot tell them apart"):
        [ids.call(number, whole(1, 4) + whole(2 + number, 4), ()) for number in range(25, 64)]


def test_a_vocabulary_of_a_few_ids_is_refused():
    with pytest.raises(InputError, match="too small"):
        TokenIds(16, 0)
