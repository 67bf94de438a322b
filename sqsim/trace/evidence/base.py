# SPDX-License-Identifier: Apache-2.0
"""Contract of a kind of evidence: it follows one context, and names for each model call the responses that it shows as used.

A model call is told in the order of the context: `used` (its calls and text), `spoke` (what it wrote), then `opened` for each
response to it. What several responses show counts for the newest of them: to lose an older copy loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple


class Asked(NamedTuple):
    """A tool call: the tool's name, the call as the model wrote it, its arguments where they could be parsed."""

    tool: str
    text: str
    arguments: Any


class Evidence:
    """Base of every kind. Each method says what it does by default: nothing."""

    kind: ClassVar[str]

    def heard(self, text: str) -> None:
        """Note a text of the system, the user or a failed call: what it shows belongs to no response."""

    def spoke(self, text: str) -> None:
        """Note the model's own words."""

    def wrote(self, arguments: Any) -> None:
        """Note the new text in a call's arguments."""

    def opened(self, cursor: int, asked: Asked, text: str) -> None:
        """Note a successful response to a call, which is new in the context."""

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:  # noqa: ARG002 - the contract's signature
        """Find the cursors that a model call refers to; `text` is what it says to a user."""
        return set()

    def closed(self) -> None:
        """Note a compaction: nothing read before it can be referred to."""


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
