# SPDX-License-Identifier: Apache-2.0
"""Export `agentic_mooncake` for Dynamo: Mooncake lines that name what they wait for, with their tools' events.

A line waits for the step before it, a sub-agent's first line for its parent's step, and the step that joins a sub-agent
for its last line; then `delay` (ms, the user's wait) and `tool_wait_ms` pass. A step that joins sub-agents states no
`tool_wait_ms`, as the tools ran beside them; their events still state each call's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.exports.base import Exporter, Written
from sqsim.trace.exports.clock import ASSUMED, Timed, clocked
from sqsim.trace.exports.context import Blocks
from sqsim.trace.formats.agentic_mooncake import AgenticMooncake
from sqsim.trace.formats.base import Format
from sqsim.trace.formats.mooncake import BLOCK_TOKENS
from sqsim.trace.schema import Task, Turn


class AgenticMooncakeExport(Exporter):
    """Requests with dependencies."""

    name = "agentic_mooncake"
    says = "Mooncake lines with dependencies, sub-agents and tool events: Dynamo"
    families = True

    def __init__(self, block_tokens: int | None = None) -> None:
        super().__init__(block_tokens)
        self._blocks = Blocks(self.block)

    @property
    def reader(self) -> Format:
        return AgenticMooncake()

    def written(self, family: Sequence[Task]) -> Written:
        timed = clocked(family)
        root = family[0]
        if root.arrival_s is None:
            self.assumed["a task without an arrival starts at 0"] += 1
        begins_s = root.arrival_s or 0.0
        joined: dict[str, list[str]] = {}
        branches: dict[str, list[str]] = {}
        for task in family:
            if task.parent is not None and task.spawn is not None:
                parent = task.parent.task_id
                last = f"{task.task_id}/{task.steps - 1}"
                if task.spawn.join_turn < len(timed[parent]):
                    joined.setdefault(f"{parent}/{task.spawn.join_turn}", []).append(last)
                branches.setdefault(f"{parent}/{task.spawn.turn}", []).append(f"{task.task_id}/0")
        values: list[tuple[float, dict[str, Any]]] = []
        for task in family:
            for number, line in enumerate(self._lines(task, timed[task.task_id], begins_s)):
                name = line["request_id"]
                if number or task.parent is None:
                    line["wait_for"] += joined.get(name, [])
                line["branches"] = branches.get(name, [])
                if name in joined:
                    line.pop("tool_wait_ms", None)
                values.append((line["timestamp"], line))
        values.sort(key=lambda each: each[0])
        return Written([line for _, line in values], _read_order(family, values))

    def _lines(self, task: Task, timed: Sequence[Timed], begins_s: float) -> Iterator[dict[str, Any]]:
        before: Timed | None = None
        for index, each in enumerate(timed):
            line: dict[str, Any] = {
                "request_id": f"{task.task_id}/{index}",
                "session_id": task.task_id,
                "timestamp": round((begins_s + each.start_s) * 1e3, 3),
                "input_length": each.step.prompt_tokens,
                "output_length": each.step.output,
                "hash_ids": self._blocks.of(each.step.prompt),
                "wait_for": [f"{task.task_id}/{index - 1}"] if index else _parent(task),
                "prefix_reset": not index or each.step.restarted,
            }
            if not index and self.block != BLOCK_TOKENS:
                line["block_size"] = self.block
            if before is not None and before.step.turn is not None:
                turn = before.step.turn
                line["delay"] = round(turn.user_wait_s * 1e3, 3)
                if turn.calls:
                    line["tool_wait_ms"] = round(turn.tool_wait_s * 1e3, 3)
                    line["tool_events"] = list(_events(task, index - 1, turn, begins_s + before.end_s))
                    self.assumed[ASSUMED] += 1
            before = each
            yield line


def _parent(task: Task) -> list[str]:
    return [] if task.parent is None else [f"{task.parent.task_id}/{task.parent.turn}"]


def _read_order(family: Sequence[Task], values: Sequence[tuple[float, dict[str, Any]]]) -> list[Task]:
    """Order tasks by their first lines, each after its parent."""
    order: dict[str, None] = {}
    tasks = {task.task_id: task for task in family}
    for _, line in values:
        chain = [tasks[line["session_id"]]]
        while (parent := chain[-1].parent) is not None and parent.task_id not in order:
            chain.append(tasks[parent.task_id])
        order.update(dict.fromkeys(task.task_id for task in reversed(chain)))
    return [tasks[name] for name in order]


def _events(task: Task, index: int, turn: Turn, now_s: float) -> Iterator[dict[str, Any]]:
    """Write a turn's calls: parallel neighbours start together, serial ones after each other."""
    end_s = now_s
    for number, call in enumerate(turn.calls):
        if not (call.parallel and number and turn.calls[number - 1].parallel):
            now_s = end_s
        end_s = max(end_s, now_s + call.latency_s)
        event = {
            "tool_call_id": f"{task.task_id}/{index}/{number}",
            "tool_class": call.tool,
            "status": "succeeded" if call.error is None else "error",
            "started_at_unix_ms": round(now_s * 1e3),
            "ended_at_unix_ms": round((now_s + call.latency_s) * 1e3),
            "duration_ms": round(call.latency_s * 1e3, 3),
            "output_tokens": call.response_tokens,
        }
        if call.error is not None:
            event["error_type"] = call.error
        yield event
