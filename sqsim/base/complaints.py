# SPDX-License-Identifier: Apache-2.0
"""Error messages from the faults that pydantic reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic_core import ErrorDetails

from sqsim.base.strict_yaml import show


def complaint(fault: ErrorDetails) -> str:
    """Describe the fault of a value: `'radx' should be 'radix' or 'session'; did you mean radix?`."""
    match fault["type"]:
        case "missing":
            return "missing; add it"
        case "choice" | "model_type" | "model_attributes_type":
            problem = "should be a mapping"
        case "too_short":
            return "the list is empty"
        case "string_pattern_mismatch":
            problem = "holds a control character"
        case _:
            problem = fault["msg"].removeprefix("Input ")
    expected = str(fault.get("ctx", {}).get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
    return f"{show(fault['input'])} {problem}{alike(fault['input'], expected)}"


def alike(value: Any, known: Iterable[str]) -> str:
    """Suggest the known word that a value resembles; empty where it resembles none."""
    names = [name for name in known if name]
    found = difflib.get_close_matches(value[:60], names, 1) if isinstance(value, str) else []
    return f"; did you mean {found[0]}?" if found else ""
