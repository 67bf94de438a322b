# SPDX-License-Identifier: Apache-2.0
"""Where a new event stands in the tree that `parentUuid` makes of a log.

A log is written in the order of time. An event whose parent is not where the log had got to was written after the user
went back, or on a second branch: what was said since that parent is not in its context.
"""

from __future__ import annotations

from sqsim.trace.formats.base import Node

START = 0
"""The place before the first event."""


class Places:
    """Numbers the places of one agent's context: a step and every message of a user begin a new one."""

    def __init__(self) -> None:
        self.here = START
        self._last = START
        self._of: dict[str, int] = {}  # uuid -> place
        self._tree = False  # does the log say what follows what?

    def forks_at(self, event: Node) -> int | None:
        """The earlier place that the event continues; None if it continues where the log has got to."""
        parent = event.optional_text("parentUuid")
        if not parent and self._tree and event.get("logicalParentUuid") is None:
            return START if self.here != START else None
        self._tree = self._tree or bool(parent)
        place = self._of.get(parent)
        return None if place is None or place == self.here else place

    def passed(self, event: Node) -> None:
        """An event that adds nothing to the context stands where its parent does."""
        self.stands(event, self._of.get(event.optional_text("parentUuid"), self.here))

    def stands(self, event: Node, place: int) -> None:
        """The event belongs to a place that is there already."""
        uuid = event.optional_text("uuid")
        if uuid:
            self._of[uuid] = place

    def follows(self, event: Node, place: int) -> int:
        """A response to a call at a place; it stands where its parent does, if that came later. Returns where it stands."""
        place = max(place, self._of.get(event.optional_text("parentUuid"), place))
        self.stands(event, place)
        return place

    def begins(self, event: Node) -> int:
        """The event begins a new place, which is where the log has got to."""
        self._last += 1
        self.here = self._last
        self.stands(event, self.here)
        return self.here
