# SPDX-License-Identifier: Apache-2.0
"""A record of benchmarks/gpu/kernels.py, small, from which an eviction in place costs what a test wants."""

from __future__ import annotations

import json
from pathlib import Path


def write_kernel_record(path: Path, fixed_s: float, per_token_s: float, gpu: str = "cpu") -> str:
    """Dyadic rationals are read back exactly: sizes are a power of two apart."""
    head = {"schema": "sqkernels-bench/1", "rehearsal": False, "gpu": gpu}
    times = [
        {
            "kind": "time",
            "kernel": "compact_spans",
            "floor_bytes": 8 * tokens,
            "device_s": {"median": fixed_s + tokens * per_token_s},
        }
        for tokens in (1, 1 + 2**13)
    ]
    path.write_text("\n".join(map(json.dumps, [head, *times, {"kind": "end", "right": True}])))
    return str(path)
