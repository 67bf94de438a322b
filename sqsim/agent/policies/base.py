"""The contract of a policy: at every boundary, which cursors to clear and whether to start an aux thread.

A policy sees a `View`: what a server or an agent framework knows at that moment, and nothing of the future
(law 4). A policy that needs hindsight is another kind of thing, lives in `oracle.py`, and is labelled so.
To add one, see CONTRIBUTING.md, "Add a policy".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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


class Policy:
    """Asked at every boundary, `evict` first (law 9). A policy says no more than what is not its base's: nothing.

    `name` is what records and reports call it. `hold_s`: so long after a turn the server must keep an idle session.
    """

    name: str
    hold_s: float = 0.0

    def evict(self, view: View) -> Sequence[int]:  # noqa: ARG002 - the contract's signature
        """Cursors to clear now. Evicting an unread one is not possible and is ignored."""
        return ()

    def spawn_aux(self, view: View) -> bool:  # noqa: ARG002 - the contract's signature
        """Start an aux thread now? Asked only while none is alive."""
        return False

    def summarise(self, view: View) -> int:  # noqa: ARG002 - the contract's signature
        """Tokens of a summary to write now in place of all that was read; 0: none. The main step waits for it."""
        return 0
