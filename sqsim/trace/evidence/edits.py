# SPDX-License-Identifier: Apache-2.0
"""Evidence by edit: a call quotes the text of a file as a response showed it.

Tools that change a file by text are told the old text (`old_string`, `old_str`, a patch's context lines). A text that
stands in several places was read from the newest of them; text that the model or a user wrote since belongs to no response.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.evidence.base import Asked, Evidence

_OLD = {
    "old_string",
    "old_str",
    "old_text",
    "oldstring",
    "oldtext",
    "search",
    "search_text",
    "find",
    "original",
}
_PATCHES = {"patch", "diff", "input"}
_EDITS = re.compile(r"edit|replace|patch", re.IGNORECASE)
_NUMBERED = re.compile(r"^[ \t]*\d+(?:\t|→|: |\| ?|:)", re.MULTILINE)
"""A line's number, as `cat -n`, Read and grep -n print it."""
_LEAST = 6
"""Characters, without blanks, of the shortest text that identifies a quote."""


def quoted(tool: str, arguments: Any) -> list[str]:
    """List the texts that a call quotes from a file; none for a tool that does not edit."""
    return [text for text in _old_texts(arguments, edits=bool(_EDITS.search(tool))) if _tellable(text)]


def _old_texts(value: Any, *, edits: bool) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _old_texts(item, edits=edits)
    elif isinstance(value, dict):
        for key, part in value.items():
            name = str(key).lower()
            if isinstance(part, str) and name in _OLD and (edits or name.startswith("old")):
                yield part
            elif isinstance(part, str) and name in _PATCHES and ("@@" in part or "*** " in part):
                yield from _patched(part)
            elif isinstance(part, dict | list):
                yield from _old_texts(part, edits=edits)


def _patched(patch: str) -> Iterator[str]:
    """List the runs of lines that a patch expects in the file: kept and removed ones."""
    run: list[str] = []
    for line in [*patch.split("\n"), "@@"]:
        if line[:1] in {" ", "-"} and not line.startswith("---"):
            run.append(line[1:])
        elif line[:1] != "+" and run:
            yield "\n".join(run)
            run = []


def _tellable(text: str) -> bool:
    return len(re.sub(r"\s", "", text)) >= _LEAST


def _normal(text: str) -> str:
    """Normalise a text for comparison: no line numbers, each run of blanks as one."""
    return " ".join(_NUMBERED.sub("", text).split())


class Edits(Evidence):
    """Names the newest response that shows what an edit quotes; text that the model or a user wrote since is nobody's."""

    kind = "edit"

    def __init__(self) -> None:
        self._texts: list[tuple[str, int | None]] = []
        self._raw: list[tuple[str, int | None]] = []  # not yet normal: most are never asked for

    def heard(self, text: str) -> None:
        self._stands(text, None)

    def opened(self, cursor: int, asked: Asked, text: str) -> None:  # noqa: ARG002 - the contract's signature
        self._stands(text, cursor)

    def wrote(self, arguments: Any) -> None:
        """Note the new text in a call's arguments: the model wrote it, and later edits may quote it."""
        for text in _new_texts(arguments):
            self._stands(text, None)

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:  # noqa: ARG002 - the contract's signature
        quotes = [quote for call in calls for quote in quoted(call.tool, call.arguments)]
        return {cursor for quote in quotes if (cursor := self._newest(_normal(quote))) is not None}

    def closed(self) -> None:
        self._texts.clear()
        self._raw.clear()

    def _stands(self, text: str, cursor: int | None) -> None:
        if text:
            self._raw.append((text, cursor))

    def _newest(self, text: str) -> int | None:
        self._texts += [(_normal(raw), cursor) for raw, cursor in self._raw]
        self._raw.clear()
        return next((cursor for known, cursor in reversed(self._texts) if text in known), None)


def _new_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _new_texts(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if str(key).lower() not in _OLD:
                yield from _new_texts(part)
