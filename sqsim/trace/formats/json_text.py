# SPDX-License-Identifier: Apache-2.0
"""Parse one JSON text of a recording: without NaN and Infinity, with U+FFFD for halves of characters."""

from __future__ import annotations

import json
from typing import Any

import orjson

from sqsim.base.strict_json import no_constant

_AS_NINES = bytes.maketrans(b"0123456789", b"9999999999")
_LONG_NUMBER = b"9" * 19
_DEEP = 500
"""Opening brackets from which a line may be nested so deeply that the two parsers differ."""


def parsed(text: str) -> Any:
    """Parse JSON without NaN and Infinity; every failure is a ValueError.

    orjson reads most lines; `json`, which is slower, reads those on which they differ (integers beyond 64 bits, deep
    nesting), and those that orjson refuses: it says where the fault is, and reads a lone surrogate, which is mended.
    """
    raw = text.encode()
    if raw.count(b"[") + raw.count(b"{") < _DEEP and _LONG_NUMBER not in raw.translate(_AS_NINES):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # json names the fault
    try:
        value = json.loads(text, parse_constant=no_constant)
        return _mended(value) if "\\ud" in text.lower() else value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mended(value: Any) -> Any:
    """The value with U+FFFD for halves of characters (a lone `ud83d` escape), which recorders leave where they cut a text."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value
