# SPDX-License-Identifier: Apache-2.0
"""Compile and check variants in several processes."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from sqkernels.compile.machine_code import MachineCode, compiled
from sqkernels.compile.variants import Variant
from sqkernels.errors import KernelCompileError


class Result(NamedTuple):
    """Result of one variant: machine code (None: it did not compile), the promises it keeps, its faults."""

    kernel: str
    case: str
    warps: int
    code: MachineCode | None
    kept: tuple[str, ...]
    faults: tuple[str, ...]


_here: list[Variant] = []  # a process's own: launches hold tensors and do not travel


def load(module: str) -> list[Variant]:
    """Load the variants of a module and keep them in this process."""
    _here[:] = importlib.import_module(module).variants()
    return _here


def check(module: str, chosen: Sequence[int], jobs: int) -> Iterator[Result]:
    """Yield the results of variants by number, in order, as each is ready; Triton's cache begins empty."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        fresh = multiprocessing.get_context("spawn")  # torch has threads, which a fork would not take along
        with ProcessPoolExecutor(jobs, fresh, load, (module,)) as pool:
            yield from pool.map(_one, chosen)


def _one(number: int) -> Result:
    variant = _here[number]
    result = Result(variant.launch.kernel.__name__, variant.case, variant.launch.warps, None, (), ())
    try:
        code = compiled(variant.launch)
    except KernelCompileError as error:
        return result._replace(faults=(f"{variant.name}: {error}",))
    broken = {promise.name: promise.broken(code) for promise in variant.promises}
    kept = tuple(promise for promise, fault in broken.items() if fault is None)
    faults = tuple(f"{variant.name}: {fault}" for fault in broken.values() if fault is not None)
    return result._replace(code=code, kept=kept, faults=faults)
