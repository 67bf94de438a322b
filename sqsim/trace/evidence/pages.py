# SPDX-License-Identifier: Apache-2.0
"""Recorded references: gpt-oss's browser numbers its pages, calls name them (`"cursor": 3`), answers cite them (`【3†L9-L11】`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqsim.trace.evidence.base import Asked, Evidence

_LABEL = re.compile(r"\s*\[(\d+)\]")
_CITATION = re.compile(r"【(\d+)†")
_LATEST = -1


class Pages(Evidence):
    """Names the pages that calls and citations number."""

    kind = "page"

    def __init__(self) -> None:
        self._cursors: dict[int, int] = {}  # a page's number -> its cursor
        self._latest: int | None = None

    @property
    def numbered(self) -> bool:
        """Whether the responses number themselves, so that references are explicit."""
        return bool(self._cursors)

    def opened(self, cursor: int, asked: Asked, text: str) -> None:
        label = _LABEL.match(text) if _browses(asked.tool) else None
        if label is not None:
            self._latest = int(label.group(1))
            self._cursors[self._latest] = cursor

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:
        spoken = " ".join([text, *(call.text for call in calls)])
        pages = [int(number) for number in _CITATION.findall(spoken)]
        pages += [page for call in calls if (page := self._named(call)) is not None]
        return {self._cursors[page] for page in pages if page in self._cursors}

    def closed(self) -> None:
        self._cursors.clear()

    def _named(self, call: Asked) -> int | None:
        """Find the page that `open` and `find` work on: the latest one unless they name another."""
        if not _browses(call.tool) or call.tool.endswith("search") or not isinstance(call.arguments, dict):
            return None
        page = call.arguments.get("cursor", _LATEST)
        if isinstance(page, int) and page != _LATEST:
            return page
        opens_url = isinstance(call.arguments.get("id"), str)
        return None if opens_url else self._latest


def _browses(tool: str) -> bool:
    return tool.removeprefix("browser.") in {"search", "open", "find"}
