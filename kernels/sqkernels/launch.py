"""The one door to the device: every kernel is launched here, or, while `recording`, only noted down.

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


@dataclass(frozen=True)
class Launch:
    """A launch that was noted down: the kernel, its arguments by name (constants among them), warps and grid."""

    kernel: Any
    arguments: dict[str, Any]
    warps: int
    grid: tuple[int, ...]


_notes: list[list[Launch]] = []


def kernel(function: Callable[..., Any]) -> Any:
    """Make a Triton kernel, or a function that kernels call, of a Python function."""
    return triton.jit(function)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Note launches down instead of running them; outputs keep whatever they held."""
    noted: list[Launch] = []
    _notes.append(noted)
    try:
        yield noted
    finally:
        _notes.remove(noted)


def launch(function: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run a kernel over a grid of programs; a grid with nothing in it runs nothing.

    Raises KernelDeviceError where the tensors lie on several devices, or on the CPU outside the interpreter.
    """
    if 0 in grid:
        return
    if _notes:
        named = dict(zip(function.arg_names, arguments, strict=False)) | constants
        _notes[-1].append(Launch(function, named, warps, grid))
        return
    devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
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
        function[grid](*arguments, num_warps=warps, **constants)
