# SPDX-License-Identifier: Apache-2.0
"""Evidence by output: what the model says to a user, or thinks to quote, repeats a piece of a response.

Pieces are code spans, fenced lines and quotations; a number with the word after it (`14 passed`) counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqsim.trace.evidence.base import Asked, Evidence

_SPAN = re.compile(r"`([^`\n]{6,200})`|\"([^\"\n]{12,200})\"")
_FENCED = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_COUNT = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:%| %|\s+[a-z]{4,})")
_LEAST_LINE = 12
_MOST_PIECES = 200


def pieces(text: str) -> list[str]:
    """List the pieces of a text that may be quotations, each with single blanks."""
    found = [a or b for a, b in _SPAN.findall(text)]
    found += [line for block in _FENCED.findall(text) for line in block.split("\n") if len(line) >= _LEAST_LINE]
    found += _COUNT.findall(text)
    return list(dict.fromkeys(" ".join(piece.split()) for piece in found))[:_MOST_PIECES]


class Outputs(Evidence):
    """Names the newest response that holds a piece of what is said; what a user or the system said first is nobody's."""

    kind = "output"

    def __init__(self) -> None:
        self._texts: list[tuple[int | None, str]] = []

    def heard(self, text: str) -> None:
        self._stands(None, text)

    def opened(self, cursor: int, asked: Asked, text: str) -> None:  # noqa: ARG002 - the contract's signature
        self._stands(cursor, text)

    def used(self, calls: Sequence[Asked], text: str) -> set[int]:  # noqa: ARG002 - the contract's signature
        found = set()
        for piece in pieces(text):
            owners = [cursor for cursor, known in self._texts if piece in known]
            if owners and None not in owners:
                found.add(owners[-1])
        return {cursor for cursor in found if cursor is not None}

    def closed(self) -> None:
        self._texts.clear()

    def _stands(self, cursor: int | None, text: str) -> None:
        if text:
            self._texts.append((cursor, " ".join(text.split())))
