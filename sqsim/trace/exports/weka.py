# SPDX-License-Identifier: Apache-2.0
"""Export `weka_trace`: an object a file, a task with its sub-agents, in a directory (AIPerf, kv-cache-tester).

Sub-agents of sub-agents become their root's: the format has one level. A sub-agent states no duration, as its requests'
times tell it: AIPerf and sqsim then both take `t` for its start. It starts 1 ms before the request that started it ends,
so that times tell which one that is. Times count from the session's start, so an arrival cannot be said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.exports.base import Exporter, Written
from sqsim.trace.exports.clock import ASSUMED, Timed, clocked
from sqsim.trace.exports.context import Blocks
from sqsim.trace.formats.base import Format
from sqsim.trace.formats.weka import Weka
from sqsim.trace.schema import Task

_SOONER_S = 1e-3


class WekaExport(Exporter):
    """WEKA's sessions."""

    name = "weka_trace"
    says = "one JSON object a session with its sub-agents, in a directory: AIPerf, kv-cache-tester, Dynamo"
    families = True
    directory = True
    block_tokens = 64

    @property
    def reader(self) -> Format:
        return Weka()

    def written(self, family: Sequence[Task]) -> Written:
        """Write a root with its sub-agents; one that no later request could follow is a session of its own."""
        timed = clocked(family)
        root, *below = family
        inside, alone = (below, []) if root.steps > 1 else ([], below)
        values = [self._session(root, inside, timed)]
        values += [self._session(task, [], timed) for task in alone]
        return Written(values, [root, *inside, *alone])

    def _session(self, root: Task, below: Sequence[Task], timed: dict[str, list[Timed]]) -> dict[str, Any]:
        blocks = Blocks(self.block)
        entries = list(self._requests(root, timed[root.task_id], blocks))
        for task in below:
            requests = list(self._requests(task, timed[task.task_id], blocks))
            entries.append(
                {
                    "t": max(0.0, round(timed[task.task_id][0].start_s - _SOONER_S, 6)),
                    "type": "subagent",
                    "agent_id": task.task_id.removeprefix(f"{root.task_id}/"),
                    "subagent_type": "agent",
                    "duration_ms": None,
                    "total_tokens": sum(each["in"] + each["out"] for each in requests),
                    "tool_use_count": sum(len(turn.calls) for turn in task.turns),
                    "status": "async_launched",
                    "requests": requests,
                    "models": _models(task),
                    "tool_tokens": 0,
                    "system_tokens": task.prefix.tokens,
                }
            )
        entries.sort(key=lambda entry: entry["t"])
        return {
            "id": root.task_id,
            "models": _models(root),
            "block_size": self.block,
            "hash_id_scope": "local",
            "tool_tokens": 0,
            "system_tokens": root.prefix.tokens,
            "requests": entries,
        }

    def _requests(self, task: Task, timed: Sequence[Timed], blocks: Blocks) -> Iterator[dict[str, Any]]:
        before: Timed | None = None
        for index, each in enumerate(timed):
            turn = each.step.turn
            last = index + 1 == len(timed)
            called = turn is not None and bool(turn.calls)
            heard = before is not None and before.step.turn is not None and bool(before.step.turn.calls)
            request: dict[str, Any] = {
                "t": round(each.start_s, 6),
                "type": "n",
                "model": task.model or "",
                "in": each.step.prompt_tokens,
                "out": each.step.output,
                "hash_ids": blocks.of(each.step.prompt, partial=False),
                "input_types": ["tool_result"] if heard else ["text"],
                "output_types": ["tool_use"] if called else ["text"],
                "stop": "tool_use" if called else _stop(task) if last else "end_turn",
                "api_time": round(each.end_s - each.start_s, 6),
            }
            if before is not None and before.step.turn is not None:
                request["think_time"] = before.step.turn.tool_wait_s + before.step.turn.user_wait_s
            self.assumed[ASSUMED] += 1
            before = each
            yield request


def _stop(task: Task) -> str:
    return "end_turn" if task.outcome.finish == "answer" else ""


def _models(task: Task) -> list[str]:
    return [] if task.model is None else [task.model]
