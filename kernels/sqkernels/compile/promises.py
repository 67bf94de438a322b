# SPDX-License-Identifier: Apache-2.0
"""Promises that the machine code of a kernel must keep, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqkernels.compile.machine_code import MachineCode
from sqkernels.launch import Launch

LOADS = ("LDG.", "LDGSTS.")  # from global memory: to registers, to shared memory
STORES = ("STG.",)
WIDEST = ".128"  # bits


@dataclass(frozen=True)
class Promise:
    """Property of machine code: `broken` describes the fault, or returns None where the code keeps the promise."""

    name: str
    broken: Callable[[MachineCode], str | None]


def _spills(code: MachineCode) -> str | None:
    return f"spills {code.stack} bytes a thread" if code.stack else None


def _narrow(code: MachineCode) -> str | None:
    """Require 128-bit stores and a 128-bit load: only KV rows are stored, but slots, which may be narrow, are also loaded."""
    stores = [each for each in code.instructions if each.startswith(STORES)]
    narrow = [each for each in stores if WIDEST not in each]
    if not stores or narrow:
        return f"has stores narrower than 128 bits: {narrow[0] if narrow else 'none is a store at all'}"
    if not any(each.startswith(LOADS) and WIDEST in each for each in code.instructions):
        return "has no 128-bit load"
    return None


def _races(code: MachineCode) -> str | None:
    """Require a barrier between a load and the next store, in the order of the code."""
    unread = False
    for each in code.instructions:
        if each.startswith(LOADS):
            unread = True
        elif each.startswith("BAR.SYNC"):
            unread = False
        elif each.startswith(STORES) and unread:
            return f"has a store ({each}) behind a load with no barrier between them"
    return None


def _no_tensor_cores(code: MachineCode) -> str | None:
    return (
        None
        if code.count("HGMMA.")
        else "has no wgmma (HGMMA): its products do not run on Hopper's tensor cores"
    )


NO_SPILLS = Promise("no spills", _spills)  # a spilled register is a trip to memory that no floor counts
WIDE = Promise("128 bit", _narrow)  # narrower accesses cannot saturate the memory of a Hopper
BARRIER = Promise("barrier", _races)  # in place, what one thread writes another may not have read yet
TENSOR_CORES = Promise("wgmma", _no_tensor_cores)  # without them scores are bound by arithmetic, not by memory

_KEPT = {
    "_compact": (BARRIER,),
    "_move": (WIDE,),
    "_shift": (WIDE, BARRIER),
    "_move_rotated": (WIDE,),
    "_sum_exponentials": (TENSOR_CORES,),
    "_score": (TENSOR_CORES,),
    "_exempt_last_like": (TENSOR_CORES,),
}
SMALLEST = 64  # rows of a wgmma


def promised(launch: Launch) -> tuple[Promise, ...]:
    """List a kernel's promises. Tensor cores: for 16-bit tiles of 64 rows or more; H2O's decode form has fewer."""
    kept = _KEPT.get(launch.kernel.__name__, ())
    if TENSOR_CORES in kept:
        large = launch.arguments["ROW_TILE"] >= SMALLEST and launch.arguments["keys"].element_size() == 2
        kept = kept if large else ()
    return (NO_SPILLS, *kept)
