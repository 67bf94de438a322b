# SPDX-License-Identifier: Apache-2.0
"""Which logged call goes on from which: a prompt that begins with another call's prompt and its response."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, print_of


@dataclass
class Thread:
    """Calls of one conversation, each with the prompt and the response of the one before it."""

    calls: list[Exchange] = field(default_factory=list)

    def takes(self, call: Exchange) -> bool:
        """Whether a call goes on from the last one: behind the same messages stands an answer, the logged one if any was."""
        last = self.calls[-1]
        sent = len(last.prints)
        if len(call.prints) <= sent or call.prints[:sent] != last.prints:
            return False
        return bool(call.messages[sent].get("role") == "assistant")

    def fits(self, call: Exchange) -> int:
        """How well a call that goes on does so: longer is better, and the logged response best."""
        last = self.calls[-1]
        same = last.response is not None and call.prints[len(last.prints)] == print_of(last.response.value)
        return 2 * len(last.prints) + same


def threads(calls: Iterable[Exchange], notes: Notes) -> list[Thread]:
    """The conversations of calls that are in the order of time; a call that was logged before is left out."""
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
