# SPDX-License-Identifier: Apache-2.0
"""Import `mooncake_trace`: a request a line, 512-token blocks, AIPerf's `session_id`, `delay` (FORMATS.md).

A line without a session is a task of one step. The lines of a session are its steps: `delay` (ms) is the client's wait
before each, or `timestamp` is when it was sent. `input_length` is the whole prompt, or the tokens added to it: AIPerf's
default for these traces is deltas, to which it adds what its server answered (docs/reference/conversation-context-mode.md
of ai-dynamo/aiperf). No field of a file tells which, so its blocks decide (`adds_only`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import Counted, Prompt, at_least_one, counted_turns, restarted
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Carried, Carries, Outcome, Prefix, Question, Task

BLOCK_TOKENS = 512
TOKEN_S = 0.01
"""Seconds a generated token (assumed), to tell a call's own time from the client's wait where only starts are known."""
_KEYS = ("input_length", "output_length")


class Mooncake(Format):
    """Mooncake: the FAST25 serving traces, and the files that other simulators write in their form."""

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
                yield _task(file, f"{file.stem}:{number}", [node], [_prompt(node)], notes)
            else:
                sessions.setdefault(str(node.get("session_id")), []).append(node)
        for nodes in sessions.values():
            if all(node.get("timestamp") is not None for node in nodes):
                nodes.sort(key=lambda node: node.seconds("timestamp"))
        deltas = adds_only([[_prompt(node) for node in nodes] for nodes in sessions.values()])
        for name, nodes in sessions.items():
            prompts = [_prompt(node) for node in nodes]
            if deltas:
                notes["a line of a session says what it adds to the prompt (AIPerf's deltas)"] += len(nodes) - 1
                prompts = _summed(prompts, [node.count("output_length") for node in nodes])
            yield _task(file, name, nodes, prompts, notes)


def adds_only(sessions: Sequence[Sequence[Prompt]]) -> bool:
    """Whether lines hold only what each adds to its session: most do not begin as the session's first line."""
    whole = deltas = 0
    for prompts in sessions:
        first = prompts[0]
        for before, now in pairwise(prompts):
            if first.tokens >= BLOCK_TOKENS and first.blocks and now.blocks:
                goes_on = first.blocks[0] == now.blocks[0]
            else:
                goes_on = now.tokens >= before.tokens  # no full block to compare
            whole += goes_on
            deltas += not goes_on
    return deltas > whole


def _summed(prompts: Sequence[Prompt], outputs: Sequence[int]) -> list[Prompt]:
    """Build whole prompts from lines that add to the previous prompt and output; the first keeps its blocks."""
    behind = [0, *accumulate(prompt.tokens + out for prompt, out in zip(prompts, outputs, strict=True))]
    whole = [prompt.tokens + before for prompt, before in zip(prompts, behind, strict=False)]
    return [Prompt(tokens, () if index else prompts[0].blocks) for index, tokens in enumerate(whole)]


def _task(file: SourceFile, name: str, nodes: list[Node], prompts: Sequence[Prompt], notes: Notes) -> Task:
    waits, timing = _waits(nodes, notes)
    steps = [
        Counted(
            prompt=at_least_one(prompts[index].tokens, "a prompt", notes),
            output=at_least_one(node.count("output_length"), "an output", notes),
            wait_s=waits[index],
            restarted=index > 0 and restarted(prompts[index - 1], prompts[index], BLOCK_TOKENS, notes),
        )
        for index, node in enumerate(nodes)
    ]
    turns, answer = counted_turns(steps, 0, notes)
    first = nodes[0]
    blocks = tuple(first.whole_numbers("hash_ids")) if first.get("hash_ids") is not None else None
    return Task(
        task_id=name,
        source=file.source(Mooncake.name),
        carries=Carries(timing=timing, usage="recorded"),
        arrival_s=first.seconds("timestamp", 1e-3) if first.get("timestamp") is not None else None,
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


def _waits(nodes: Sequence[Node], notes: Notes) -> tuple[list[float], Carried]:
    """Find the client's wait after each line, and its source: `delay`, else the gap between `timestamp`s.

    A gap is reduced by the call's own time, which no line holds: `TOKEN_S` a generated token.
    """
    waits: list[float] = []
    gaps = False
    for node, later in pairwise(nodes):
        if later.get("delay") is not None:
            waits.append(later.seconds("delay", 1e-3))
        elif node.get("timestamp") is not None and later.get("timestamp") is not None:
            gap_s = later.seconds("timestamp", 1e-3) - node.seconds("timestamp", 1e-3)
            waits.append(max(0.0, round(gap_s - TOKEN_S * node.count("output_length"), 3)))
            gaps = True
            notes[
                f"a wait is what lies between two timestamps, less {TOKEN_S} s a generated token (assumed)"
            ] += 1
        else:
            waits.append(0.0)
            if any(each.get("delay") is not None for each in nodes) or later.get("timestamp") is not None:
                notes["a line of a session has neither delay nor a time to count from; it follows at once"] += 1
    timed = any(node.get(key) is not None for node in nodes for key in ("timestamp", "delay"))
    return [*waits, 0.0], "derived" if gaps else "recorded" if timed else "absent"


def _prompt(node: Node) -> Prompt:
    blocks = node.whole_numbers("hash_ids") if node.get("hash_ids") is not None else ()
    return Prompt(node.count("input_length"), blocks)
