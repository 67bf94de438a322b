# SPDX-License-Identifier: Apache-2.0
"""Import `weka_trace`: one object a file, a coding agent's token counts and hashed blocks (FORMATS.md).

Facts that the format does not state and the files show:
- `hash_ids` name the full blocks of a prompt; `hash_id_scope: local` means that they hold within the file.
- A sub-agent's `t` is its end in older corpora, and `t - duration_ms` the moment its parent's request ended; in newer
  ones `t` is its start and its requests' `t` count from the session's start (weka_runs.py).
- `think_time` counts from the last response whose `api_time` is known, so it is the client's wait only if
  the request before has one; otherwise, and where it is left out, the gap in `t` less `api_time` is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import Counted, Prompt, at_least_one, counted_turns, restarted
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.weka_runs import sub_agent_runs
from sqsim.trace.schema import Carries, Outcome, Parent, Prefix, Question, Spawn, Task

_KEYS = ("id", "block_size", "requests")


class _Request(NamedTuple):
    """Model call: its start in seconds, token counts, prompt blocks, and surrounding waits."""

    start_s: float
    prompt: int
    output: int
    blocks: list[int]
    inputs: tuple[str, ...]
    stop: str
    api_s: float | None
    think_s: float | None


class Weka(Format):
    """WEKA's anonymised Claude Code sessions, which AIPerf and Dynamo replay too."""

    name = "weka_trace"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if len(head) == 1 and isinstance(head[0], dict) and all(key in head[0] for key in _KEYS):
            return (
                f"one object with {', '.join(_KEYS[:-1])} and {_KEYS[-1]}[] ({len(_KEYS)} of {len(_KEYS)} keys)"
            )
        return None

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        for root in file.nodes():
            block = root.count("block_size")
            if not block:
                raise root.wrong("0 is not a block size", "block_size")
            entries = root.nodes("requests")
            children = [entry for entry in entries if entry.get("type") == "subagent"]
            requests = [_request(entry) for entry in entries if entry.get("type") != "subagent"]
            if not requests:
                raise root.wrong("holds no request", "requests", "an empty trace is not a trace")
            name = root.text("id")
            main = _Session(root, name, name, block, requests, notes)
            runs = sub_agent_runs(children, notes)
            joins = [main.join(start, end) for start, end in runs]
            yield main.task(file, [(join, end) for join, (_, end) in zip(joins, runs, strict=True) if join])
            for child, spawn in zip(children, joins, strict=True):
                if spawn is None:
                    notes["a sub-agent outside its parent's turns was left out"] += 1
                    continue
                inner = [_request(entry) for entry in child.nodes("requests")]
                if not inner:
                    notes["a sub-agent without requests was left out"] += 1
                    continue
                session = _Session(child, name, f"{name}/{child.text('agent_id')}", block, inner, notes)
                yield session.task(file, (), Parent(task_id=name, turn=spawn.turn), spawn)


def _request(entry: Node) -> _Request:
    return _Request(
        entry.seconds("t"),
        entry.count("in"),
        entry.count("out"),
        entry.whole_numbers("hash_ids"),
        tuple(entry.texts("input_types")),
        entry.optional_text("stop"),
        None if entry.get("api_time") is None else entry.seconds("api_time"),
        None if entry.get("think_time") is None else entry.seconds("think_time"),
    )


class _Session:
    """Requests of one agent, in order of their start."""

    def __init__(
        self, node: Node, scope: str, name: str, block: int, requests: Sequence[_Request], notes: Notes
    ) -> None:
        self._node, self._scope, self._name, self._block, self._notes = node, scope, name, block, notes
        self._requests = sorted(requests, key=lambda request: request.start_s)
        known = [r.api_s / max(1, r.output) for r in self._requests if r.api_s is not None]
        self._s_per_token = median(known) if known else 0.0
        missing = sum(request.api_s is None for request in self._requests)
        if missing:
            notes["a request has no api_time; the file's median time a token stands in"] += missing
        short = sum(len(request.blocks) < request.prompt // block for request in self._requests)
        if short:
            notes["hash_ids name fewer blocks than the prompt has; nothing is shared by them"] += short

    def _ends_s(self, index: int) -> float:
        request = self._requests[index]
        api_s = request.output * self._s_per_token if request.api_s is None else request.api_s
        return request.start_s + api_s

    def join(self, start_s: float, end_s: float) -> Spawn | None:
        """Find the turn that started a run from start_s to end_s, and the first step after the run."""
        last = len(self._requests) - 1
        turn = max((i for i in range(last) if self._requests[i].start_s <= start_s), default=None)
        if turn is None:
            return None
        later = (i for i in range(turn + 1, last) if self._requests[i].start_s >= end_s)
        return Spawn(turn=turn, join_turn=next(later, last))

    def task(
        self,
        file: SourceFile,
        children: Sequence[tuple[Spawn, float]],
        parent: Parent | None = None,
        spawn: Spawn | None = None,
    ) -> Task:
        first, last = self._requests[0], self._requests[-1]
        steps = self._steps(children)
        named = len(first.blocks) >= first.prompt // self._block
        # Cut to full blocks, so that the ids tell which sessions of the file share it.
        blocks = min(self._shared_tokens() // self._block, len(first.blocks)) if named else 0
        prefix = Prefix(id=f"weka:{self._digest(*first.blocks[:blocks])}", tokens=blocks * self._block)
        turns, answer = counted_turns(steps, prefix.tokens, self._notes)
        return Task(
            task_id=self._name,
            source=file.source(Weka.name),
            model=next(iter(self._node.texts("models")), None),
            carries=Carries(timing="recorded", usage="recorded"),
            parent=parent,
            spawn=spawn,
            prefix=prefix,
            question=Question(
                tokens=steps[0].prompt - prefix.tokens,
                hash_ids=tuple(int(self._digest(i), 16) for i in first.blocks[blocks:]) if named else None,
                block_tokens=self._block if named else None,
            ),
            turns=turns,
            answer=answer,
            outcome=Outcome(finish="answer" if last.stop == "end_turn" else "unknown"),
        )

    def _shared_tokens(self) -> int:
        """Compute the tokens of tool definitions and system prompt, as far as every prompt can hold them."""
        stated = self._node.count("tool_tokens") + self._node.count("system_tokens")
        return min(stated, *(max(0, request.prompt - 1) for request in self._requests))

    def _steps(self, children: Sequence[tuple[Spawn, float]]) -> list[Counted]:
        steps = []
        prompts = [Prompt(request.prompt, request.blocks) for request in self._requests]
        for index, request in enumerate(self._requests):
            wait_s, after_s = self._waits(index, children)
            steps.append(
                Counted(
                    prompt=at_least_one(request.prompt, "a prompt", self._notes),
                    output=at_least_one(request.output, "an output", self._notes),
                    tools=self._calls_tools(index),
                    wait_s=wait_s,
                    after_s=after_s,
                    restarted=index > 0
                    and restarted(prompts[index - 1], prompts[index], self._block, self._notes),
                )
            )
        return steps

    def _calls_tools(self, index: int) -> bool:
        """Whether tool results followed a request; if the file does not tell, whether it stopped for tools."""
        if index + 1 == len(self._requests):
            return False
        inputs = self._requests[index + 1].inputs
        return "tool_result" in inputs if inputs else self._requests[index].stop == "tool_use"

    def _waits(self, index: int, children: Sequence[tuple[Spawn, float]]) -> tuple[float, float]:
        """Compute the seconds of tools during the sub-agents, and after them, before the next request."""
        if index + 1 == len(self._requests):
            return 0.0, 0.0
        request, following = self._requests[index], self._requests[index + 1]
        ends = [end_s for spawn, end_s in children if spawn.join_turn == index + 1]
        if ends:
            return 0.0, round(max(0.0, following.start_s - max(self._ends_s(index), *ends)), 3)
        if request.api_s is not None and following.think_s is not None:
            return following.think_s, 0.0
        return round(max(0.0, following.start_s - self._ends_s(index)), 3), 0.0

    def _digest(self, *hash_ids: int) -> str:
        """Make a 48-bit name of blocks, unique beyond their file: scope `local` is put before the ids."""
        scope = "global" if self._node.get("hash_id_scope") == "global" else self._scope
        return hashlib.blake2b(repr((scope, hash_ids)).encode(), digest_size=6).hexdigest()
