# SPDX-License-Identifier: Apache-2.0
"""Export Mooncake lines: whole prompts (Dynamo and other simulators), or what each line adds (AIPerf).

A line is a step: `session_id`, `input_length`, `output_length`, `hash_ids` (equal ids mean equal blocks with equal blocks
before them), and `timestamp` (ms, first line of a task with an arrival) or `delay` (ms, the client's wait before it).
The first line of a session says whether its lines add up (`context_mode`, which other tools ignore), and the block size
where that is not 512.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.exports.base import Exporter, Written
from sqsim.trace.exports.context import Blocks, Piece, Step, steps_of, tokens
from sqsim.trace.formats.base import Format
from sqsim.trace.formats.mooncake import BLOCK_TOKENS, CONTEXT_MODE, DELTAS, WHOLE, Mooncake
from sqsim.trace.schema import Task

_READER = "the reader takes a session's lines for whole prompts; AIPerf adds them up, so use --to aiperf for it"


class MooncakeExport(Exporter):
    """Whole prompts."""

    name = "mooncake"
    says = "Mooncake lines with sessions, each with its whole prompt: Dynamo, other simulators"
    mode = WHOLE

    def __init__(self, block_tokens: int | None = None) -> None:
        super().__init__(block_tokens)
        self._blocks = Blocks(self.block)

    @property
    def reader(self) -> Format:
        return Mooncake()

    def written(self, family: Sequence[Task]) -> Written:
        if self.mode == WHOLE:
            self.assumed[_READER] += sum(task.steps > 1 for task in family)
        return Written([line for task in family for line in self._lines(task)], list(family))

    def _lines(self, task: Task) -> Iterator[dict[str, Any]]:
        wait_s: float | None = None
        for index, step in enumerate(steps_of(task)):
            line: dict[str, Any] = {"session_id": task.task_id}
            if wait_s is not None:
                line["delay"] = round(wait_s * 1e3, 3)
            elif task.arrival_s is not None:
                line["timestamp"] = round(task.arrival_s * 1e3, 3)
            pieces = self._pieces(step, first=not index)
            line["input_length"] = tokens(pieces)
            line["output_length"] = step.output
            if pieces:
                line["hash_ids"] = self._blocks.of(pieces)
            if not index:
                line[CONTEXT_MODE] = self.mode
                if self.block != BLOCK_TOKENS:
                    line["block_size"] = self.block
            yield line
            if step.turn is not None:
                wait_s = step.turn.tool_wait_s + step.turn.user_wait_s

    def _pieces(self, step: Step, *, first: bool) -> Sequence[Piece]:  # noqa: ARG002 - the other form needs it
        return step.prompt


class AIPerfExport(MooncakeExport):
    """Deltas: AIPerf adds each line to the session's lines before it and to what its server answered."""

    name = "aiperf"
    says = "Mooncake lines with sessions, each with what it adds: AIPerf (its default for hash ids)"
    mode = DELTAS

    def _pieces(self, step: Step, *, first: bool) -> Sequence[Piece]:
        return step.prompt if first else [piece for piece in step.added if piece.stop > piece.start]
