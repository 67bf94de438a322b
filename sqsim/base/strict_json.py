"""JSON without NaN or Infinity, in one form, and the sum of what it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

SEAL = "sha256"
"""The name that a content's sum has in it."""


def no_constant(name: str) -> NoReturn:
    """For `json.loads(..., parse_constant=no_constant)`: NaN and Infinity are a ValueError."""
    raise ValueError(f"{name} is not a number")


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """One content, one text: keys sorted, two blanks a level, UTF-8. ValueError: it holds NaN or Infinity."""
    return (json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the sha256 of all of it in it: whatever is changed, moved or lost of it later, `is_whole` tells."""
    unsealed = {name: value for name, value in content.items() if name != SEAL}
    return {**unsealed, SEAL: hashlib.sha256(json_bytes(unsealed)).hexdigest()}


def is_whole(content: Mapping[str, Any]) -> bool:
    """Whether this is what `sealed` gave."""
    return SEAL in content and sealed(content)[SEAL] == content[SEAL]
