"""Refusals that several kernels share, and the one transfer that takes host numbers to a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sqkernels.errors import KernelDeviceError, KernelInputError

INTEGERS = (torch.int32, torch.int64)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MASKS = (torch.bool, torch.int8, torch.uint8)
LARGEST = 2**31 - 1  # positions and counts are int32 in every kernel


def tensor(
    name: str,
    value: Tensor,
    shape: Sequence[int | None],
    dtypes: Iterable[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Refuse a tensor of another shape (None: any size), dtype or device, or whose last dimension has gaps."""
    wanted = [str(size) if size is not None else "any" for size in shape]
    if value.dim() != len(shape) or any(
        size is not None and size != is_ for size, is_ in zip(shape, value.shape, strict=True)
    ):
        raise KernelInputError(f"{name}: shape {list(value.shape)}; give [{', '.join(wanted)}]")
    dtypes = tuple(dtypes)
    if value.dtype not in dtypes:
        raise KernelInputError(f"{name}: dtype {value.dtype}; give {' or '.join(map(str, dtypes))}")
    if value.numel() and value.stride(-1) != 1:
        raise KernelInputError(f"{name}: strides {value.stride()}; its last dimension must lie without gaps")
    if device is not None and value.device != device:
        raise KernelDeviceError(f"{name}: on {value.device}, the other tensors on {device}; move it there")


def dense(name: str, value: Tensor) -> None:
    """Refuse a tensor that has gaps anywhere."""
    if not value.is_contiguous():
        raise KernelInputError(
            f"{name}: strides {value.stride()} of shape {list(value.shape)}; give it contiguous"
        )


def to_device(device: torch.device, *lists: Sequence[int]) -> list[Tensor]:
    """Several lists of int32 on the device by one transfer, each beginning at a multiple of 16 bytes."""
    padded: list[int] = []
    places = []
    for numbers in lists:
        places.append((len(padded), len(padded) + len(numbers)))
        padded.extend(numbers)
        padded.extend([0] * (-len(padded) % 4))
    packed = torch.tensor(padded, dtype=torch.int32).to(device)
    return [packed[begin:end] for begin, end in places]


def sums(numbers: Iterable[int]) -> tuple[int, ...]:
    """Running sums that begin with 0: where each list begins in a flat one, and where the last ends."""
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
