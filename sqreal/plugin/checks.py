# SPDX-License-Identifier: Apache-2.0
"""Checks that every reader of requests needs, and the error that refuses a request."""

from __future__ import annotations

from typing import Any

LARGEST = 2**31


class BadRequestError(Exception):
    """Refused request, which changed nothing. SGLang returns the message with status 400."""


def whole(value: Any) -> bool:
    """Whether the value is a whole number of a sane size, and not a boolean."""
    return type(value) is int and abs(value) < LARGEST


def short(value: Any) -> str:
    """Shorten a value for an error message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
