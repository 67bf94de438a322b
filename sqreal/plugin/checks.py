"""What every reader of requests needs: the error that refuses one, and what a whole number is."""

from __future__ import annotations

from typing import Any

LARGEST = 2**31


class WishError(Exception):
    """A request asks for what cannot be done; nothing was done. The message goes back with status 400."""


def whole(value: Any) -> bool:
    """Whether it is a whole number of a sane size, and not a boolean."""
    return type(value) is int and abs(value) < LARGEST


def short(value: Any) -> str:
    """A value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
