# SPDX-License-Identifier: Apache-2.0
"""Import OpenAI chat messages with tool calls: tau-bench's array, `{"messages": [...]}` a line, or a bare list.

gpt-oss logs are read too (messages.py). Tool definitions next to the messages are part of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import (
    Reader,
    conversations,
    definitions,
    holds_blocks,
    joined,
    messages_of,
    row_id,
    rows_of,
)
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.transcript import Transcript, transcript_task
from sqsim.trace.schema import Outcome, Task


class OpenAIChat(Format):
    """One task a conversation; every run of assistant messages without a user or tool between is its own call."""

    name = "openai_chat"

    def evidence(self, head: Sequence[Any]) -> str | None:
        found = conversations(list(head))
        if found is None or any(holds_blocks(messages) for messages in found):
            return None
        calls = sum(
            "tool_calls" in message or "recipient" in message for messages in found for message in messages
        )
        return (
            f"{len(found)} of {len(found)} values hold messages with role and content, {calls} with tool calls"
        )

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        number = 0
        for node in file.nodes():
            for row in rows_of(node):
                script = self._script(file, row, number, notes)
                number += 1
                if script is None:
                    notes["a conversation without an assistant message was left out"] += 1
                else:
                    yield transcript_task(script, notes)

    def _script(self, file: SourceFile, row: Node, number: int, notes: Notes) -> Transcript | None:
        reader = Reader(notes, joined(definitions(row), _system(row, notes)))
        for message in messages_of(row):
            reader.read(message)
        if not reader.steps:
            return None
        reward = row.get("reward")
        return Transcript(
            task_id=row_id(file, row, number),
            source=file.source(self.name),
            prefix=reader.system,
            question=reader.question,
            question_other_tokens=reader.question_other_tokens,
            steps=reader.steps,
            timing="absent",
            model=row.get("model") if isinstance(row.get("model"), str) else None,
            outcome=Outcome(
                finish="unknown" if reader.steps[-1].calls else "answer",
                correct=reward >= 1 if isinstance(reward, int | float) else None,
            ),
        )


class AnthropicMessages(OpenAIChat):
    """Anthropic's Messages, imported alike: content blocks, and `system` next to the messages."""

    name = "anthropic_messages"

    def evidence(self, head: Sequence[Any]) -> str | None:
        found = conversations(list(head))
        blocks = sum(holds_blocks(messages) for messages in found or ())
        if found is None or not blocks:
            return None
        return f"{len(found)} values hold messages, {blocks} of them tool_use, tool_result or thinking blocks"


def _system(row: Node, notes: Notes) -> str:
    """Read the system text next to the messages, a text or blocks of it."""
    return said(row, notes, "system").text
