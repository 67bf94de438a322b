# SPDX-License-Identifier: Apache-2.0
"""The GPU's cost of an eviction in place: from a record of benchmarks/gpu/kernels.py, else from the kernel's floor.

Spans leave a session's row of the page table. No KV moves, at any page size: with pages of several slots, only whole
pages are evicted. So the cost is the table kernel's, which runs after the work that the GPU already has. The host plans
the kernel while steps run, so the host's part is not charged.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field

from sqsim.errors import InputError
from sqsim.models.cost.hardware import Hardware
from sqsim.models.cost.profile import Evidence, Seconds

_FIX = "give a file that benchmarks/gpu/kernels.py wrote on this GPU, or auto"


class InPlaceCost(NamedTuple):
    """Seconds of one eviction: `fixed_s`, and `per_token_s` for each position after the first evicted one."""

    fixed_s: float
    per_token_s: float
    evidence: Evidence
    source: str

    def seconds(self, positions_after: int) -> float:
        return self.fixed_s + positions_after * self.per_token_s


class _Floor(BaseModel):
    """The object `in_place` of floor.yaml: bytes over a share of the bandwidth, and launches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str
    bytes_per_token: int = Field(gt=0)
    efficiency: float = Field(gt=0, le=1)
    launches: int = Field(gt=0)
    launch_s: Seconds
    evidence: Evidence
    source: str


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["sqsim-kernel-costs/1"] = Field(alias="schema")
    in_place: _Floor


def in_place_cost(device: Hardware, record: str | None = None) -> InPlaceCost:
    """Find the cost on this GPU. `record`: a file of benchmarks/gpu/kernels.py; None: this GPU's shipped one, else the floor.

    InputError: the record cannot be read, is of another GPU, is a rehearsal, or found a kernel wrong.
    """
    folder = resources.files("sqsim.models.cost.kernel_costs")
    floor = _Table.model_validate(yaml.safe_load((folder / "floor.yaml").read_text("utf-8"))).in_place
    if record is not None:
        return _measured(_read(Path(record)), record, device, floor)
    shipped = folder / f"{device.name}.jsonl"
    if shipped.is_file():
        return _measured(shipped.read_text("utf-8"), shipped.name, device, floor)
    per_token_s = floor.bytes_per_token / (device.bandwidth * floor.efficiency)
    return InPlaceCost(floor.launches * floor.launch_s, per_token_s, floor.evidence, floor.source)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_FIX}") from error


class _Head(BaseModel):
    schema_: Literal["sqkernels-bench/1"] = Field(alias="schema")
    gpu: str
    rehearsal: bool


class _Spread(BaseModel):
    median: float = Field(gt=0)


class _Time(BaseModel):
    floor_bytes: int = Field(gt=0)
    device_s: _Spread


def _measured(text: str, place: str, device: Hardware, floor: _Floor) -> InPlaceCost:
    """Fit a line through the smallest and the largest timed size; it neither falls nor begins below 0."""
    try:
        first, *rows = (json.loads(line) for line in text.splitlines() if line.strip())
        head = _Head.model_validate(first)
        timed = [
            _Time.model_validate(row)
            for row in rows
            if _names(row, "time") and row.get("kernel") == floor.kernel
        ]
    except ValueError as error:  # no line, no JSON, or a file of another kind
        raise InputError(f"{place}: no record of kernels: {' '.join(str(error).split())}; {_FIX}") from error
    if head.rehearsal or head.gpu != device.name:
        what = "a rehearsal on a CPU" if head.rehearsal else f"measured on {head.gpu}"
        raise InputError(f"{place}: {what}, and engine.gpu is {device.name}; {_FIX}")
    if not any(_names(row, "end") and row.get("right") is True for row in rows):
        raise InputError(f"{place}: its last line does not state that all kernels were right; {_FIX}")
    sizes = sorted((time.floor_bytes, time.device_s.median) for time in timed)
    if not sizes or sizes[0][0] == sizes[-1][0]:
        raise InputError(f"{place}: {floor.kernel} is not timed at two sizes; {_FIX}")
    (least, least_s), (most, most_s) = sizes[0], sizes[-1]
    per_byte_s = max(0.0, (most_s - least_s) / (most - least))
    fixed_s = max(0.0, least_s - least * per_byte_s)
    return InPlaceCost(
        fixed_s, per_byte_s * floor.bytes_per_token, "measured", f"{floor.kernel} in {Path(place).name}"
    )


def _names(row: Any, kind: str) -> bool:
    return isinstance(row, dict) and row.get("kind") == kind
