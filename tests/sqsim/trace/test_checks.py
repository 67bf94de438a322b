# SPDX-License-Identifier: Apache-2.0
"""What a schema cannot say: cursors, sub-agents, blocks and token ids fit together, or the field is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from sqsim.errors import TraceError
from sqsim.trace.checks import MOST_DEPTH, Checks
from sqsim.trace.schema import Answer, Parent, Prefix, Question, RecordedAux, Reset, Spawn
from tests.sqsim.tasks import call, chain, task, tasks, turn

NONE = Answer(reasoning_tokens=0, text_tokens=0)
FAILED_WITH_CURSOR = call(0).model_copy(update={"error": "404"})


def question(**more) -> Question:
    return Question(**{"tokens": 10, **more})


FAULTS = {  # fault: (task, field, part of the message)
    "no model call": (task(answer=None), "turns", "no model call"),
    "empty first prompt": (
        task(turn(), prefix=Prefix(id="p", tokens=0), question=question(tokens=0)),
        "question.tokens",
        "first prompt is empty",
    ),
    "turn without output": (task(turn(reasoning=0, text=0)), "turns[0]", "generates no token"),
    "answer without output": (task(turn()).model_copy(update={"answer": NONE}), "answer", "generates no token"),
    "cursor opened twice": (
        task(turn(call(0)), turn(call(0))),
        "turns[1].calls[0].cursor",
        "cursor 0 was opened before",
    ),
    "cursor twice in a turn": (task(turn(call(0), call(0))), "turns[0].calls[1].cursor", "opened before"),
    "cursor of a failed call": (task(turn(FAILED_WITH_CURSOR)), "turns[0].calls[0].cursor", "of a failed call"),
    "used by the turn that opens it": (
        task(turn(call(0), uses=(0,))),
        "turns[0].uses[0]",
        "not opened by an earlier turn",
    ),
    "used before it exists": (chain(3, uses={1: (0, 2)}), "turns[1].uses[1]", "cursor 2 was not opened"),
    "used and never opened": (chain(2, uses={2: (7,)}), "answer.uses[0]", "cursor 7 was not opened"),
    "used after a reset": (
        task(turn(call(0)), turn(uses=(0,), reset=Reset(keep_tokens=5))),
        "turns[1].uses[0]",
        "closed by a reset",
    ),
    "used twice in a step": (chain(2, uses={1: (0, 0)}), "turns[1].uses", "names a cursor twice"),
    "reset before anything": (task(turn(reset=Reset(keep_tokens=5))), "turns[0].reset", "nothing comes before"),
    "reset to nothing": (
        task(turn(), turn(reset=Reset(keep_tokens=0)), prefix=Prefix(id="p", tokens=0)),
        "turns[1].reset.keep_tokens",
        "prompt is empty",
    ),
    "blocks without a size": (
        task(turn(), question=question(hash_ids=(1,))),
        "question.hash_ids",
        "go together",
    ),
    "too few blocks": (
        task(turn(), question=question(hash_ids=(1,), block_tokens=4)),
        "question.hash_ids",
        "do not make 10 tokens",
    ),
    "too many blocks": (
        task(turn(), question=question(hash_ids=(1, 2, 3, 4), block_tokens=4)),
        "question.hash_ids",
        "do not make 10 tokens",
    ),
    "too few token ids": (
        task(turn(), question=question(token_ids=(1, 2))),
        "question.token_ids",
        "2 ids for 10 tokens",
    ),
    "call's token ids": (
        task(turn(call(0).model_copy(update={"response_token_ids": (1,)}))),
        "turns[0].calls[0].response_token_ids",
        "1 ids for 100 tokens",
    ),
    "text's token ids": (
        task(turn(text_token_ids=())),
        "turns[0].text_token_ids",
        "0 ids for 5 tokens",
    ),
    "aux outside the task": (
        task(turn(), aux=(RecordedAux(turn=2, output_tokens=9, named=()),)),
        "aux[0].turn",
        "step 2 of a task that has 2",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_task_that_contradicts_itself_is_named(case):
    bad, field, message = FAULTS[case]
    with pytest.raises(TraceError) as caught:
        Checks().task(bad, file="trace.jsonl", line=4)
    assert (caught.value.line, caught.value.field) == (4, field)
    assert message in caught.value.problem
    assert caught.value.fix


def child(turn: int, join: int, *, parent: str = "main", spawn: int | None = None, name: str = "child", **more):
    return task(
        name=name,
        parent=Parent(task_id=parent, turn=turn),
        spawn=Spawn(turn=turn if spawn is None else spawn, join_turn=join),
        **more,
    )


LINEAGE = {  # a child of "main", which has 3 turns and an answer
    "unknown parent": (child(0, 1, parent="nobody"), "parent.task_id", "'nobody'"),
    "own parent": (child(0, 1, parent="child"), "parent.task_id", "'child'"),
    "spawn differs from parent": (child(0, 2, spawn=1), "spawn.turn", "1 differs from parent.turn 0"),
    "spawned by no turn": (child(3, 4), "spawn.turn", "a parent that has 3 turns"),
    "joined before its spawn": (child(1, 1), "spawn.join_turn", "not a later step"),
    "joined after the end": (child(1, 4), "spawn.join_turn", "not a later step"),
    "arrival of its own": (child(1, 2, arrival_s=3.0), "arrival_s", "arrives with its spawn"),
    "parent without spawn": (task(name="child", parent=Parent(task_id="main", turn=0)), "spawn", "both"),
    "spawn without parent": (task(name="child", spawn=Spawn(turn=0, join_turn=1)), "spawn", "both"),
    "id used before": (chain(1, name="main"), "task_id", "'main'"),
}


@pytest.mark.parametrize("case", LINEAGE)
def test_a_sub_agent_that_does_not_fit_its_parent_is_named(case):
    bad, field, message = LINEAGE[case]
    checks = Checks()
    checks.task(chain(3, name="main"))
    with pytest.raises(TraceError) as caught:
        checks.task(bad, line=2)
    assert caught.value.field == field
    assert message in caught.value.problem


def test_a_sub_agent_may_join_at_any_later_step_and_have_sub_agents():
    checks = Checks()
    checks.task(chain(3, name="main"))
    for number, (turn_, join) in enumerate([(0, 1), (0, 3), (2, 3)]):
        checks.task(child(turn_, join, name=f"child{number}"))
    checks.task(chain(2, name="nested"))
    checks.task(child(0, 2, parent="nested", name="inner"))


def test_an_imported_task_is_named_by_its_id():
    with pytest.raises(TraceError, match=r"trace\.json: task t: turns\[0\]: the model call generates no token"):
        Checks().task(task(turn(reasoning=0, text=0)), file="trace.json")


@settings(deadline=None, max_examples=50)
@given(tasks())
def test_random_sound_tasks_pass(drawn):
    assert Checks().task(drawn) is drawn


def test_the_last_block_may_be_partial_or_left_out():
    for blocks in ((1, 2), (1, 2, 3)):
        Checks().task(task(turn(), question=question(hash_ids=blocks, block_tokens=4)))


def test_sub_agents_nest_so_deep_and_no_deeper():
    checks = Checks()
    checks.task(chain(1, name="0"))
    below = {"spawn": Spawn(turn=0, join_turn=1)}
    for depth in range(1, MOST_DEPTH + 1):
        checks.task(chain(1, name=str(depth), parent=Parent(task_id=str(depth - 1), turn=0), **below))
    with pytest.raises(TraceError, match=r"parent\.task_id: '100' has 100 sub-agents above it already; nest"):
        checks.task(chain(1, name="deeper", parent=Parent(task_id=str(MOST_DEPTH), turn=0), **below))
