# SPDX-License-Identifier: Apache-2.0
"""Write the committed pages again, or, with `--check`, compare them with the committed text."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Write and print a page; with `--check` on the command line only return exit code 1 if it differs."""
    if "--check" in sys.argv:
        return int(path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")
    print(text)
    return 0
