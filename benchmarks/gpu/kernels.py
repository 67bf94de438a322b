# SPDX-License-Identifier: Apache-2.0
"""Check, stress and time the eviction kernels of sqkernels, and dense products at gpt-oss-20b's hidden size.

    python benchmarks/gpu/kernels.py -o kernels.jsonl              # on a GPU, with torch and triton; under 8 minutes
    python benchmarks/gpu/kernels.py --rehearse -o kernels.jsonl   # the same in small on a CPU, interpreted

A line as soon as it is measured: conditions first; then checks against torch, races, times against byte floors and rivals, dense
products; the last line names what did not fit into the budget. Seconds and bytes. Exit code 1 where a kernel is wrong: its line
says which. Needs neither sqsim's dependencies nor a network. A scenario takes the file
as `engine.kernel_costs`; put into sqsim/models/cost/kernel_costs/ as GPU.jsonl it is every scenario's on that GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if Path(sys.path[0]).resolve() == HERE:
    # This folder holds a kernels.py, and SGLang, a rival, imports a package of that name (docs/SGLANG.md).
    sys.path[:1] = [str(ROOT), str(ROOT / "kernels")]

SCHEMA = "sqkernels-bench/1"
GPUS = {"H100": "h100-sxm", "H200": "h200-sxm", "A100": "a100-sxm-80gb", "B200": "b200-sxm"}


def main() -> int:
    """Run the benchmark. 0: all kernels are right; 1: one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--budget", type=float, default=440.0, help="seconds in all")
    given = parser.parse_args()
    began = time.perf_counter()
    if given.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    import torch  # noqa: PLC0415

    if not given.rehearse and not torch.cuda.is_available():
        parser.error("no CUDA device is found on this machine; try --rehearse")
    with given.output.open("x", encoding="utf-8") as out:
        return run(torch.device("cpu" if given.rehearse else "cuda:0"), out, began + given.budget)


def run(device: Any, out: TextIO, until: float) -> int:
    """Write one line per result until the time is up."""
    import torch  # noqa: PLC0415

    from benchmarks.gpu.kernel_bench.sizes import FULL, SMALL  # noqa: PLC0415
    from sqsim.models.cost.hardware import hardware  # noqa: PLC0415

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    gpu = "cpu" if device.type == "cpu" else next((value for key, value in GPUS.items() if key in name), None)
    if gpu is None:
        sys.exit(
            f"{name}: its bandwidth is not known; add it to GPUS here and to sqsim/models/cost/hardware.py"
        )
    size = FULL if device.type == "cuda" else SMALL
    write(out, conditions(gpu, name, rehearsal=device.type == "cpu"))
    left: list[str] = []
    slowest: dict[str, float] = {}  # by kind: what is skipped is what would not fit
    wrong = False
    for kind, what, measure in plan(size, device, hardware(gpu), until):
        begins = time.perf_counter()
        if begins + slowest.get(kind, 0.0) > until:
            left.append(f"{kind}: {what}")
            continue
        for row in measure():
            wrong |= not row.get("agrees", True) or bool(row.get("wrong"))
            if row.get("cases", 0) < row.get("planned", 0):
                left.append(f"{kind}: {row['planned'] - row['cases']} cases of {row['kernel']}")
            write(out, row)
        slowest[kind] = max(slowest.get(kind, 0.0), time.perf_counter() - begins)
    write(out, {"kind": "end", "right": not wrong, "left_out_for_time": left})
    return int(wrong)


def plan(size: Any, device: Any, hardware: Any, until: float) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield the work in order: kind, name, and the function that yields its lines. Races may take half of the time left."""
    from benchmarks.gpu.kernel_bench.agreement import check  # noqa: PLC0415
    from benchmarks.gpu.kernel_bench.cases import cases  # noqa: PLC0415
    from benchmarks.gpu.kernel_bench.dense import dense  # noqa: PLC0415
    from benchmarks.gpu.kernel_bench.races import races  # noqa: PLC0415
    from benchmarks.gpu.kernel_bench.timing import timed  # noqa: PLC0415

    every = cases(size, device)
    for case in every:
        yield "check", f"{case.kernel}, {case.what}", partial(_one, check, case)
    now = time.perf_counter()
    yield "race", "in place", lambda: races(size, device, now + (until - now) / 2)
    for case in every:
        yield "time", f"{case.kernel}, {case.what}", partial(_one, timed, case, device, hardware)
    for what, measure in dense(size, device, hardware):
        yield "gemm", what, partial(_one, measure)


def _one(measure: Callable[..., dict[str, Any]], *given: Any) -> list[dict[str, Any]]:
    return [measure(*given)]


def write(out: TextIO, row: dict[str, Any]) -> None:
    """Write one line to disk at once."""
    out.write(json.dumps(row) + "\n")
    out.flush()
    print(json.dumps(row), flush=True)


def conditions(gpu: str, device: str, *, rehearsal: bool) -> dict[str, Any]:
    names = ("torch", "triton", "sglang", "flashinfer-python", "numpy")
    versions = {name: installed(name) for name in names}
    return {
        "schema": SCHEMA, "rehearsal": rehearsal, "gpu": gpu, "device": device, "model": "gpt-oss-20b", "kv_dtype": "bfloat16", "versions": versions,
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
