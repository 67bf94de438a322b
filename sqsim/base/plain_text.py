# SPDX-License-Identifier: Apache-2.0
"""Values and tables as plain text, for results that are printed from Python."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def shown(value: Any) -> str:
    """Format a value for reading: four significant digits, thousands separated, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Align the cells of rows of equal length; the columns in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
