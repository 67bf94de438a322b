# SPDX-License-Identifier: Apache-2.0
"""Import bare lists of OpenAI Responses items, as `result.to_input_list()` of the Agents SDK gives, one conversation a list.

Also one item a line, `{"items": [...]}` or `{"input": [...]}`. Reasoning, messages and calls between two inputs are one
model call. Such a list has neither counts nor times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.dialects import chat_of_items, is_item
from sqsim.trace.formats.dialects.items import SIGNS
from sqsim.trace.formats.messages import Reader, definitions, joined, row_id
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task

_LISTS = ("items", "input", "input_list")


class ResponsesItems(Format):
    """One task a list of items."""

    name = "responses_items"

    def evidence(self, head: Sequence[Any]) -> str | None:
        lists = [_items(value) for value in (head[0] if _is_batch(head) else head)]
        if all(each is None for each in lists) and head:
            items = [value for value in head if is_item(value)]
            lists = [items] if 3 * len(items) >= 2 * len(head) and items else lists
        found = [each for each in lists if each is not None]
        signs = sum(
            str(item.get("type")) in SIGNS | {"reasoning"}
            for each in found
            for item in each
            if isinstance(item, dict)
        )
        if len(found) < len(lists) or not signs:
            return None
        return f"{len(found)} lists of Responses items, {signs} of them calls, outputs or reasoning"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        lines: list[Any] = []
        number = 0
        first: Node | None = None
        for node in file.nodes():
            for row in node.items() if _is_batch([node.value]) else [node]:
                if _items(row.value) is None:
                    if is_item(row.value):
                        lines.append(row.value)
                    else:
                        notes["a line that is no item was left out"] += 1
                    first = first or row
                    continue
                yield from self._task(file, row, number, notes)
                number += 1
        if lines and first is not None:
            yield from self._task(file, Node(lines, file.path, first.line), number, notes)

    def _task(self, file: SourceFile, row: Node, number: int, notes: Notes) -> Iterator[Task]:
        given = row.value if isinstance(row.value, list) else _items(row.value) or []
        reader = Reader(notes, joined(definitions(row), _instructions(row)))
        for index, message in enumerate(chat_of_items(given)):
            reader.read(Node(message, file.path, row.line, f"items[{index}]"))
        if not reader.steps:
            notes["a conversation without an answer was left out"] += 1
            return
        script = Transcript(
            task_id=row_id(file, row, number),
            source=file.source(self.name),
            prefix=reader.system,
            question=reader.question,
            question_other_tokens=reader.question_other_tokens,
            steps=reader.steps,
            timing="absent",
            model=row.get("model") if isinstance(row.get("model"), str) else None,
            outcome=Outcome(finish="unknown" if reader.steps[-1].calls else "answer"),
        )
        yield transcript_task(script, notes)


def _is_batch(head: Sequence[Any]) -> bool:
    """Whether a file is one list of conversations."""
    return (
        len(head) == 1
        and isinstance(head[0], list)
        and bool(head[0])
        and all(_items(value) is not None for value in head[0])
    )


def _items(value: Any) -> list[Any] | None:
    """List the items that a value is or holds; None if it is no conversation."""
    if isinstance(value, dict) and "role" not in value and "type" not in value:
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    if not isinstance(value, list) or not value or not all(map(is_item, value)):
        return None
    return value


def _instructions(row: Node) -> str:
    found = row.get("instructions")
    return found if isinstance(found, str) else ""
