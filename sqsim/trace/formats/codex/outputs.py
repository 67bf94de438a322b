# SPDX-License-Identifier: Apache-2.0
"""Read a tool's output: its text, its failure, and its reported duration."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.notes import Notes

_HEADER_LINES = 8
_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,9})\s*$", re.MULTILINE)
_WALL = re.compile(r"^Wall time: (\d{1,9}(?:\.\d{1,9})?) seconds\s*$", re.MULTILINE)
_FAILED = re.compile(
    r"(?:[\w.:/-]+ )?(?:[\w-]+ )?failed(?: for `|:| to )|failed to |execution error\b|aborted by user\b|unsupported call\b"
    r"|(?:tool call )?error:|err: ",
    re.IGNORECASE,
)
"""Text that Codex writes in place of an output when a call could not be run (`write_stdin failed: ...`)."""


class Output(NamedTuple):
    """Response with its error text and its reported duration (0 where it reports none)."""

    told: Said
    error: str | None
    wall_s: float


def output(item: Node, notes: Notes) -> Output:
    """Read an item's response: a text, content parts, an object with `content`, or JSON with `metadata`."""
    value = item.get("output")
    refused = False
    if isinstance(value, dict):
        inner = item.node("output")
        refused = inner.get("success") is False
        told = said(inner, notes)
    elif value is None and item.get("tools") is not None:  # a search for tools gives their definitions
        told = Said(json.dumps(item.get("tools"), ensure_ascii=False))
    else:
        told = said(item, notes, "output")
    code, wall_s = _metadata(told.text)
    head = "\n".join(told.text.split("\n", _HEADER_LINES)[:_HEADER_LINES]).split("\nOutput:", 1)[0]
    if found := _CODE.search(head):
        code = int(found.group(1))
    if wall := _WALL.search(head):
        wall_s = float(wall.group(1))
    error = f"exit code {code}" if code else None
    if refused or _FAILED.match(told.text):
        error = told.text.strip().split("\n", 1)[0][:200] or "error"
    return Output(told, error, min(wall_s, 1e6))


def _metadata(text: str) -> tuple[int, float]:
    """Read exit code and duration of an older output, JSON text: `{"output": ..., "metadata": {...}}`."""
    if not text.startswith("{") or '"metadata"' not in text:
        return 0, 0.0
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return 0, 0.0
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return 0, 0.0
    code, seconds = metadata.get("exit_code"), metadata.get("duration_seconds")
    wall_s = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds <= 1e6 else 0.0
    return code if isinstance(code, int) else 0, wall_s
