# SPDX-License-Identifier: Apache-2.0
"""Evidence by identifier: a URL, path, id or long number that a response showed comes back later.

An identifier that stood in the context before any response showed it belongs to none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqsim.trace.evidence.base import Asked, Evidence

_IDENTIFIER = re.compile(
    r"https?://[^\s<>\"'\])}|]+"  # URL
    r"|[\w.+-]+@[\w-]+\.[\w.]+"  # address
    r"|[\w.~-]*(?:/[\w.~-]+){2,}"  # path
    r"|(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[\w-]{4,}"  # a word with letters and digits
    r"|(?<![\w.])\d{5,}(?!\w|\.\d)"  # a long number
    r"|\b[A-Z]{5,}\b"  # a booking code
)


def identifiers(text: str) -> set[str]:
    """Find the identifiers in a text, without the punctuation that ends a sentence."""
    return {match.group().rstrip(".,;:!?") for match in _IDENTIFIER.finditer(text)}


class Identifiers(Evidence):
    """Names the newest response that shows an identifier; what the model repeats stays the response's."""

    kind = "identifier"

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._owner: dict[str, int] = {}

    def heard(self, text: str) -> None:
        self._seen |= identifiers(text) - self._owner.keys()

    spoke = heard

    def opened(self, cursor: int, asked: Asked, text: str) -> None:  # noqa: ARG002 - the contract's signature
        self._owner.update(dict.fromkeys(identifiers(text) - self._seen, cursor))

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:
        spoken = " ".join([text, *(call.text for call in calls)])
        return {self._owner[name] for name in identifiers(spoken) if name in self._owner}

    def closed(self) -> None:
        self._owner.clear()
