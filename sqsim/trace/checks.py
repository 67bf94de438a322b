# SPDX-License-Identifier: Apache-2.0
"""Checks that a schema cannot express: how the parts of a trace refer to each other.

`Checks` reads tasks one by one in file order, so a stream needs no second pass: ids must be new, and a
sub-agent's line follows its parent's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqsim.errors import TraceError
from sqsim.trace.schema import Answer, Question, RecordedAux, Reset, Strict, Task, Turn

MOST_DEPTH = 100
"""Sub-agents of sub-agents; recorded ones are a few deep."""


class Checks:
    """Checker of each task against itself and against the tasks before it."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}  # task id -> number of turns
        self._depth: dict[str, int] = {}  # sub-agent -> sub-agents above it, itself counted

    def task(self, task: Task, *, file: str | Path | None = None, line: int | None = None) -> Task:
        """Return the task if it is sound; else raise a `TraceError` that names the field."""
        try:
            self._lineage(task)
            _sizes(task)
            _cursors(task)
        except TraceError as fault:
            # An imported task has no line of its own, so its id identifies it.
            where = fault.field if line is not None else f"task {task.task_id}: {fault.field}"
            raise TraceError(fault.problem, file=file, line=line, field=where, fix=fault.fix) from None
        self._turns[task.task_id] = len(task.turns)
        if task.parent is not None:
            self._depth[task.task_id] = self._depth.get(task.parent.task_id, 0) + 1
        return task

    def forget(self, task: Task) -> None:
        """Forget a checked task that is left out after all."""
        self._turns.pop(task.task_id, None)
        self._depth.pop(task.task_id, None)

    def _lineage(self, task: Task) -> None:
        if task.task_id in self._turns:
            raise _fault(
                "task_id", f"{task.task_id!r} was used by an earlier task", "give every task its own id"
            )
        if (task.parent is None) != (task.spawn is None):
            raise _fault("spawn", "a sub-agent needs both parent and spawn", "give both, or neither")
        if task.parent is None or task.spawn is None:
            return
        parent, spawn = task.parent, task.spawn
        turns = self._turns.get(parent.task_id)
        if turns is None:
            raise _fault(
                "parent.task_id",
                f"no earlier task is called {parent.task_id!r}",
                "write the parent's line before its sub-agents'",
            )
        if self._depth.get(parent.task_id, 0) == MOST_DEPTH:
            raise _fault(
                "parent.task_id",
                f"{parent.task_id!r} has {MOST_DEPTH} sub-agents above it already",
                f"nest sub-agents at most {MOST_DEPTH} deep",
            )
        if parent.turn != spawn.turn:
            raise _fault(
                "spawn.turn", f"{spawn.turn} differs from parent.turn {parent.turn}", "make them equal"
            )
        if spawn.turn >= turns:
            raise _fault(
                "spawn.turn", f"turn {spawn.turn} of a parent that has {turns} turns", "use 0 to turns - 1"
            )
        if not spawn.turn < spawn.join_turn <= turns:
            raise _fault(
                "spawn.join_turn",
                f"{spawn.join_turn} is not a later step of the parent",
                f"use {spawn.turn + 1} to {turns}",
            )
        if task.arrival_s is not None:
            raise _fault("arrival_s", "a sub-agent arrives with its spawn", "use null")


def _fault(field: str, problem: str, fix: str) -> TraceError:
    return TraceError(problem, field=field, fix=fix)


def _sizes(task: Task) -> None:
    if not task.steps:
        raise _fault("turns", "the task has no model call", "give it a turn or an answer")
    if task.prefix.tokens + task.question.tokens < 1:
        raise _fault(
            "question.tokens", "the first prompt is empty", "a model call needs at least one prompt token"
        )
    _blocks(task.question)
    _token_ids(task.prefix, "prefix.")
    _token_ids(task.question, "question.")
    for index, turn in enumerate(task.turns):
        _step(turn, f"turns[{index}].")
        for number, call in enumerate(turn.calls):
            _token_ids(call, f"turns[{index}].calls[{number}].")
        _reset(task, index, turn.reset)
    if task.answer is not None:
        _step(task.answer, "answer.")
    for number, aux in enumerate(task.aux or ()):
        _aux(task, aux, f"aux[{number}].")


def _step(step: Turn | Answer, where: str) -> None:
    if step.output_tokens < 1:
        raise _fault(where.rstrip("."), "the model call generates no token", "an output has at least one token")
    _token_ids(step, where)


def _reset(task: Task, index: int, reset: Reset | None) -> None:
    if reset is None:
        return
    where = f"turns[{index}].reset"
    _token_ids(reset, f"{where}.")
    if index == 0:
        raise _fault(where, "nothing comes before turn 0", "use null")
    if task.prefix.tokens + reset.keep_tokens < 1:
        raise _fault(
            f"{where}.keep_tokens", "the prompt is empty", "a model call needs at least one prompt token"
        )


def _aux(task: Task, aux: RecordedAux, where: str) -> None:
    if aux.turn >= task.steps:
        raise _fault(f"{where}turn", f"step {aux.turn} of a task that has {task.steps}", "use 0 to steps - 1")


def _blocks(question: Question) -> None:
    if question.hash_ids is None and question.block_tokens is None:
        return
    if question.hash_ids is None or question.block_tokens is None:
        raise _fault("question.hash_ids", "hash_ids and block_tokens go together", "give both, or neither")
    whole, rest = divmod(question.tokens, question.block_tokens)
    if not whole <= len(question.hash_ids) <= whole + (rest > 0):
        raise _fault(
            "question.hash_ids",
            f"{len(question.hash_ids)} blocks of {question.block_tokens} tokens do not make {question.tokens} tokens",
            "give one id a block, the last block may be partial or left out",
        )


def _token_ids(part: Strict, where: str) -> None:
    """Check that given token ids are as many as their field's token count."""
    for name in _id_fields(type(part)):
        ids = getattr(part, name)
        if ids is None:
            continue
        count = getattr(part, name.removesuffix("token_ids") + "tokens")
        if len(ids) != count:
            raise _fault(f"{where}{name}", f"{len(ids)} ids for {count} tokens", "give one id a token")


@cache
def _id_fields(kind: type[Strict]) -> tuple[str, ...]:
    return tuple(name for name in kind.model_fields if name == "token_ids" or name.endswith("_token_ids"))


def _cursors(task: Task) -> None:
    """Check that a successful call opens each cursor once, and that it is used only from then to a reset."""
    known: set[int] = set()
    open_: set[int] = set()
    for index, turn in enumerate(task.turns):
        if turn.reset is not None:
            open_.clear()
        _uses(turn.uses, known, open_, f"turns[{index}].uses")
        for number, call in enumerate(turn.calls):
            where = f"turns[{index}].calls[{number}].cursor"
            if call.cursor is None:
                continue
            if call.error is not None:
                raise _fault(
                    where, f"cursor {call.cursor} of a failed call", "use null: an error takes no cursor"
                )
            if call.cursor in known:
                raise _fault(
                    where, f"cursor {call.cursor} was opened before", "number the responses of a task once"
                )
            known.add(call.cursor)
        open_.update(call.cursor for call in turn.calls if call.cursor is not None)
    if task.answer is not None:
        _uses(task.answer.uses, known, open_, "answer.uses")


def _uses(uses: tuple[int, ...], known: set[int], open_: set[int], where: str) -> None:
    for position, cursor in enumerate(uses):
        if cursor not in open_:
            problem = "was closed by a reset" if cursor in known else "was not opened by an earlier turn"
            raise _fault(f"{where}[{position}]", f"cursor {cursor} {problem}", "name open cursors only")
    if len(set(uses)) < len(uses):
        raise _fault(where, f"{list(uses)} names a cursor twice", "name each cursor once a step")
