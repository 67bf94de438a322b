# SPDX-License-Identifier: Apache-2.0
"""The commands that docs/real-server.md gives, as blocks of text."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/real-server.md"


def blocks(heading: str, language: str = "") -> list[str]:
    """The fenced blocks in a language below a heading."""
    [section] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", _outside(), re.DOTALL | re.MULTILINE)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section.replace("\0", "#"), re.DOTALL | re.MULTILINE)
    return [text for word, text in found if word == language]


def _outside() -> str:
    """The page with the number signs that begin a line inside a block made something else: they are no headings."""
    parts = PAGE.read_text(encoding="utf-8").split("```")
    return "```".join(part.replace("\n#", "\n\0") if place % 2 else part for place, part in enumerate(parts))
