# SPDX-License-Identifier: Apache-2.0
"""Find in a task's texts the earlier tool responses that each model call refers to (METHOD.md, "last use").

*Recorded* references come first: where responses number themselves (evidence/pages.py), nothing else counts. All other kinds are
*derived*; one call may refer to a response by several of them, and each is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sqsim.trace.evidence.base import Asked, Evidence
from sqsim.trace.evidence.edits import Edits
from sqsim.trace.evidence.identifiers import Identifiers
from sqsim.trace.evidence.outputs import Outputs
from sqsim.trace.evidence.pages import Pages
from sqsim.trace.evidence.paths import Paths
from sqsim.trace.evidence.symbols import Symbols

KINDS: tuple[type[Evidence], ...] = (Identifiers, Edits, Paths, Symbols, Outputs)
"""Derived evidence, in the order in which reports list it."""


class Mentions:
    """Tracker of one context that finds, for every step, the cursors that its calls and its text refer to.

    Feed it in the order of the context: `heard` text that is no response, `opened` each successful response,
    `used` the calls and the answer of each step (before the responses to it). `by_kind` counts the references found by each kind.
    """

    def __init__(self, kinds: Iterable[type[Evidence]] = KINDS) -> None:
        self._pages = Pages()
        self._derived = [kind() for kind in kinds]
        self.by_kind: Counter[str] = Counter()
        self.found: list[dict[str, set[int]]] = []
        """For each step so far: kind -> the cursors that it names."""

    @property
    def recorded(self) -> bool:
        """Whether the responses number themselves, so that references are explicit."""
        return self._pages.numbered

    def heard(self, text: str) -> None:
        """Note a text of the system, the user or a failed call: names that appear first here belong to no response."""
        for evidence in self._all:
            evidence.heard(text)

    def spoke(self, text: str) -> None:
        """Note the model's own words: they may quote a response, and later edits do not quote them."""
        for evidence in self._all:
            evidence.spoke(text)

    def opened(self, cursor: int, tool: str, text: str, arguments: Any = None, call_text: str = "") -> None:
        """Note a successful response, which is new in the context, and the call that it answers."""
        for evidence in self._all:
            evidence.opened(cursor, Asked(tool, call_text, arguments), text)

    def used(self, calls: Iterable[tuple[str, str, Any]], text: str) -> list[int]:
        """Find the cursors that a step refers to; a call is its tool, its text and its arguments."""
        asked = [Asked(*call) for call in calls]
        asking: list[Evidence] = [self._pages] if self.recorded else self._derived
        named = {evidence.kind: evidence.used(asked, text) for evidence in asking}
        self.found.append(named)
        self.by_kind.update({kind: len(cursors) for kind, cursors in named.items() if cursors})
        self.spoke(" ".join([text, *(call.text for call in asked)]))
        for call in asked:
            for evidence in self._all:
                evidence.wrote(call.arguments)
        return sorted(set().union(*named.values()))

    def closed(self) -> None:
        """Note a compaction: nothing read before it can be referred to."""
        for evidence in self._all:
            evidence.closed()

    @property
    def _all(self) -> list[Evidence]:
        return [self._pages, *self._derived]
