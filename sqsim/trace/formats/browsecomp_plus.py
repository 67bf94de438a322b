# SPDX-License-Identifier: Apache-2.0
"""Import runs of BrowseComp-Plus: `result` lists what the model thought, called and answered, in order.

A run has neither the question nor times nor usage: a prompt holds what the calls returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import Reader, joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import Trajectories, is_list_of, like
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_KINDS = {"reasoning", "tool_call", "output_text"}


class BrowseCompPlus(Trajectories):
    """BrowseComp-Plus: one task a run; each tool call is a model call, as the harness runs one at a time."""

    name = "browsecomp_plus"

    def evidence(self, head: Sequence[Any]) -> str | None:
        runs = head[0] if len(head) == 1 and isinstance(head[0], list) else list(head)
        if not is_list_of(runs, "query_id", "result"):
            return None
        items = [
            item for run in runs for item in (run["result"] if isinstance(run["result"], list) else [None])
        ]
        if not items or not all(isinstance(item, dict) and str(item.get("type")) in _KINDS for item in items):
            return None
        return f"query_id and result with {len(items)} items of reasoning, tool_call or output_text"

    def rows(self, node: Node) -> list[Node]:
        return node.items() if isinstance(node.value, list) else [node]

    def begins_s(self, row: Node) -> float | None:  # noqa: ARG002 - a run has no times
        return None

    def made(
        self, file: SourceFile, row: Node, number: int, arrival_s: float | None, notes: Notes
    ) -> list[Task]:
        reader = Reader(notes)
        open_step = False
        for item in row.nodes("result"):
            kind = item.text("type")
            if not open_step:
                reader.read(like(item, {"role": "assistant", "content": ""}))
            step, open_step = reader.steps[-1], True
            if kind == "tool_call":
                reader.call(step, item.text("tool_name"), item.get("arguments"), "")
                reader.read(like(item, {"role": "tool", "content": item.get("output")}))
                open_step = False
            elif kind == "reasoning":
                step.reasoning = joined(step.reasoning, _texts(item, notes))
            elif kind == "output_text":
                step.text = joined(step.text, _texts(item, notes))
            else:
                raise item.wrong(
                    f"{kind[:40]!r} is no type of item", "type", f"types are {', '.join(sorted(_KINDS))}"
                )
        if not reader.steps:
            return []
        question = next((row.optional_text(key) for key in ("query", "question") if row.get(key)), "")
        if not question:
            notes["a run without its question: the question counts as markup only"] += 1
        metadata = row.get("metadata")
        model = metadata.get("model") if isinstance(metadata, dict) else None
        own = row.get("query_id")
        return [
            transcript_task(
                Transcript(
                    task_id=f"{file.stem}:{own if isinstance(own, str | int) else number}",
                    source=file.source(self.name),
                    prefix="",
                    question=question,
                    steps=reader.steps,
                    timing="absent",
                    model=model if isinstance(model, str) else None,
                    outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
                    arrival_s=arrival_s,
                ),
                notes,
            )
        ]


def _texts(item: Node, notes: Notes) -> str:
    """Return an item's text: one text, or a list of them."""
    return said(item, notes, "output").text
