# SPDX-License-Identifier: Apache-2.0
"""Find the logged call that each call continues: its prompt begins with that call's prompt and response, or names it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, print_of


@dataclass
class Thread:
    """Calls of one conversation; each prompt begins with the previous call's prompt and response.

    Calls of which only the counts were recorded have no place in the text; they follow their agent's last call.
    """

    calls: list[Exchange] = field(default_factory=list)

    @property
    def told(self) -> Exchange | None:
        """Return the last call with a recorded prompt."""
        return next((call for call in reversed(self.calls) if call.messages), None)

    def takes(self, call: Exchange) -> bool:
        """Whether a call continues the last one: after the same messages comes an answer."""
        last = self.told
        if last is None:
            return False
        sent = len(last.prints)
        if len(call.prints) <= sent or call.prints[:sent] != last.prints:
            return False
        return bool(call.messages[sent].get("role") == "assistant")

    def fits(self, call: Exchange) -> int:
        """Rate how well a call continues the last one: longer is better, and the logged response best."""
        last = self.told
        if last is None:
            return 0
        same = last.response is not None and call.prints[len(last.prints)] == print_of(last.response.value)
        return 2 * len(last.prints) + same


def threads(calls: Iterable[Exchange], notes: Notes) -> list[Thread]:
    """Group calls, which are in order of time, by conversation; a call that was logged before is left out."""
    found: list[Thread] = []
    seen: set[tuple[object, ...]] = set()
    answered: dict[str, Exchange] = {}
    for call in calls:
        keys: set[tuple[object, ...]] = {(call.name, call.begins_s)}
        if call.answer_id:
            keys.add(("answer", call.answer_id, call.prints, None if call.prints else call.usage))
        if keys & seen:
            notes["a request that was logged before (same id) was left out"] += 1
            continue
        seen |= keys
        if call.continues:
            _written_out(call, answered, notes)
        answered[call.answer_id or call.name] = answered[f"conversation:{call.session}"] = call
        thread = _home(call, found)
        if thread is None and call.messages:
            again = next((each for each in found if _unanswered(each, call)), None)
            if again is not None:
                notes["a request without a response that was sent again was left out"] += 1
                again.calls[:] = [call]
                continue
        if thread is None:
            found.append(Thread([call]))
        else:
            thread.calls.append(call)
    return found


def _home(call: Exchange, found: list[Thread]) -> Thread | None:
    """Find the thread that a call continues."""
    if call.continues and not call.messages:
        return next((each for each in found if each.calls[-1].answer_id == call.continues), None)
    if not call.messages:
        own = [thread for thread in found if thread.calls[-1].scope == call.scope]
        return max(own, key=lambda thread: thread.calls[-1].begins_s or 0.0, default=None)
    fitting = [thread for thread in found if thread.takes(call)]
    if fitting:
        return max(fitting, key=lambda thread: thread.fits(call))
    replaced = next((thread for thread in reversed(found) if call.alone and _replaces(call, thread)), None)
    call.restarts = replaced is not None
    return replaced


def _replaces(call: Exchange, thread: Thread) -> bool:
    """Whether an agent's call, after its last one had ended, has the same instructions and another text."""
    last = thread.told
    if last is None or last.scope != call.scope or call.messages[0].get("role") not in {"system", "developer"}:
        return False
    if last.prints[0] != call.prints[0] or last.prints == call.prints:
        return False
    ended_s = thread.calls[-1].ends_s
    return ended_s is not None and call.begins_s is not None and ended_s <= call.begins_s


def _written_out(call: Exchange, answered: dict[str, Exchange], notes: Notes) -> None:
    """Put the whole prompt in place of one that names the response it goes on from."""
    before = answered.get(call.continues)
    if before is None and call.continues.startswith("conversation:"):
        return  # its first request
    if before is None:
        notes["a request goes on from a response that is not in the log: its beginning is unknown"] += 1
        return
    if not before.messages or not call.messages or before.response is None:
        return
    own = [node for node in call.messages if node.get("role") not in {"system", "developer"}]
    call.messages = [*before.messages, before.response, *own]
    call.prints = tuple(print_of(node.value) for node in call.messages)


def _unanswered(thread: Thread, call: Exchange) -> bool:
    (first, *rest) = thread.calls
    return not rest and first.response is None and bool(first.messages) and first.prints == call.prints
