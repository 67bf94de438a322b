"""The contract of a policy: at every boundary, which cursors to clear and whether to start an aux thread.

A policy sees a `View`: what a server or an agent framework knows at that moment, and nothing of the future
(law 4). A policy that needs hindsight is another kind of thing, lives in `oracle.py`, and is labelled so.
To add one, see CONTRIBUTING.md, "Add a policy".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class CursorView(NamedTuple):
    """An open tool response: resident tokens of its call and response, the turn that opened it, whether it was read."""

    cursor: int
    opened: int
    tokens: int
    read: bool


class View(NamedTuple):
    """What a policy may know at boundary `turn`; `cursors` are open, oldest first."""

    turn: int
    context_tokens: int
    cursors: tuple[CursorView, ...]


class Policy(Protocol):
    """Called once a boundary, `evict` first (law 9). Evicting an unread cursor is not possible and is ignored."""

    @property
    def name(self) -> str:
        """What records and reports call it."""

    def evict(self, view: View) -> Sequence[int]:
        """Cursors to clear now."""

    def spawn_aux(self, view: View) -> bool:
        """Start an aux thread now? Asked only while none is alive."""
