# SPDX-License-Identifier: Apache-2.0
"""Find in a text the earlier tool responses that it refers to (METHOD.md, "last use").

Three ways. *Recorded*: gpt-oss's browser numbers its pages, calls name them (`"cursor": 3`), answers cite them
(`【3†L9-L11】`). *Derived*: an identifier (URL, path, id, long number) that first appeared in a response comes
back in a later call or answer; one that stood in the context before belongs to none. *Quoted*, derived too: an
edit repeats text of a file as a response showed it; the newest place that holds the text counts (quotes.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sqsim.trace.quotes import Quotes, quoted

_IDENTIFIER = re.compile(
    r"https?://[^\s<>\"'\])}|]+"  # URL
    r"|[\w.+-]+@[\w-]+\.[\w.]+"  # address
    r"|[\w.~-]*(?:/[\w.~-]+){2,}"  # path
    r"|(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[\w-]{4,}"  # a word with letters and digits
    r"|(?<![\w.])\d{5,}(?!\w|\.\d)"  # a long number
    r"|\b[A-Z]{5,}\b"  # a booking code
)
_LABEL = re.compile(r"\s*\[(\d+)\]")
_CITATION = re.compile(r"【(\d+)†")
_LATEST = -1


def identifiers(text: str) -> set[str]:
    """Find the identifiers in a text, without the punctuation that ends a sentence."""
    return {match.group().rstrip(".,;:!?") for match in _IDENTIFIER.finditer(text)}


class Mentions:
    """Tracker of one context that finds, for every step, the cursors that its calls and its text refer to.

    Feed it in the order of the context: `heard` text that is no response, `opened` each successful response,
    `used` the calls and the answer of each step (before the responses to it).
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._owner: dict[str, int] = {}
        self._page: dict[int, int] = {}  # a page's number -> its cursor
        self._latest: int | None = None
        self._quotes = Quotes()

    @property
    def recorded(self) -> bool:
        """Whether the responses number themselves, so that references are explicit."""
        return bool(self._page)

    def heard(self, text: str) -> None:
        """Note a text of the system, the user or a failed call: names that appear first here belong to no response."""
        self._seen |= identifiers(text)
        self._quotes.stands(text)

    def spoke(self, text: str) -> None:
        """Note the model's own words: they may quote a response, and later edits do not quote them."""
        self._seen |= identifiers(text)

    def opened(self, cursor: int, tool: str, text: str) -> None:
        """Note a successful response, which is new in the context."""
        label = _LABEL.match(text) if _browses(tool) else None
        if label is not None:
            self._latest = int(label.group(1))
            self._page[self._latest] = cursor
        found = identifiers(text)
        self._owner.update(dict.fromkeys(found - self._seen, cursor))
        self._seen |= found
        self._quotes.stands(text, cursor)

    def used(self, calls: Iterable[tuple[str, str, Any]], text: str) -> list[int]:
        """Find the cursors that a step refers to; a call is its tool, its text and its arguments."""
        calls = list(calls)
        spoken = " ".join([text, *(call_text for _, call_text, _ in calls)])
        if self.recorded:
            pages = [int(number) for number in _CITATION.findall(spoken)]
            pages += [
                page for tool, _, arguments in calls if (page := self._named(tool, arguments)) is not None
            ]
            found = {self._page[page] for page in pages if page in self._page}
        else:
            found = {self._owner[name] for name in identifiers(spoken) if name in self._owner}
            found |= self._quotes.sources([text for tool, _, given in calls for text in quoted(tool, given)])
        self.spoke(spoken)
        for _, _, given in calls:
            self._quotes.wrote(given)
        return sorted(found)

    def closed(self) -> None:
        """Note a compaction: nothing read before it can be referred to."""
        self._owner.clear()
        self._page.clear()
        self._quotes.closed()

    def _named(self, tool: str, arguments: Any) -> int | None:
        """Find the page that `open` and `find` work on: the latest one unless they name another."""
        if not _browses(tool) or tool.endswith("search") or not isinstance(arguments, dict):
            return None
        page = arguments.get("cursor", _LATEST)
        if isinstance(page, int) and page != _LATEST:
            return page
        opens_url = isinstance(arguments.get("id"), str)
        return None if opens_url else self._latest


def _browses(tool: str) -> bool:
    return tool.removeprefix("browser.") in {"search", "open", "find"}
