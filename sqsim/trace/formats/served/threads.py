# SPDX-License-Identifier: Apache-2.0
"""Find the conversation of each served request: its session, else the longest prompt and output that it begins with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.request import Ids, Served, common

_BLOCK = 32
"""Tokens a block of the index of conversations by their beginnings."""
_TRIED = 64
"""Latest conversations with one beginning that are compared with a prompt."""


@dataclass(eq=False)
class Thread:
    """Requests of one conversation, in the order in which they were sent."""

    name: str
    calls: list[Served] = field(default_factory=list)


def threads(requests: Iterable[Served], notes: Notes) -> list[Thread]:
    """Group requests, which are in the order of their arrival, into conversations. Forks are conversations of their own."""
    found: list[Thread] = []
    sessions: dict[str, Thread] = {}
    open_ends = _Ends()
    for call in requests:
        if call.fork:
            notes["a fork (aux thread) of a session is a task of its own"] += 1
            found.append(Thread(call.rid, [call]))
            continue
        if call.session:
            thread = sessions.get(call.session)
            if thread is None:
                thread = sessions[call.session] = Thread(call.session)
                found.append(thread)
            thread.calls.append(call)
            continue
        prompt = call.prompt.ids()
        thread = open_ends.take(call, prompt)
        if thread is None:
            thread = Thread(call.rid)
            found.append(thread)
        thread.calls.append(call)
        open_ends.put(thread, prompt)
    return found


class _Ends:
    """Conversations by the prompt of their last request, in whole blocks."""

    def __init__(self) -> None:
        self._index: defaultdict[tuple[int, int], list[Thread]] = defaultdict(list)

    def put(self, thread: Thread, prompt: Ids[int]) -> None:
        blocks = len(prompt) // _BLOCK
        key = 0
        for block in range(blocks):
            key = hash((key, prompt[block * _BLOCK : (block + 1) * _BLOCK].tobytes()))
        self._index[blocks, key].append(thread)

    def take(self, call: Served, prompt: Ids[int]) -> Thread | None:
        """Find and take out the conversation that a request continues: the longest that had ended before it came."""
        keys = [(0, 0)]
        for block in range(len(prompt) // _BLOCK):
            part = prompt[block * _BLOCK : (block + 1) * _BLOCK].tobytes()
            keys.append((block + 1, hash((keys[-1][1], part))))
        best: tuple[int, Thread, tuple[int, int]] | None = None
        for key in reversed(keys):
            if best is not None and (key[0] + 1) * _BLOCK <= best[1].calls[-1].prompt.length:
                break  # only shorter prompts are left
            for thread in self._index.get(key, ())[-_TRIED:]:
                shared = _continues(thread.calls[-1], call, prompt)
                if shared is not None and (best is None or shared >= best[0]):
                    best = (shared, thread, key)
        if best is None:
            return None
        self._index[best[2]].remove(best[1])
        return best[1]


def _continues(last: Served, call: Served, prompt: Ids[int]) -> int | None:
    """Count the tokens that a request shares with the one it continues; None if it does not continue it.

    It begins with the whole earlier prompt, has more, and came after its end. An answer need not come back as it was
    generated: a chat template may leave reasoning out.
    """
    if prompt[: last.prompt.length] != last.prompt.ids() or len(prompt) <= last.prompt.length:
        return None
    if last.ends_s is not None and call.begins_s is not None and call.begins_s < last.ends_s:
        return None
    if not last.output or not last.prompt.length:
        return None
    return common(last.whole.ids(), prompt)
