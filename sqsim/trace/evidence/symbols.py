# SPDX-License-Identifier: Apache-2.0
"""Evidence by symbol: a function, class or variable that a response defines is named by a later call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqsim.trace.evidence.base import Asked, Evidence, strings

_DEFINED = re.compile(
    r"\b(?:def|class|func|function|fn|struct|enum|interface|trait|const|static|let|var|type|module)\s+"
    r"(?:\([^)\n]{0,60}\)\s*)?([A-Za-z_]\w{4,})"
    r"|^[ \t]*(?:\d+[\t→:| ]+)?([A-Za-z_]\w{4,})\s*(?::[^=\n]{1,40})?=(?!=)",
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Za-z_]\w{4,}")


def defined(text: str) -> set[str]:
    """Find the names that a text defines, if they are no plain words: they have a capital inside, `_` or a digit."""
    found = (match.group(1) or match.group(2) for match in _DEFINED.finditer(text))
    return {name for name in found if not (name.islower() or name.isupper() or name.istitle()) or "_" in name}


class Symbols(Evidence):
    """Names the newest response that defines a symbol which a call's arguments hold."""

    kind = "symbol"

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._owner: dict[str, int] = {}

    def heard(self, text: str) -> None:
        self._seen |= defined(text)

    def wrote(self, arguments: object) -> None:
        """Note the symbols that the model defines itself: they are no response's."""
        for text in strings(arguments):
            self._seen |= defined(text) - self._owner.keys()

    def opened(self, cursor: int, asked: Asked, text: str) -> None:  # noqa: ARG002 - the contract's signature
        self._owner.update(dict.fromkeys(defined(text) - self._seen, cursor))

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:  # noqa: ARG002 - the contract's signature
        if not self._owner:
            return set()
        words = {word for call in calls for part in strings(call.arguments) for word in _WORD.findall(part)}
        return {self._owner[word] for word in words & self._owner.keys()}

    def closed(self) -> None:
        self._owner.clear()
