# SPDX-License-Identifier: Apache-2.0
"""Find the place of a new event in the tree that `parentUuid` makes of a log.

A log is written in the order of time. An event whose parent is not at the log's present place was written after the user
went back, or on a second branch: messages since that parent are not in its context.
"""

from __future__ import annotations

from sqsim.trace.formats.base import Node

START = 0
"""The place before the first event."""


class Places:
    """Counter of the places in one agent's context: a step and every user message begin a new one."""

    def __init__(self) -> None:
        self.here = START
        self._last = START
        self._of: dict[str, int] = {}  # uuid -> place
        self._tree = False  # does the log link each event to its parent?

    def forks_at(self, event: Node) -> int | None:
        """Find the earlier place that the event continues; None if it continues the log's present place."""
        parent = event.optional_text("parentUuid")
        if not parent and self._tree and event.get("logicalParentUuid") is None:
            return START if self.here != START else None
        self._tree = self._tree or bool(parent)
        place = self._of.get(parent)
        return None if place is None or place == self.here else place

    def passed(self, event: Node) -> None:
        """Give an event that adds nothing to the context its parent's place."""
        self.stands(event, self._of.get(event.optional_text("parentUuid"), self.here))

    def stands(self, event: Node, place: int) -> None:
        """Give the event an existing place."""
        uuid = event.optional_text("uuid")
        if uuid:
            self._of[uuid] = place

    def follows(self, event: Node, place: int) -> int:
        """Give a response its call's place, or its parent's if that is later. Returns the place."""
        place = max(place, self._of.get(event.optional_text("parentUuid"), place))
        self.stands(event, place)
        return place

    def begins(self, event: Node) -> int:
        """Give the event a new place, which becomes the log's present one."""
        self._last += 1
        self.here = self._last
        self.stands(event, self.here)
        return self.here
