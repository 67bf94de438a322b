# SPDX-License-Identifier: Apache-2.0
"""Every export, read again: equal to the token, or the difference is named; and nothing is named that does not differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import InputError, TraceError
from sqsim.trace.exports import EXPORTERS, export
from sqsim.trace.exports.losses import LOSSES, losses
from sqsim.trace.importing import import_files
from sqsim.trace.schema import Outcome, Parent, Prefix, Question, RecordedAux, Reset, Spawn, Task, Turn
from sqsim.trace.statistics import prompts
from tests.sqsim.tasks import CARRIES, call, chain, families, task, turn

TEXTS = ["openai_chat", "aiperf_messages"]
LENGTHS = ["mooncake", "aiperf", "agentic_mooncake", "weka_trace"]
FIELDS = {loss.text: set(loss.fields) for loss in LOSSES}

TEXTED = CARRIES.model_copy(update={"text": "recorded"})


def texted(made: Task) -> Task:
    """The task with texts of its own everywhere."""

    def of_turn(index: int, each: Turn) -> Turn:
        calls = tuple(
            one.model_copy(
                update={"call_text": f'open({{"page": {index}{n}}})', "response_text": f"page {index}{n}"}
            )
            for n, one in enumerate(each.calls)
        )
        reset = each.reset and each.reset.model_copy(update={"keep_text": f"kept {index}"})
        more = {"reasoning_text": f"thought {index}"} if each.reasoning_tokens else {}
        return each.model_copy(update={"calls": calls, "text": f"said {index}", "reset": reset, **more})

    return made.model_copy(
        update={
            "carries": TEXTED,
            "prefix": made.prefix.model_copy(update={"text": "system"}),
            "question": made.question.model_copy(update={"text": "question"}),
            "turns": tuple(of_turn(index, each) for index, each in enumerate(made.turns)),
            "answer": made.answer and made.answer.model_copy(update={"text": "answer"}),
        }
    )


def with_ids(made: Task) -> Task:
    question = made.question.model_copy(update={"token_ids": tuple(range(made.question.tokens))})
    return made.model_copy(update={"question": question})


CHILD = task(turn(call(0)), name="sub", parent=Parent(task_id="t", turn=0), spawn=Spawn(turn=0, join_turn=2))
KINDS: dict[str, list[Task]] = {
    "plain": [chain(4)],
    "parallel calls": [
        task(turn(call(0, parallel=True, latency_s=2), call(1, 40, parallel=True)), turn(call(2)))
    ],
    "serial calls": [task(turn(call(0, latency_s=2), call(1, 40)), turn(call(2)))],
    "failed call": [task(turn(call(None, 12)), turn(call(0)))],
    "sub-agent": [chain(3), CHILD],
    "sub-agent of a sub-agent": [
        chain(3),
        CHILD,
        task(name="deep", parent=Parent(task_id="sub", turn=0), spawn=Spawn(turn=0, join_turn=1)),
    ],
    "compaction": [task(turn(call(0, 2000)), turn(call(1, 900)), turn(call(2), reset=Reset(keep_tokens=700)))],
    "reasoning not kept": [task(turn(call(0), reasoning=300), turn(call(1)), reasoning_kept=False)],
    "user waits": [task(turn(template_tokens=33, user_wait_s=60.0), turn(call(0), user_wait_s=1.5))],
    "shared prefix": [chain(2, name=name, prefix=Prefix(id="p", tokens=1100)) for name in ("a", "b")],
    "hash ids": [chain(2, question=Question(tokens=130, hash_ids=(7, 2**64 - 1, 9), block_tokens=64))],
    "no answer": [task(turn(call(0)), turn(call(1)), answer=None)],
    "last turn without calls": [task(turn(call(0)), turn(), answer=None)],
    "empty response": [task(turn(call(0, 0)), turn(call(1, 5)))],
    "token ids": [with_ids(chain(2))],
    "texts": [texted(chain(3, uses={1: (0,), 3: (1, 2)}))],
    "texts of a compaction": [
        texted(task(turn(call(0)), turn(call(1), reset=Reset(keep_tokens=9)), turn(call(2))))
    ],
    "one call": [task()],
    "arrival, outcome, model, auxiliary": [
        chain(
            2,
            arrival_s=12.25,
            model="m",
            outcome=Outcome(finish="answer", correct=True),
            aux=(RecordedAux(turn=1, output_tokens=5, named=(0,)),),
        )
    ],
}


def read_back(path: Path) -> list[Task]:
    return import_files([path], references="none", timing="none").tasks


def pairs(made: list[Task], back: list[Task]) -> list[tuple[Task, Task]]:
    """Match tasks by id; a format may put the file's or the root's name before it."""
    assert len(made) == len(back)
    left = {each.task_id: each for each in back}
    found = []
    for each in made:
        ids = [
            name
            for name in left
            if name == each.task_id or name.endswith((f"/{each.task_id}", f":{each.task_id}"))
        ]
        found.append((each, left.pop(min(ids, key=len))))
    return found


def leaves(made: Task) -> dict[str, dict[tuple, Any]]:
    """Every field that says something, by its name and place; the answer is a last step."""
    steps = [*made.turns, *([made.answer] if made.answer is not None else [])]
    cursors = {
        one.cursor: (index, n)
        for index, each in enumerate(made.turns)
        for n, one in enumerate(each.calls)
        if one.cursor is not None
    }
    found: dict[str, dict[tuple, Any]] = {}

    def note(name: str, place: tuple, value: Any) -> None:
        if isinstance(value, float):
            value = round(value, 5)
        if (
            value is not None
            and value != ()
            and not (value == 0 and name in {"template_tokens", "user_wait_s"})
        ):
            kind = "token_ids" if name.endswith("token_ids") else "text" if name.endswith("text") else name
            found.setdefault(kind, {})[(name, *place)] = value

    def walk(value: Any, place: tuple) -> None:
        for name in type(value).model_fields:
            part = getattr(value, name)
            if name == "reset" and part is not None:
                walk(part, place)
            elif name == "calls":
                for number, one in enumerate(part):
                    walk(one, (*place, number))
            elif name == "cursor":
                note(name, place, part is not None)
            elif name == "uses":
                note(name, place, tuple(sorted(cursors[cursor] for cursor in part)))
            else:
                note(name, place, part)

    for index, step in enumerate(steps):
        walk(step, (index,))
    for part in ("prefix", "question", "outcome"):
        walk(getattr(made, part), (part,))
    for name in ("task_id", "model", "arrival_s", "parent", "spawn", "reasoning_kept", "aux"):
        note(name, (), getattr(made, name))
    note("answer", (), made.answer is not None)
    return found


def differing(before: Task, after: Task) -> set[str]:
    one, other = leaves(before), leaves(after)
    if before.question.hash_ids is None:  # blocks that an export names for the first time are no difference
        for name in ("hash_ids", "block_tokens"):
            other.pop(name, None)
    elif after.question.hash_ids and len(after.question.hash_ids) == len(before.question.hash_ids):
        other["hash_ids"] = one["hash_ids"]  # which number a block gets does not matter
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def check(made: list[Task], to: str, tmp: Path, block_tokens: int | None = None) -> list[tuple[Task, Task]]:
    """The law: a field differs exactly if a loss that covers it is named; the report counts the same losses."""
    path = tmp / "out.jsonl"
    report = export(made, path, to, block_tokens)
    named: Counter[str] = Counter()
    found = pairs(made, read_back(path))
    for before, after in found:
        lost = losses(before, after)
        named += lost
        fields = differing(before, after)
        covered = set().union(*(FIELDS[text] for text in lost))
        assert fields <= covered, f"{fields - covered} differ and are not named"
        for text in lost:
            assert FIELDS[text] & fields, f"{text!r} is named, and nothing of it differs"
    assert report.lost == dict(named)
    assert report.tasks == len(made)
    return found


@pytest.mark.parametrize("to", EXPORTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_is_named_and_what_is_named_differs(kind, to, tmp_path):
    made = KINDS[kind]
    check([texted(each) for each in made] if to in TEXTS else made, to, tmp_path)


def extended(draw: st.DrawFn, made: Task) -> Task:
    """More of what a task can hold than `tests.sqsim.tasks` draws."""
    tokens = draw(st.integers(1, 700))
    size = draw(st.sampled_from([None, 16, 64, 512]))
    ids = None if size is None else tuple(draw(st.integers(-5, 2**64 - 1)) for _ in range(-(-tokens // size)))
    return made.model_copy(
        update={
            "prefix": Prefix(
                id=draw(st.sampled_from(["p", "q"])), tokens=draw(st.sampled_from([0, 40, 512, 1000]))
            ),
            "question": Question(tokens=tokens, hash_ids=ids, block_tokens=size),
            "arrival_s": None if made.parent else draw(st.none() | st.integers(0, 10**6).map(lambda n: n / 8)),
            "model": draw(st.none() | st.just("m")),
            "outcome": draw(st.sampled_from([Outcome(), Outcome(finish="answer", correct=False)])),
        }
    )


@st.composite
def drawn_families(draw: st.DrawFn) -> list[Task]:
    made = draw(families(max_tasks=3, max_turns=5, max_tokens=draw(st.sampled_from([60, 2000]))))
    return [extended(draw, each) for each in made]


@pytest.mark.parametrize("to", LENGTHS)
@settings(deadline=None, max_examples=60)
@given(made=drawn_families(), block=st.sampled_from([None, 1, 16, 500]))
def test_any_task_s_differences_are_named(to, made, block, tmp_path_factory):
    check(made, to, tmp_path_factory.mktemp("export"), block)


@pytest.mark.parametrize("to", TEXTS)
@settings(deadline=None, max_examples=60)
@given(made=drawn_families())
def test_any_conversation_s_differences_are_named(to, made, tmp_path_factory):
    check([texted(each) for each in made], to, tmp_path_factory.mktemp("export"))


def outputs(made: Task) -> list[int]:
    return [step.output_tokens for step in (*made.turns, made.answer) if step is not None]


@pytest.mark.parametrize("to", [name for name in EXPORTERS if name != "aiperf_messages"])  # it states no prompt
@pytest.mark.parametrize(
    "kind", ["plain", "parallel calls", "failed call", "user waits", "no answer", "empty response", "one call"]
)
def test_prompts_and_outputs_come_back_to_the_token(kind, to, tmp_path):
    made = [texted(each) for each in KINDS[kind]] if to in TEXTS else KINDS[kind]
    for before, after in check(made, to, tmp_path):
        assert prompts(after) == prompts(before)
        assert outputs(after) == outputs(before)


def test_dynamo_s_form_keeps_tools_failures_sub_agents_and_resets(tmp_path):
    """What its fields say (ai-dynamo/dynamo, AgenticMooncakeRow): none of these is among the losses."""
    for kind in ("parallel calls", "serial calls", "failed call", "sub-agent", "compaction", "user waits"):
        for before, after in check(KINDS[kind], "agentic_mooncake", tmp_path):
            assert not {"tool", "error", "parent", "spawn", "latency_s", "user_wait_s"} & differing(
                before, after
            )
            assert prompts(after) == prompts(before), kind


def test_weka_keeps_sub_agents_waits_and_whole_blocks_of_the_prefix(tmp_path):
    for before, after in check(KINDS["sub-agent"], "weka_trace", tmp_path):
        assert (after.spawn, prompts(after)) == (before.spawn, prompts(before))
    ((one, _), _) = check(KINDS["shared prefix"], "weka_trace", tmp_path / "b")
    assert one.prefix.tokens == 1100


def test_aiperf_s_deltas_state_what_each_line_adds(tmp_path):
    """AIPerf sends 70, then 70 + 35 + 100, ...: each line's length is what it adds to prompt and answer before it."""
    import json

    export([chain(2)], tmp_path / "d.jsonl", "aiperf")
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [row["input_length"] for row in rows] == [70, 100, 100]
    assert prompts(chain(2)) == [70, 205, 340]


def test_a_trace_without_texts_is_no_chat(tmp_path):
    with pytest.raises(TraceError, match="task t has no text"):
        export([chain(2)], tmp_path / "c.jsonl", "openai_chat")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", EXPORTERS)
def test_nothing_to_export_is_an_error_and_no_file(to, tmp_path):
    with pytest.raises(TraceError, match="no task to export"):
        export([], tmp_path / "m.jsonl", to)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_written_over_only_when_told(tmp_path):
    export([chain(2)], tmp_path / "w", "weka_trace")
    with pytest.raises(InputError, match="exists already"):
        export([chain(3)], tmp_path / "w", "weka_trace", overwrite=False)
    export([chain(3)], tmp_path / "w", "weka_trace")
    (tmp_path / "w" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        export([chain(3)], tmp_path / "w", "weka_trace")


def test_unknown_names_and_sizes_are_refused(tmp_path):
    with pytest.raises(InputError, match="'vidur' is no known format"):
        export([chain(2)], tmp_path / "x", "vidur")
    with pytest.raises(InputError, match="0 is no size"):
        export([chain(2)], tmp_path / "x", "mooncake", 0)
