"""`mooncake_trace`: one request a line, with hashed blocks of 512 tokens; AIPerf's `session_id` and `delay` (FORMATS.md).

A line without a session is a task of one step. The lines of a session are its steps in file order, `delay`
(ms) the client's wait before each, and `input_length` the whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import Counted, Prompt, at_least_one, counted_turns, restarted
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Carries, Outcome, Prefix, Question, Task

BLOCK_TOKENS = 512
_KEYS = ("input_length", "output_length")


class Mooncake(Format):
    """The FAST25 serving traces and what other simulators write in their form."""

    name = "mooncake_trace"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not all(isinstance(value, dict) and all(key in value for key in _KEYS) for value in head):
            return None
        also = [key for key in ("timestamp", "hash_ids", "session_id", "delay") if any(key in v for v in head)]
        return f"every line has {' and '.join(_KEYS)}" + (f", some {', '.join(also)}" if also else "")

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        sessions: dict[str, list[Node]] = {}
        for number, node in enumerate(file.nodes()):
            if node.get("session_id") is None:
                yield _task(file, f"{file.stem}:{number}", [node], notes)
            else:
                sessions.setdefault(str(node.get("session_id")), []).append(node)
        for name, nodes in sessions.items():
            yield _task(file, name, nodes, notes)


def _task(file: SourceFile, name: str, nodes: list[Node], notes: Notes) -> Task:
    steps = [
        _step(node, nodes[i - 1] if i else None, nodes[i + 1 : i + 2], notes) for i, node in enumerate(nodes)
    ]
    turns, answer = counted_turns(steps, 0, notes)
    first = nodes[0]
    blocks = tuple(first.whole_numbers("hash_ids")) if first.get("hash_ids") is not None else None
    arrives = first.get("timestamp") is not None
    timed = arrives or any(node.get("delay") is not None for node in nodes)
    return Task(
        task_id=name,
        source=file.source(Mooncake.name),
        carries=Carries(timing="recorded" if timed else "absent", usage="recorded"),
        arrival_s=first.seconds("timestamp", 1e-3) if arrives else None,
        prefix=Prefix(id="none", tokens=0),
        question=Question(
            tokens=steps[0].prompt,
            hash_ids=blocks,
            block_tokens=None if blocks is None else BLOCK_TOKENS,
        ),
        turns=turns,
        answer=answer,
        outcome=Outcome(finish="answer"),
    )


def _step(node: Node, before: Node | None, following: list[Node], notes: Notes) -> Counted:
    prompt = _prompt(node)
    waits = [later.seconds("delay", 1e-3) for later in following if later.get("delay") is not None]
    return Counted(
        prompt=at_least_one(prompt.tokens, "a prompt", notes),
        output=at_least_one(node.count("output_length"), "an output", notes),
        wait_s=sum(waits),
        restarted=before is not None and restarted(_prompt(before), prompt, BLOCK_TOKENS, notes),
    )


def _prompt(node: Node) -> Prompt:
    blocks = node.whole_numbers("hash_ids") if node.get("hash_ids") is not None else ()
    return Prompt(node.count("input_length"), blocks)
