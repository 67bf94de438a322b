# SPDX-License-Identifier: Apache-2.0
"""Group files that belong together: a session's log, its sub-agents' files, and logs of resumed sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqsim.trace.formats.base import SourceFile
from sqsim.trace.formats.claude_code.lines import EVENTS, call_key, events, is_call, time_s
from sqsim.trace.formats.notes import Notes


@dataclass
class Surveyed:
    """Survey of a file: its sessions, its calls, its beginning, and whether it is a sub-agent's."""

    file: SourceFile
    sessions: list[str] = field(default_factory=list)
    calls: set[tuple[str, str]] = field(default_factory=set)
    begins_s: float | None = None
    sides_only: bool = True

    @property
    def session(self) -> str:
        """Session of the file: the one that names the file, else the first in it."""
        stem = self.file.stem
        return stem if stem in self.sessions or not self.sessions else self.sessions[0]


def survey(file: SourceFile) -> Surveyed:
    """Read the keys that tie a file to others. Raises `TraceError`."""
    found = Surveyed(file)
    begun: dict[tuple[str, str], tuple[str, str]] = {}
    some = False
    for event in events(file, Notes()):
        if event.optional_text("type") not in EVENTS:
            continue
        some = True
        found.sides_only &= event.get("isSidechain") is True
        session = event.optional_text("sessionId")
        if session and session not in found.sessions:
            found.sessions.append(session)
        now_s = time_s(event)
        found.begins_s = now_s if found.begins_s is None else min(found.begins_s, now_s)
        if is_call(event):
            key = call_key(event)
            found.calls.add(begun.setdefault(key, copy_key(key, now_s)))
    found.sides_only &= some
    return found


def copy_key(key: tuple[str, str], begun_s: float) -> tuple[str, str]:
    """Key that a copied call keeps: the ids of message and request; without the latter, the time it began."""
    return (key[0], key[1] or f"{begun_s:.3f}")


def families(files: Sequence[Surveyed]) -> list[list[Surveyed]]:
    """Group files that share a session or a call, by their first files; a family's longest log comes first."""
    parent = list(range(len(files)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[object, int] = {}
    for index, each in enumerate(files):
        for tie in [
            *(("session", name) for name in each.sessions),
            *(("call", key) for key in sorted(each.calls)),
        ]:
            one, other = root(first.setdefault(tie, index)), root(index)
            parent[max(one, other)] = min(one, other)
    groups: dict[int, list[Surveyed]] = {}
    for index, each in enumerate(files):
        groups.setdefault(root(index), []).append(each)
    return [
        sorted(group, key=lambda each: (each.sides_only, -len(each.calls), each.begins_s or 0.0))
        for group in groups.values()
    ]
