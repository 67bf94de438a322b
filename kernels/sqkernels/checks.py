# SPDX-License-Identifier: Apache-2.0
"""Argument checks that several kernels share, and one transfer of host numbers to a device."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from sqkernels.errors import KernelDeviceError, KernelInputError

INTEGERS = (torch.int32, torch.int64)
NUMBERS = (torch.int8, torch.uint8, torch.int16, *INTEGERS)  # of lists of numbers, which become int32
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MASKS = (torch.bool, torch.int8, torch.uint8)
LARGEST = 2**31 - 1  # positions and counts are int32 in every kernel


def whole(name: str, value: Any) -> int:
    """Return a whole number as a Python int, which cannot overflow in a comparison; refuse anything else."""
    is_flag = isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool
    try:
        # a tensor or an array of one element is an index to Python, but a list to whoever gave it
        number = None if is_flag or getattr(value, "ndim", 0) else operator.index(value)
    except (TypeError, RuntimeError):  # RuntimeError: a tensor on meta has no value
        number = None
    if number is None:
        raise KernelInputError(f"{name}: {reprlib.repr(value)}; give a whole number")
    if not -LARGEST <= number <= LARGEST:
        raise KernelInputError(f"{name}: {number} is beyond int32; give {-LARGEST} to {LARGEST}")
    return number


def wholes(name: str, values: Any, count: int | None = None) -> list[int]:
    """Return a list, array or 1-D tensor of whole numbers as Python ints: `count` of them, one per row."""
    numbers = each(name, plain(values), "whole numbers", count)
    return [whole(f"{name}[{place}]", number) for place, number in enumerate(numbers)]


def each(name: str, values: Any, what: str, count: int | None = None) -> list[Any]:
    """Return the items of a list or array; refuse anything else, and a length other than `count`, one per row."""
    ordered = isinstance(values, Sequence) or getattr(values, "ndim", 0) > 0
    if not ordered or isinstance(values, str | bytes):
        raise KernelInputError(f"{name}: {reprlib.repr(values)}; give a list of {what}")
    if count is not None and len(values) != count:
        raise KernelInputError(f"{name}: {len(values)} of them for {count} rows; give one a row")
    return list(values)


def plain(values: Any) -> Any:
    """Turn arrays and tensors into lists of Python numbers, by one transfer each instead of one per number."""
    return values.tolist() if hasattr(values, "tolist") and not getattr(values, "is_meta", False) else values


def numbers(name: str, values: Any, device: torch.device) -> Tensor:
    """Return host or device numbers as int64 [n] on the device, unchecked: int32 would turn 2^32 + 1 into 1."""
    if not isinstance(values, Tensor):
        return torch.tensor(wholes(name, values), dtype=torch.int64).to(device)
    tensor(name, values, (None,), NUMBERS)
    return values.to(device, torch.int64)


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number from low to high; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise KernelInputError(f"{name}: {reprlib.repr(value)}; give a finite number")
    number = float(value)
    if not low <= number <= high:
        fix = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise KernelInputError(f"{name}: {value}; give {fix}")
    return number


def choices(count: int, what: str = "") -> str:
    """Return the end of a refusal: the values allowed for a number below `count`."""
    return f"give {what}0 to {count - 1}" if count else "it has none; leave this out"


def tensor(
    name: str,
    value: Tensor,
    shape: Sequence[int | None],
    dtypes: Iterable[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Refuse a tensor of another shape (None: any size), dtype or device, or whose last dimension has gaps."""
    if not isinstance(value, Tensor):
        raise KernelInputError(f"{name}: {reprlib.repr(value)}; give a tensor")
    wanted = [str(size) if size is not None else "any" for size in shape]
    if value.dim() != len(shape) or any(
        size is not None and size != is_ for size, is_ in zip(shape, value.shape, strict=True)
    ):
        raise KernelInputError(
            f"{name}: shape {list(value.shape)}; give [{', '.join(wanted)}], {len(wanted)} dimensions"
        )
    dtypes = tuple(dtypes)
    if value.dtype not in dtypes:
        raise KernelInputError(f"{name}: dtype {value.dtype}; give {' or '.join(map(str, dtypes))}")
    if value.numel() and value.stride(-1) != 1:
        raise KernelInputError(f"{name}: strides {value.stride()}; its last dimension must lie without gaps")
    if device is not None and value.device != device:
        raise KernelDeviceError(f"{name}: on {value.device}, the other tensors on {device}; move it there")
    if value.is_meta:
        raise KernelDeviceError(f"{name}: on meta, where nothing is stored; give it on the CPU or a GPU")


def dense(name: str, value: Tensor) -> None:
    """Refuse a tensor with gaps."""
    if not value.is_contiguous():
        raise KernelInputError(
            f"{name}: strides {value.stride()} of shape {list(value.shape)}; give it contiguous"
        )


def apart(name: str, value: Tensor) -> None:
    """Refuse overlapping rows, as `expand` makes them: a change to one request's row would change another's."""
    if len(value) > 1 and value.stride(0) < value.shape[1]:
        raise KernelInputError(
            f"{name}: strides {value.stride()} of shape {list(value.shape)}: rows overlap; give each its own memory"
        )


def to_device(device: torch.device, *lists: Sequence[int]) -> list[Tensor]:
    """Move several lists to the device as int32 by one transfer; each list begins at a multiple of 16 bytes."""
    padded: list[int] = []
    places = []
    for numbers in lists:
        places.append((len(padded), len(padded) + len(numbers)))
        padded.extend(numbers)
        padded.extend([0] * (-len(padded) % 4))
    packed = torch.tensor(padded, dtype=torch.int32).to(device)
    return [packed[begin:end] for begin, end in places]


def sums(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return running sums that begin with 0: the start of each list in a flat one, and the end of the last."""
    total = [0]
    for number in numbers:
        total.append(total[-1] + number)
    return tuple(total)


def wide_enough(name: str, value: Tensor, columns: int) -> None:
    """Refuse a tensor with fewer columns than the longest row has tokens."""
    if value.shape[-1] < columns:
        raise KernelInputError(
            f"{name}: {value.shape[-1]} columns, the longest row has {columns} tokens; give as many"
        )
