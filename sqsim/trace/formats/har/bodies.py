# SPDX-License-Identifier: Apache-2.0
"""Read the bodies of HAR entries: JSON or an event stream, plain, in base64, or in base64 and compressed.

Source: HAR 1.2 (`postData.text`, `content.text`, `content.encoding`). Polly.js writes a compressed body as a JSON list of the
base64 texts of its chunks.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

from sqsim.trace.formats.har.streams import answer_of_stream, is_stream

_MOST_BYTES = 1 << 28
"""Bytes of an unpacked body: no model's answer is so long, and a compressed one must not fill the memory."""


def body_of(part: Any) -> Any:
    """Return the JSON value of a body, the answer of a stream, or None if it is neither."""
    text = _text(part)
    if text is None:
        return None
    if is_stream(text):
        return answer_of_stream(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(part: Any) -> str | None:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return None
    text: str = part["text"]
    if part.get("encoding") != "base64":
        return text
    try:
        chunks = json.loads(text) if text.startswith("[") else [text]
        raw = b"".join(base64.b64decode(chunk) for chunk in chunks if isinstance(chunk, str))
        if raw[:2] == b"\x1f\x8b":
            raw = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(raw, _MOST_BYTES)
        return raw.decode("utf-8")
    except (ValueError, TypeError, binascii.Error, zlib.error, RecursionError):
        return None
