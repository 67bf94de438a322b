# SPDX-License-Identifier: Apache-2.0
"""Export traces for other simulators: Mooncake lines with AIPerf's sessions (FORMATS.md, mooncake_trace).

Each step is a line: `session_id`, `input_length` (the whole prompt), `output_length`, `hash_ids` (one a block
of 512 tokens; equal ids mean equal blocks with equal blocks before them), and `timestamp` (ms, first line of a
task with an arrival) or `delay` (ms, the client's wait before the step).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.files import written_whole
from sqsim.trace.formats.mooncake import BLOCK_TOKENS
from sqsim.trace.schema import Answer, Task, Turn

Piece = tuple[str, int, int]
"""A part of a text: the text's name (equal names, equal texts), and its first and last token's index plus one."""


class Export(NamedTuple):
    """Summary of an export: what was written, and how often the format could not express something."""

    tasks: int
    lines: int
    lost: dict[str, int]


def export_mooncake(tasks: Iterable[Task], path: str | Path) -> Export:
    """Write the tasks as Mooncake lines, streamed; the file appears under its name only when it is complete."""
    path = Path(path)
    count = lines = children = failed = stripped = 0
    blocks = _Blocks()
    with written_whole(path) as sink:
        for task in tasks:
            count += 1
            children += task.parent is not None
            failed += sum(call.error is not None for turn in task.turns for call in turn.calls)
            stripped += sum(turn.reasoning_tokens > 0 for turn in task.turns) if not task.reasoning_kept else 0
            for line in _lines(task, blocks):
                sink.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                lines += 1
        if not count:
            raise TraceError("there is no task to export", file=path, fix="an empty trace is not a trace")
    lost = {
        "a sub-agent became a session of its own": children,
        "a failed call became a successful one": failed,
        "reasoning that leaves the next prompt (reasoning_kept: false) is not told from text that stays": stripped,
    }
    return Export(count, lines, {what: times for what, times in lost.items() if times})


class _Blocks:
    """Counter of blocks: a block's content and all that precedes it get a number, from 0 in order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, tuple[Piece, ...]], int] = {}

    def of(self, pieces: Iterable[Piece]) -> list[int]:
        ids: list[int] = []
        before = -1
        block: list[Piece] = []
        room = BLOCK_TOKENS
        for name, start, stop in pieces:
            while start < stop:
                cut = min(stop, start + room)
                block.append((name, start, cut))
                room -= cut - start
                start = cut
                if not room:
                    before = self._ids.setdefault((before, tuple(block)), len(self._ids))
                    ids.append(before)
                    block, room = [], BLOCK_TOKENS
        if block:
            ids.append(self._ids.setdefault((before, tuple(block)), len(self._ids)))
        return ids


def _question(task: Task) -> list[Piece]:
    question = task.question
    if question.hash_ids is None or question.block_tokens is None:
        return [(f"{task.task_id}/question", 0, question.tokens)]
    pieces, left = [], question.tokens
    for hash_id in question.hash_ids:
        size = min(question.block_tokens, left)
        pieces.append((f"block:{hash_id}", 0, size))
        left -= size
    return [*pieces, (f"{task.task_id}/question", 0, left)]


def _lines(task: Task, blocks: _Blocks) -> Iterator[dict[str, object]]:
    head: list[Piece] = [(f"prefix:{task.prefix.id}", 0, task.prefix.tokens)]
    context = head + _question(task)
    wait_s: float | None = None
    steps: list[Turn | Answer] = [*task.turns]
    if task.answer is not None:
        steps.append(task.answer)
    for index, step in enumerate(steps):
        turn = step if isinstance(step, Turn) else None
        if turn is not None and turn.reset is not None:
            context = [*head, (f"{task.task_id}/{index}/kept", 0, turn.reset.keep_tokens)]
        line: dict[str, object] = {"session_id": task.task_id}
        if wait_s is not None:
            line["delay"] = round(wait_s * 1e3, 3)
        elif task.arrival_s is not None:
            line["timestamp"] = round(task.arrival_s * 1e3, 3)
        line["input_length"] = sum(stop - start for _, start, stop in context)
        line["output_length"] = step.output_tokens
        line["hash_ids"] = blocks.of(context)
        yield line
        if turn is not None:
            kept = turn.output_tokens - (0 if task.reasoning_kept else turn.reasoning_tokens)
            heard = turn.template_tokens + sum(call.response_tokens for call in turn.calls)
            context.append((f"{task.task_id}/{index}", 0, kept + heard))
            wait_s = turn.tool_wait_s + turn.user_wait_s
