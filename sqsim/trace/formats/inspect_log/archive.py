# SPDX-License-Identifier: Apache-2.0
"""Read Inspect's `.eval` files: a zip of JSON documents, `header.json` and one document a sample.

Own code rather than the inspect-ai library: the container is a plain zip, while the library brings some 60 packages.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Node, SourceFile

MOST_BYTES = 2**31
"""Largest document that is unpacked; a real sample has some MB."""

_HEADERS = ("header.json", "_journal/start.json")
"""A log that is still written, or was broken off, has its journal only."""


def is_archive(path: Path) -> bool:
    """Whether a file is a zip. A pipe is not opened: it would wait for a writer."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


class ArchiveFile(SourceFile):
    """Zip of JSON documents, as one Inspect log a sample."""

    def nodes(self) -> Iterator[Node]:
        """Yield each sample as a log of its own: the header, and this sample."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = archive.namelist()
                found = next((name for name in _HEADERS if name in names), None)
                if found is None:
                    raise TraceError(
                        "a zip without header.json, so no Inspect log",
                        file=self.path,
                        fix="unpack it, and import its files",
                    )
                header = self._json(archive, found)
                if not isinstance(header, dict):
                    raise TraceError(f"{found} is not an object", file=self.path, fix="write the log again")
                samples = sorted(
                    name for name in names if name.startswith("samples/") and name.endswith(".json")
                )
                if not samples:
                    yield Node({**header, "samples": []}, self.path)
                for name in samples:
                    yield Node({**header, "samples": [self._json(archive, name)]}, self.path)
        except (zipfile.BadZipFile, EOFError, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
            raise TraceError(
                f"the zip cannot be read: {error}",
                file=self.path,
                fix="copy it again, or convert it with `inspect log convert --to json`",
            ) from None

    def _json(self, archive: zipfile.ZipFile, name: str) -> Any:
        if archive.getinfo(name).file_size > MOST_BYTES:
            raise TraceError(
                f"{name} is larger than {MOST_BYTES} bytes", file=self.path, fix="leave the sample out"
            )
        # Inspect writes NaN for scores; no number of a score is read here.
        try:
            return json.loads(archive.read(name).decode("utf-8"), parse_constant=lambda _: None)
        except (ValueError, RecursionError) as error:
            raise TraceError(
                f"{name} is not JSON: {error}", file=self.path, fix="write the log again"
            ) from None
