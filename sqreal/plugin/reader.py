"""What a fork has in place of a node of the radix tree."""

from __future__ import annotations

from typing import Any

from sglang.srt.session.streaming_session import _VirtualNode


class Reader(_VirtualNode):  # type: ignore[misc]  # SGLang's class, untyped here
    """Locking it keeps the row that the fork reads from being freed or cut."""

    def __init__(self, slot: Any, tokens: int) -> None:
        self.slot = slot
        self.tokens = tokens
