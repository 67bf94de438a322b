# SPDX-License-Identifier: Apache-2.0
"""Read a message's content, a string or a list of content parts: its text, and the tokens of other parts.

Nothing that enters a prompt is dropped without a count: a picture or a document costs `PICTURE_TOKENS`, a part of an
unknown type the tokens of its JSON text.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.notes import Notes

PICTURE_TOKENS = 1_500
"""Tokens of a picture or document (assumed): Anthropic's vision guide gives width x height / 750, at most about 1,600."""

_TEXTS = {"text", "input_text", "output_text", "refusal"}
_PICTURES = {"image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "video"}


class Said(NamedTuple):
    """Text, and the tokens of the parts that are not text."""

    text: str = ""
    other_tokens: int = 0


def said(message: Node, notes: Notes, key: str = "content") -> Said:
    """Read the content of a message or a tool result."""
    content = message.get(key)
    if content is None:
        return Said()
    if isinstance(content, str):
        return Said(content)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise message.wrong(f"{type(content).__name__} is neither text nor a list of parts", key)
    parts = [part(each, notes) for each in content]
    return Said("".join(each.text for each in parts), sum(each.other_tokens for each in parts))


def part(value: Any, notes: Notes) -> Said:
    """Read one content part."""
    if isinstance(value, str):
        return Said(value)
    kind = value.get("type") if isinstance(value, dict) else None
    kind = kind if kind is None or isinstance(kind, str) else repr(kind)
    if isinstance(value, dict) and isinstance(value.get("text"), str) and (kind is None or kind in _TEXTS):
        return Said(value["text"])
    if kind in _PICTURES:
        notes[f"a content part of type {kind} counts as {PICTURE_TOKENS} tokens (assumed)"] += 1
        return Said("", PICTURE_TOKENS)
    notes[f"a content part of unknown type {str(kind)[:40]} counts as its JSON text"] += 1
    return Said(json.dumps(value, ensure_ascii=False))
