# SPDX-License-Identifier: Apache-2.0
"""Sums, means and percentiles of a record's columns; None where a number is not defined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]


def floats(table: pa.Table, name: str) -> Floats:
    """Return a column of a record's table as floats; nan where it is null."""
    values: Floats = table[name].cast(pa.float64()).to_numpy()
    return values


def total(table: pa.Table, name: str) -> int:
    return int(pc.sum(table[name], min_count=0).as_py())


def ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def percentile(values: Floats, percent: int) -> float | None:
    return float(np.percentile(values, percent, method="linear")) if values.size else None
