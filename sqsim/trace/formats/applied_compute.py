# SPDX-License-Identifier: Apache-2.0
"""Import `applied_compute_agentic`: a session a line, as lists of lengths (FORMATS.md; Dynamo replays it too).

A line has `input_prompt_length`, then for each of `num_turns` turns an `assistant_response_length`, a
`tool_call_output_length` and a `tool_call_latency` (s), and the `final_assistant_response_length`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import Counted, at_least_one, counted_turns
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Carries, Outcome, Prefix, Question, Task

_KEYS = ("input_prompt_length", "assistant_response_length", "tool_call_output_length")
_LATENCY, _FINAL = "tool_call_latency", "final_assistant_response_length"
_NAMES = ("session_id", "task_id", "id")


class AppliedCompute(Format):
    """One task a line."""

    name = "applied_compute_agentic"

    def evidence(self, head: Sequence[Any]) -> str | None:
        rows = head[0] if len(head) == 1 and isinstance(head[0], list) and head[0] else head
        if not all(isinstance(row, dict) and all(key in row for key in _KEYS) for row in rows):
            return None
        return f"every session has {', '.join(_KEYS)}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        number = 0
        for node in file.nodes():
            for row in node.items() if isinstance(node.value, list) else [node]:
                yield _task(file, row, number, notes)
                number += 1


def _task(file: SourceFile, row: Node, number: int, notes: Notes) -> Task:
    outputs = _counts(row, "assistant_response_length")
    turns = len(outputs)
    if row.get("num_turns") is not None and row.count("num_turns") != turns:
        raise row.wrong(
            f"{row.count('num_turns')} turns, but {turns} assistant responses",
            "num_turns",
            "give one assistant_response_length a turn",
        )
    responses = _counts(row, "tool_call_output_length", turns)
    timed = row.get(_LATENCY) is not None
    latencies = [node.seconds(_LATENCY) for node in _singles(row, _LATENCY, turns)] if timed else [0.0] * turns
    if row.get(_FINAL) is not None:
        outputs = [*outputs, row.count(_FINAL)]
    elif not turns:
        raise row.wrong("holds no model call", None, f"give {_KEYS[1]} or {_FINAL}")
    prompt = at_least_one(row.count("input_prompt_length"), "a prompt", notes)
    steps = []
    for index, output in enumerate(outputs):
        said = at_least_one(output, "an output", notes)
        wait_s = latencies[index] if index < turns else 0.0
        steps.append(Counted(prompt=prompt, output=said, wait_s=wait_s))
        prompt += said + (responses[index] if index < turns else 0)
    if len(outputs) == turns and responses[-1]:
        notes["a last tool response that no model call reads was left out"] += 1
    made, answer = counted_turns(steps, 0, notes)
    own = next((row.get(key) for key in _NAMES if isinstance(row.get(key), str | int)), None)
    return Task(
        task_id=f"{file.stem}:{number}" if own is None or own == "" else str(own),
        source=file.source(AppliedCompute.name),
        carries=Carries(timing="recorded" if timed else "absent", usage="recorded"),
        prefix=Prefix(id="none", tokens=0),
        question=Question(tokens=steps[0].prompt),
        turns=made,
        answer=answer,
        outcome=Outcome(finish="answer" if len(outputs) > turns else "unknown"),
    )


def _singles(row: Node, key: str, number: int) -> list[Node]:
    """Return a list's elements, each as the part `key` of a node of its own, with its place."""
    elements = row.nodes(key)
    if len(elements) != number:
        raise row.wrong(
            f"{len(elements)} values for {number} turns", key, "give one a turn; the final response has none"
        )
    return [Node({key: element.value}, row.file, row.line) for element in elements]


def _counts(row: Node, key: str, number: int | None = None) -> list[int]:
    elements = row.nodes(key)
    return [node.count(key) for node in _singles(row, key, len(elements) if number is None else number)]
