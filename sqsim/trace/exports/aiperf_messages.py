# SPDX-License-Identifier: Apache-2.0
"""Export texts for AIPerf: Mooncake lines with `messages`, a model call a line, each with its whole conversation.

AIPerf sends each line's messages as they are, recorded answers included, and asks for `output_length` tokens. A line is
as long as its conversation, so a file grows with the square of the number of calls: AIPerf has no shorter form for
recorded answers. A reset begins a new conversation: the system text and what was kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.exports.base import Exporter, Written
from sqsim.trace.exports.openai_chat import said_of
from sqsim.trace.formats.aiperf_messages import AIPerfMessages
from sqsim.trace.formats.base import Format
from sqsim.trace.schema import Task


class AIPerfMessagesExport(Exporter):
    """Conversations as requests."""

    name = "aiperf_messages"
    says = "Mooncake lines with the messages of each call: AIPerf (needs recorded texts)"

    @property
    def reader(self) -> Format:
        return AIPerfMessages()

    def written(self, family: Sequence[Task]) -> Written:
        return Written([line for task in family for line in _lines(task)], list(family))


def _lines(task: Task) -> Iterator[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    for index, said in enumerate(said_of(task)):
        if said.restarted:
            kept = said.before[-1:] or [{"role": "user", "content": ""}]
            sent = [*(message for message in sent[:1] if message["role"] == "system"), *kept]
        else:
            sent = [*sent, *said.before]
        line: dict[str, Any] = {"session_id": task.task_id}
        if index:
            before = task.turns[index - 1]
            line["delay"] = round((before.tool_wait_s + before.user_wait_s) * 1e3, 3)
        elif task.arrival_s is not None:
            line["timestamp"] = round(task.arrival_s * 1e3, 3)
        yield line | {"messages": sent, "output_length": said.usage["completion_tokens"]}
        sent = [*sent, said.message]
