# SPDX-License-Identifier: Apache-2.0
"""Import `qwen_bailian`: chats of a serving cluster, 16-token blocks (alibaba-edu/qwen-bailian-usagetraces-anon).

A line is a request: `chat_id`, `parent_chat_id` (-1: it begins a chat), `timestamp` (s), `input_length` (the whole
prompt), `output_length`, `hash_ids`. Between the requests of a chat a user writes, so no tool is in it. A next prompt
lacks the tokens `<think>` and `</think>`, and its last block may differ (its Q&A on context growth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.block_size import block_size
from sqsim.trace.formats.mooncake import counts_task, prompt_of
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Task

BLOCK_TOKENS = 16
_KEYS = ("chat_id", "parent_chat_id", "input_length", "output_length")


class QwenBailian(Format):
    """One task a chat; a chat that goes on in two ways is two tasks, the second from where they part."""

    name = "qwen_bailian"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not all(isinstance(value, dict) and all(key in value for key in _KEYS) for value in head):
            return None
        return f"every line has {', '.join(_KEYS)}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        block = block_size(file, BLOCK_TOKENS, notes).tokens
        for chat in _chats(file, notes):
            name = str(chat[0].get("chat_id"))
            prompts = [prompt_of(node) for node in chat]
            yield counts_task(file, self.name, name, chat, prompts, block, notes, second=1.0, tools=False)


def _chats(file: SourceFile, notes: Notes) -> list[list[Node]]:
    """Chain requests by their parents, in order of time where all have one."""
    nodes = list(file.nodes())
    if all(node.get("timestamp") is not None for node in nodes):
        nodes.sort(key=lambda node: node.seconds("timestamp"))
    chats: list[list[Node]] = []
    of: dict[str, list[Node]] = {}
    ids = {str(node.get("chat_id")) for node in nodes}
    for node in nodes:
        own, parent = str(node.get("chat_id")), str(node.get("parent_chat_id"))
        if own in of:
            notes["a request with a chat_id that another one has was left out"] += 1
            continue
        chat = of.get(parent)
        if chat is not None and str(chat[-1].get("chat_id")) == parent:
            chat.append(node)
        else:
            if chat is not None:
                notes["a chat goes on from one request in two ways; the later way is a task of its own"] += 1
            elif parent not in {"-1", "None"}:
                where = "comes later" if parent in ids else "is not in the file"
                notes[f"a request whose parent {where} begins a task of its own"] += 1
            chat = [node]
            chats.append(chat)
        of[own] = chat
    return chats
