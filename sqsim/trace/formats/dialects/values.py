# SPDX-License-Identifier: Apache-2.0
"""Look into JSON values that may lack what is looked for."""

from __future__ import annotations

import json
from typing import Any


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """Return an object, or the first of its parts under `keys` that is one; empty if there is none."""
    if not keys:
        return value if isinstance(value, dict) else {}
    parts = (mapping(value).get(key) for key in keys)
    return next((part for part in parts if isinstance(part, dict)), {})


def listing(value: Any, *keys: str) -> list[Any]:
    """Return a list, or the first part under `keys` that is one; empty if there is none."""
    if not keys:
        return value if isinstance(value, list) else []
    parts = (mapping(value).get(key) for key in keys)
    return next((part for part in parts if isinstance(part, list)), [])


def first_text(value: Any, *keys: str) -> str:
    """Return the first part under `keys` that is a text and not empty; the empty text if there is none."""
    parts = (mapping(value).get(key) for key in keys)
    return next((part for part in parts if isinstance(part, str) and part), "")


def first_name(value: Any, *keys: str) -> str:
    """Return the first part under `keys` that is a text or a whole number, as a text; empty if there is none."""
    parts = (mapping(value).get(key) for key in keys)
    named = (
        part for part in parts if isinstance(part, str | int) and not isinstance(part, bool) and part != ""
    )
    return next((str(part) for part in named), "")


def as_text(value: Any) -> str:
    """Return a value as text: itself, or its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def all_texts(parts: list[Any]) -> list[str] | None:
    """Return the texts of content parts; None if one of them is no text."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    return found if len(found) == len(texts) else None
