# SPDX-License-Identifier: Apache-2.0
"""Digest of installed code: two installations with one digest run the same code, be they checkouts or wheels.

A version number names a release; between releases only the digest tells two states of the code apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

SHIPPED = frozenset({".py", ".typed", ".yaml", ".jsonl", ".css", ".js", ".html", ".txt"})
"""Suffixes of the files that a wheel ships; `package-data` of pyproject.toml lists the same."""

_DIGITS = 12


@cache
def code_digest(*packages: str, without: tuple[str, ...] = ()) -> str:
    """Hash the shipped files of top-level packages, by name and content: 12 hex digits of a sha256.

    `without`: leave out entries at the top of a package whose names begin so (`report`: report/ and reports.py).
    The files are read once a process, so later changes have no effect. ModuleNotFoundError: a package is not installed.
    """
    total = hashlib.sha256()
    for package in packages:
        root = _root(package)
        for place in sorted(_shipped(root, without)):
            total.update(f"{package}/{place}\0".encode() + hashlib.sha256((root / place).read_bytes()).digest())
    return total.hexdigest()[:_DIGITS]


def _root(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r} is installed", name=package)
    return Path(found.submodule_search_locations[0])


def _shipped(root: Path, without: Sequence[str]) -> list[str]:
    """List the shipped files below `root` as POSIX paths, which sort alike on every file system."""
    return [
        place.as_posix()
        for file in root.rglob("*")
        if file.suffix in SHIPPED and not (place := file.relative_to(root)).parts[0].startswith(tuple(without))
    ]
