# SPDX-License-Identifier: Apache-2.0
"""Reader of a row, which a fork has instead of a node of the radix tree."""

from __future__ import annotations

from typing import Any

from sglang.srt.session.streaming_session import _VirtualNode


class Reader(_VirtualNode):  # type: ignore[misc]  # SGLang's class, untyped here
    """Lock on the row that a fork reads, which keeps it from being freed or cut."""

    def __init__(self, slot: Any, tokens: int) -> None:
        self.slot = slot
        self.tokens = tokens
