# SPDX-License-Identifier: Apache-2.0
"""JSON without NaN or Infinity in one canonical form, and its checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

SEAL = "sha256"
"""The key under which a sealed content holds its own checksum."""


def no_constant(name: str) -> NoReturn:
    """Raise a ValueError for NaN and Infinity; for `json.loads(..., parse_constant=no_constant)`."""
    raise ValueError(f"{name} is not a number")


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Write a content as canonical JSON: sorted keys, two blanks a level, UTF-8. ValueError: it holds NaN or Infinity."""
    return (json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sha256 of the content to it, so that `is_whole` detects any later change or loss."""
    unsealed = {name: value for name, value in content.items() if name != SEAL}
    return {**unsealed, SEAL: hashlib.sha256(json_bytes(unsealed)).hexdigest()}


def is_whole(content: Mapping[str, Any]) -> bool:
    """Whether a content is unchanged since `sealed` made it."""
    return SEAL in content and sealed(content)[SEAL] == content[SEAL]
