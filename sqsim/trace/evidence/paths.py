# SPDX-License-Identifier: Apache-2.0
"""Evidence by path: a call works on a file that a response listed, or whose text a response showed.

Names of files without a folder count too (`main.py`), as listings and error reports have them. A call that reads the whole file
anew does not need its older text: it refers to the response that named the file, not to the one that showed it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqsim.trace.evidence.base import Asked, Evidence, strings

_PATH = re.compile(r"[\w.~-]*(?:/[\w.~@+-]+)+|\b[\w-]{2,}\.[A-Za-z][A-Za-z0-9]{0,5}\b")
_FILE_KEYS = {"file_path", "path", "notebook_path", "filename", "file", "filepath", "target_file"}
_PARTS = {"offset", "limit", "view_range", "start_line", "end_line", "pages"}
_READS = re.compile(r"read|view|open|cat", re.IGNORECASE)
_LEAST = 80
"""Characters of the shortest response that can show a file: less is a message of success."""


def names(text: str) -> set[str]:
    """Find the files that a text names: each by its last component, and with its folder where it has one."""
    found = set()
    for match in _PATH.finditer(text):
        parts = [part for part in match.group().rstrip(".,:;").split("/") if part not in {"", ".", "~"}]
        if parts and "." in parts[-1].strip("."):
            found.add("/".join(parts[-2:]))
    return found


class Paths(Evidence):
    """Names the newest response that listed a file or showed its text, for a call that works on it."""

    kind = "path"

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._listed: dict[str, int] = {}
        self._shown: dict[str, int] = {}

    def heard(self, text: str) -> None:
        self._seen |= names(text)

    def opened(self, cursor: int, asked: Asked, text: str) -> None:
        worked_on = _worked_on(asked)
        if len(text) >= _LEAST:
            self._shown.update(dict.fromkeys(worked_on, cursor))
        listed = names(text) - self._seen - worked_on
        self._listed.update(dict.fromkeys(listed, cursor))

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:  # noqa: ARG002 - the contract's signature
        found = set()
        for call in calls:
            for name in _worked_on(call):
                owner = self._listed.get(name)
                if not _reads_whole(call):
                    owner = self._shown.get(name, owner)
                if owner is not None:
                    found.add(owner)
        return found

    def closed(self) -> None:
        self._listed.clear()
        self._shown.clear()


def _worked_on(call: Asked) -> set[str]:
    """Find the files that a call works on: those of its path arguments, else those that its command names."""
    given = call.arguments
    if isinstance(given, dict):
        own = [value for key, value in given.items() if key in _FILE_KEYS and isinstance(value, str)]
        return names(" ".join(own)) if own else names(" ".join(_commands(given)))
    return names(" ".join(strings(given)))


def _commands(given: dict[str, Any]) -> list[str]:
    """List the texts of a call that may be a command: single lines, not the contents of files."""
    return [line for value in strings(given) for line in value.split("\n")[:3]]


def _reads_whole(call: Asked) -> bool:
    given = call.arguments if isinstance(call.arguments, dict) else {}
    return bool(_READS.search(call.tool)) and not any(given.get(key) for key in _PARTS)
