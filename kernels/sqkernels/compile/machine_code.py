# SPDX-License-Identifier: Apache-2.0
"""Machine code of a recorded launch, compiled for sm_90 (H100, H200)."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sqkernels.errors import KernelCompileError
from sqkernels.launch import Launch

TARGET = GPUTarget("cuda", 90, 32)
ALIGNED = 16  # bytes of an address, or a number, that Triton compiles a version of its own for
POINTERS = {
    torch.bool: "*i1", torch.int8: "*i8", torch.int32: "*i32", torch.int64: "*i64",
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32",
}  # fmt: skip

_DUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True)
class MachineCode:
    """Machine code of one variant of a kernel.

    registers     of a thread
    stack         bytes of a thread: registers that had to be spilled to memory, as no kernel here has another use for it
    shared        bytes of shared memory of a program
    instructions  opcodes with their modifiers, in the order in which they stand
    seconds       that compiling took
    """

    registers: int
    stack: int
    shared: int
    instructions: tuple[str, ...]
    seconds: float

    def count(self, *beginnings: str) -> int:
        """Count the instructions that begin with one of these prefixes."""
        return sum(each.startswith(beginnings) for each in self.instructions)


@dataclass(frozen=True)
class Specialised:
    """Properties of a launch by which Triton's JIT distinguishes variants: types, constants, alignments."""

    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[int, ...]

    @classmethod
    def of(cls, launch: Launch) -> Specialised:
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        aligned = []
        for place, parameter in enumerate(launch.kernel.params):
            value = launch.arguments[parameter.name]
            # a 1 is compiled in: a stride, as a rule
            if parameter.is_constexpr or (isinstance(value, int) and value == 1):
                signature[parameter.name] = "constexpr"
                constants[parameter.name] = value
                continue
            signature[parameter.name] = _type(value)
            number = value.data_ptr() if isinstance(value, Tensor) else value
            if isinstance(number, int) and number % ALIGNED == 0:
                aligned.append(place)
        return cls(signature, constants, tuple(aligned))

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for launches that compile to the same code."""
        constants = tuple((name, str(value)) for name, value in self.constants.items())
        return (*self.signature.items(), *constants, self.aligned)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compiled(launch: Launch) -> MachineCode:
    """Compile a launch to machine code. Raises KernelCompileError for what Triton or its assembler refuses."""
    special = Specialised.of(launch)
    attributes = {(place,): [["tt.divisibility", ALIGNED]] for place in special.aligned}
    source = ASTSource(launch.kernel, special.signature, special.constants, attributes)
    began = time.perf_counter()
    try:
        built = triton.compile(source, target=TARGET, options={"num_warps": launch.warps})
    except (
        Exception
    ) as error:  # the compiler's own family, MLIR's RuntimeError and the assembler's have no common base
        raise KernelCompileError(
            f"{launch.kernel.__name__}: Triton {triton.__version__} refuses it: {error}"
        ) from error
    seconds = time.perf_counter() - began
    return _read(launch.kernel.__name__, built.asm["cubin"], int(built.metadata.shared), seconds)


def _read(name: str, binary: bytes, shared: int, seconds: float) -> MachineCode:
    """Read instructions and registers with the disassembler in triton's wheel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(_DUMP), "-sass", "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - in triton's wheel
    usage, instructions = _USAGE.search(done.stdout), tuple(_INSTRUCTION.findall(done.stdout))
    if done.returncode or usage is None or not instructions:
        raise KernelCompileError(f"{name}: {_DUMP.name} cannot read its machine code: {done.stderr.strip()}")
    return MachineCode(int(usage[1]), int(usage[2]), shared, instructions, seconds)
