# SPDX-License-Identifier: Apache-2.0
"""Launcher of all kernels, which can also record launches without running them.

What is noted is what `sqkernels.compile` compiles for a GPU that is not there: the very arguments, block sizes and
warps that a call would have used, so that the check cannot drift from the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from sqkernels.errors import KernelDeviceError

# Triton reads TRITON_INTERPRET when a kernel is decorated, so it is fixed from the import on.
INTERPRETED = bool(triton.knobs.runtime.interpret)

# tl.dot and bf16 arithmetic are silently wrong in the interpreter (it keeps bf16 as integers): there a kernel widens
# what it loads to float32 first. On a GPU the tensor cores take bf16 as it is.
WIDEN = INTERPRETED


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its arguments by name (constants included), its number of warps and its grid."""

    kernel: Any
    arguments: dict[str, Any]
    warps: int
    grid: tuple[int, ...]

    def run(self) -> None:
        """Run it; raise KernelDeviceError for tensors on several devices, or on the CPU outside the interpreter."""
        devices = {each.device for each in self.arguments.values() if isinstance(each, Tensor)}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise KernelDeviceError(f"tensors lie on {names}; move them to one device")
        (device,) = devices
        if device.type != "cuda" and not INTERPRETED:
            raise KernelDeviceError(
                f"the tensors lie on {device}, where no kernel runs; "
                "move them to a CUDA device, or set TRITON_INTERPRET=1 before sqkernels is imported"
            )
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[self.grid](**self.arguments, num_warps=self.warps)


@dataclass(frozen=True)
class _Recorder:
    launches: list[Launch]
    run: bool


_recorders: list[_Recorder] = []


def kernel(function: Callable[..., Any]) -> Any:
    """Make a Triton kernel, or a function that kernels call, from a Python function.

    Its parameters are annotated `tl.tensor` (pointers and numbers alike) or `tl.constexpr`: Triton's compiler looks
    annotations up, and refuses any name that is not its own.
    """
    return triton.jit(function)


@contextmanager
def recording(*, run: bool = False) -> Iterator[list[Launch]]:
    """Record launches; run them too only if `run` is true, else outputs keep their old contents."""
    recorder = _Recorder([], run)
    _recorders.append(recorder)
    try:
        yield recorder.launches
    finally:
        _recorders.remove(recorder)


def launch(function: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run a kernel over a grid of programs, as `Launch.run` does; do nothing for an empty grid."""
    if 0 in grid:
        return
    named = dict(zip(function.arg_names, arguments, strict=False)) | constants
    noted = Launch(function, named, warps, grid)
    if _recorders:
        _recorders[-1].launches.append(noted)
    if not _recorders or _recorders[-1].run:
        noted.run()
