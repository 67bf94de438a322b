# SPDX-License-Identifier: Apache-2.0
"""Find the logged call that each call continues: its prompt begins with that call's prompt and response."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, print_of


@dataclass
class Thread:
    """Calls of one conversation; each prompt begins with the previous call's prompt and response."""

    calls: list[Exchange] = field(default_factory=list)

    def takes(self, call: Exchange) -> bool:
        """Whether a call continues the last one: after the same messages comes an answer."""
        last = self.calls[-1]
        sent = len(last.prints)
        if len(call.prints) <= sent or call.prints[:sent] != last.prints:
            return False
        return bool(call.messages[sent].get("role") == "assistant")

    def fits(self, call: Exchange) -> int:
        """Rate how well a call continues the last one: longer is better, and the logged response best."""
        last = self.calls[-1]
        same = last.response is not None and call.prints[len(last.prints)] == print_of(last.response.value)
        return 2 * len(last.prints) + same


def threads(calls: Iterable[Exchange], notes: Notes) -> list[Thread]:
    """Group calls, which are in order of time, by conversation; a call that was logged before is left out."""
    found: list[Thread] = []
    seen: set[tuple[str, float | None]] = set()
    for call in calls:
        key = (call.name, call.begins_s)
        if key in seen:
            notes["a request that was logged before (same id) was left out"] += 1
            continue
        seen.add(key)
        fitting = [thread for thread in found if thread.takes(call)]
        if fitting:
            max(fitting, key=lambda thread: thread.fits(call)).calls.append(call)
        else:
            found.append(Thread([call]))
    return found
