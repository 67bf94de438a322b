# SPDX-License-Identifier: Apache-2.0
"""Time kernels by device events next to the bytes they must move, whole calls with the host, and rivals."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
import triton.testing
from sqkernels.launch import recording

from benchmarks.gpu.kernel_bench.cases import Case
from sqsim.models.cost.hardware import Hardware

CALLS = 7  # whole calls, for their median


def timed(case: Case, device: torch.device, hardware: Hardware) -> dict[str, Any]:
    """Return a row of the record, seconds. `device_s`: the case's launches alone, on cold caches; `call_s`: the whole call."""
    prepared = case.prepare()
    with recording(run=True) as launches:
        prepared.run()

    def replay() -> None:
        for launch in launches:
            launch.run()

    floor_s = prepared.floor_bytes / hardware.bandwidth
    took = seconds(replay, device)
    row = {
        "kind": "time", "kernel": case.kernel, "what": case.what, "floor_bytes": prepared.floor_bytes, "floor_s": floor_s,
        "launches": len(launches), "device_s": spread(took), "of_floor": floor_s / median(took),
        "call_s": spread(_calls(case, device)),
    }  # fmt: skip
    rivals: dict[str, Any] = {}
    for name, set_up in case.rivals().items():
        try:
            rivals[name] = spread(seconds(set_up(), device))
        except Exception as error:  # noqa: BLE001 - a rival that does not run must not cost our own figures; it is named
            rivals[name] = f"failed: {type(error).__name__}: {error}"
    return row | {"rivals": rivals}


def seconds(run: Callable[[], object], device: torch.device) -> list[float]:
    """Time single runs: by device events with the L2 cache emptied before each; on a CPU by the clock."""
    if device.type == "cuda":
        return [each / 1e3 for each in triton.testing.do_bench(run, warmup=25, rep=100, return_mode="all")]
    return [_clocked(run, device) for _ in range(2)]


def _calls(case: Case, device: torch.device) -> list[float]:
    """Time from the call until the device is done, planning and transfers included, on fresh inputs each time."""
    count = CALLS if device.type == "cuda" else 2
    return [_clocked(case.prepare().run, device) for _ in range(count)]


def _clocked(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def spread(took: list[float]) -> dict[str, float]:
    """Return the median and the deciles."""
    tenths = quantiles(took, n=10, method="inclusive") if len(took) > 1 else took * 9
    return {"median": median(took), "p10": tenths[0], "p90": tenths[-1], "runs": len(took)}
