# SPDX-License-Identifier: Apache-2.0
"""Lay a task out as model calls with their prompts, the form in which formats of lengths and hashes state it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqsim.trace.schema import Answer, Task, Turn


class Piece(NamedTuple):
    """Part of a text: the text's name (equal names, equal texts), and its first and last token's index plus one."""

    name: str
    start: int
    stop: int


class Step(NamedTuple):
    """Model call: its prompt, of which `added` are new since the last prompt and output, and its output.

    `turn` is None for an answer. `restarted`: its context begins anew.
    """

    prompt: tuple[Piece, ...]
    added: tuple[Piece, ...]
    output: int
    turn: Turn | None
    restarted: bool = False

    @property
    def prompt_tokens(self) -> int:
        return tokens(self.prompt)

    @property
    def added_tokens(self) -> int:
        return tokens(self.added)


def tokens(pieces: Iterable[Piece]) -> int:
    """Count the tokens of pieces."""
    return sum(piece.stop - piece.start for piece in pieces)


def steps_of(task: Task) -> list[Step]:
    """List a task's model calls. Reasoning that is not kept is in no later prompt."""
    head = [Piece(f"prefix:{task.prefix.id}", 0, task.prefix.tokens)]
    context = [*head, *_question(task)]
    added = context
    steps: list[Step] = []
    calls: list[Turn | Answer] = [*task.turns]
    if task.answer is not None:
        calls.append(task.answer)
    for index, call in enumerate(calls):
        turn = call if isinstance(call, Turn) else None
        restarted = turn is not None and turn.reset is not None
        if turn is not None and turn.reset is not None:
            added = [Piece(f"{task.task_id}/{index}/kept", 0, turn.reset.keep_tokens)]
            context = [*head, *added]
        steps.append(Step(tuple(context), tuple(added), call.output_tokens, turn, restarted))
        if turn is not None:
            said = turn.output_tokens - (0 if task.reasoning_kept else turn.reasoning_tokens)
            heard = turn.template_tokens + sum(each.response_tokens for each in turn.calls)
            name = f"{task.task_id}/{index}"
            added = [Piece(name, said, said + heard)]
            context = [*context, Piece(name, 0, said + heard)]
    return steps


def _question(task: Task) -> list[Piece]:
    question = task.question
    if question.hash_ids is None or question.block_tokens is None:
        return [Piece(f"{task.task_id}/question", 0, question.tokens)]
    pieces, left = [], question.tokens
    for hash_id in question.hash_ids:
        size = min(question.block_tokens, left)
        pieces.append(Piece(f"block:{hash_id}", 0, size))
        left -= size
    return [*pieces, Piece(f"{task.task_id}/question", 0, left)]


class Blocks:
    """Counter of blocks: a block's content and all that precedes it get a number, from 0 in order of appearance."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._ids: dict[tuple[int, tuple[Piece, ...]], int] = {}

    def of(self, pieces: Iterable[Piece], *, partial: bool = True) -> list[int]:
        """Number the blocks of a prompt, the last one, which may be `partial`, included or not."""
        ids: list[int] = []
        before = -1
        block: list[Piece] = []
        room = self.block_tokens
        for name, start, stop in pieces:
            while start < stop:
                cut = min(stop, start + room)
                block.append(Piece(name, start, cut))
                room -= cut - start
                start = cut
                if not room:
                    before = self._number(before, block)
                    ids.append(before)
                    block, room = [], self.block_tokens
        if block and partial:
            ids.append(self._number(before, block))
        return ids

    def _number(self, before: int, block: list[Piece]) -> int:
        return self._ids.setdefault((before, tuple(block)), len(self._ids))
