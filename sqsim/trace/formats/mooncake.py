# SPDX-License-Identifier: Apache-2.0
"""Import `mooncake_trace`: a request a line, hashed blocks, AIPerf's and Dynamo's `session_id`, `delay` (FORMATS.md).

A line without a session is a task of one step. The lines of a session are its steps: `delay` (ms) is the client's wait
before each, or `timestamp` is when it was sent. `input_length` is the whole prompt (Dynamo's default), or the tokens
added to it: AIPerf's default is deltas, to which it adds what its server answered (docs/reference/conversation-context-mode.md
of ai-dynamo/aiperf). A file that sqsim exported says which (`context_mode`); in others the blocks decide (`adds_only`).
Blocks have 512 tokens unless the file says or shows another size (block_size.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.block_size import block_size
from sqsim.trace.formats.counts import Counted, Prompt, at_least_one, counted_turns, restarted
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Carried, Carries, Outcome, Prefix, Question, Task

BLOCK_TOKENS = 512
TOKEN_S = 0.01
"""Seconds a generated token (assumed), to tell a call's own time from the client's wait where only starts are known."""
CONTEXT_MODE = "context_mode"
DELTAS, WHOLE = "deltas_without_responses", "message_array_with_responses"
"""AIPerf's names of what a line of a session holds (`ConversationContextMode`)."""
_DELAYS = ("delay", "delay_ms")
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
        block = block_size(file, BLOCK_TOKENS, notes).tokens
        sessions: dict[str, list[Node]] = {}
        stated: str | None = None
        for number, node in enumerate(file.nodes()):
            stated = _mode(node) or stated
            if node.get("session_id") is None:
                yield counts_task(
                    file, self.name, f"{file.stem}:{number}", [node], [prompt_of(node)], block, notes
                )
            else:
                sessions.setdefault(str(node.get("session_id")), []).append(node)
        for nodes in sessions.values():
            if all(node.get("timestamp") is not None for node in nodes):
                nodes.sort(key=lambda node: node.seconds("timestamp"))
        found = [[prompt_of(node) for node in nodes] for nodes in sessions.values()]
        deltas = adds_only(found, block) if stated is None else stated == DELTAS
        for name, nodes in sessions.items():
            prompts = [prompt_of(node) for node in nodes]
            if deltas:
                notes["a line of a session says what it adds to the prompt (AIPerf's deltas)"] += len(nodes) - 1
                prompts = _summed(prompts, [node.count("output_length") for node in nodes])
            yield counts_task(file, self.name, name, nodes, prompts, block, notes)


def _mode(node: Node) -> str | None:
    mode = node.get(CONTEXT_MODE)
    if mode is not None and mode not in (DELTAS, WHOLE):
        raise node.wrong(f"{mode!r} is no known mode", CONTEXT_MODE, f"give {DELTAS} or {WHOLE}")
    return mode if isinstance(mode, str) else None


def adds_only(sessions: Sequence[Sequence[Prompt]], block_tokens: int = BLOCK_TOKENS) -> bool:
    """Whether lines hold only what each adds to its session: most do not begin as the session's first line."""
    whole = deltas = 0
    for prompts in sessions:
        first = prompts[0]
        for before, now in pairwise(prompts):
            if first.tokens >= block_tokens and first.blocks and now.blocks:
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


def counts_task(
    file: SourceFile,
    format_name: str,
    name: str,
    nodes: list[Node],
    prompts: Sequence[Prompt],
    block_tokens: int,
    notes: Notes,
    second: float = 1e-3,
    tools: bool = True,
) -> Task:
    """Make the task of a session's lines, each with its whole prompt.

    `second`: the seconds of a unit of their times. `tools`: tools came between the lines, else a user.
    """
    waits, timing = _waits(nodes, notes, second)
    steps = [
        Counted(
            prompt=at_least_one(prompts[index].tokens, "a prompt", notes),
            output=at_least_one(node.count("output_length"), "an output", notes),
            tools=tools,
            wait_s=waits[index],
            restarted=index > 0 and restarted(prompts[index - 1], prompts[index], block_tokens, notes),
        )
        for index, node in enumerate(nodes)
    ]
    turns, answer = counted_turns(steps, 0, notes)
    first = nodes[0]
    blocks = tuple(prompts[0].blocks) or None
    return Task(
        task_id=name,
        source=file.source(format_name),
        carries=Carries(timing=timing, usage="recorded"),
        arrival_s=first.seconds("timestamp", second) if first.get("timestamp") is not None else None,
        prefix=Prefix(id="none", tokens=0),
        question=Question(
            tokens=steps[0].prompt,
            hash_ids=blocks,
            block_tokens=None if blocks is None else block_tokens,
        ),
        turns=turns,
        answer=answer,
        outcome=Outcome(finish="answer"),
    )


def _waits(nodes: Sequence[Node], notes: Notes, second: float) -> tuple[list[float], Carried]:
    """Find the client's wait after each line, and its source: `delay`, else the gap between `timestamp`s.

    A gap is reduced by the call's own time, which no line holds: `TOKEN_S` a generated token.
    """
    waits: list[float] = []
    gaps = False
    for node, later in pairwise(nodes):
        delay = next((key for key in _DELAYS if later.get(key) is not None), None)
        if delay is not None:
            waits.append(later.seconds(delay, 1e-3))
        elif node.get("timestamp") is not None and later.get("timestamp") is not None:
            gap_s = later.seconds("timestamp", second) - node.seconds("timestamp", second)
            waits.append(max(0.0, round(gap_s - TOKEN_S * node.count("output_length"), 3)))
            gaps = True
            notes[
                f"a wait is what lies between two timestamps, less {TOKEN_S} s a generated token (assumed)"
            ] += 1
        else:
            waits.append(0.0)
            if (
                any(each.get(key) is not None for each in nodes for key in _DELAYS)
                or later.get("timestamp") is not None
            ):
                notes["a line of a session has neither delay nor a time to count from; it follows at once"] += 1
    timed = any(node.get(key) is not None for node in nodes for key in ("timestamp", *_DELAYS))
    return [*waits, 0.0], "derived" if gaps else "recorded" if timed else "absent"


def prompt_of(node: Node) -> Prompt:
    """Read a line's `input_length` and `hash_ids`, which may be missing or empty."""
    blocks = node.whole_numbers("hash_ids") if node.get("hash_ids") is not None else ()
    return Prompt(node.count("input_length"), blocks)
