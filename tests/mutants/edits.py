# SPDX-License-Identifier: Apache-2.0
"""Edits of the source that the tests must notice, read from `edits.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("edits.toml")


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit: `old`, which occurs once in `file`, becomes `new`. `tests` are run first.

    `survives`: why no test can fail, for an edit that changes nothing a user could see; None: it has to fail one.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str | None = None

    def applied(self, source: str) -> str:
        """Return the source with this edit. ValueError: `old` does not occur exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {source.count(self.old)} times in {self.file}")
        return source.replace(self.old, self.new)


def edits() -> list[Edit]:
    """Read the list, in its order."""
    found = tomllib.loads(LIST.read_text(encoding="utf-8"))["edits"]
    return [Edit(**{**each, "tests": tuple(each["tests"])}) for each in found]
