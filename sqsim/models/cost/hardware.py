# SPDX-License-Identifier: Apache-2.0
"""GPUs by memory size, bandwidth and peak, as the roofline and the KV capacity need them.

Bandwidth and peak are the figures of the vendor's datasheet, dense (no sparsity). The
memory size is the total that the CUDA runtime reports, which is less than the device's name states: every
out-of-memory message prints it (for example "total capacity of 79.18 GiB" on an H100 SXM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqsim.errors import InputError

GIB = 2**30
_OOM = "CUDA runtime total, as printed in public out-of-memory messages"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Bytes, bytes per second, and floating-point operations per second."""

    name: str
    memory_bytes: int  # total, as the runtime reports it
    context_bytes: int  # taken by the runtime's context before any weight is loaded
    bandwidth: float  # of device memory
    flops: Mapping[str, float]  # dense peak by dtype
    link_bandwidth: float  # to the other GPUs of a tensor-parallel group, each way
    sources: Mapping[str, str]  # figure -> where it comes from

    def peak(self, dtype: str) -> float:
        """Return the dense peak for a dtype; the 16-bit peak for a dtype without a listed one."""
        return self.flops.get(dtype, self.flops["bfloat16"])


def _nvidia(
    name: str,
    gib: float,
    tb_per_s: float,
    *,
    bf16: float,
    fp32: float,
    fp8: float | None,
    link_gb_per_s: float,
    datasheet: str,
) -> Hardware:
    """Build a datacentre GPU from dense tera-operations and NVLink (or PCIe) GB/s of both directions together."""
    flops = {"bfloat16": bf16 * 1e12, "float16": bf16 * 1e12, "float32": fp32 * 1e12}
    if fp8 is not None:
        flops["fp8_e4m3"] = flops["fp8_e5m2"] = fp8 * 1e12
    return Hardware(
        name=name,
        memory_bytes=round(gib * GIB),
        context_bytes=round(0.6 * GIB),
        bandwidth=tb_per_s * 1e12,
        flops=flops,
        link_bandwidth=link_gb_per_s * 1e9 / 2,
        sources={
            "memory_bytes": f"{_OOM}: {gib} GiB",
            "context_bytes": "assumed: CUDA context and runtime, 0.6 GiB; engine.kv_capacity overrides what follows from it",
            "bandwidth": datasheet,
            "flops": f"{datasheet}, dense",
            "link_bandwidth": datasheet,
        },
    )


_GPUS = (
    _nvidia(
        "h100-sxm",
        79.18,
        3.35,
        bf16=989.5,
        fp32=67,
        fp8=1979,
        link_gb_per_s=900,
        datasheet="NVIDIA H100 Tensor Core GPU datasheet, SXM5 80 GB",
    ),
    _nvidia(
        "h200-sxm",
        139.80,
        4.8,
        bf16=989.5,
        fp32=67,
        fp8=1979,
        link_gb_per_s=900,
        datasheet="NVIDIA H200 Tensor Core GPU datasheet, SXM 141 GB",
    ),
    _nvidia(
        "a100-sxm-80gb",
        79.15,
        2.039,
        bf16=312,
        fp32=19.5,
        fp8=None,
        link_gb_per_s=600,
        datasheet="NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB",
    ),
    _nvidia(
        "b200-sxm",
        178.35,
        8.0,
        bf16=2250,
        fp32=75,
        fp8=4500,
        link_gb_per_s=1800,
        datasheet="NVIDIA HGX B200 datasheet, one of eight GPUs",
    ),
    _nvidia(
        "l40s",
        44.40,
        0.864,
        bf16=362,
        fp32=91.6,
        fp8=733,
        link_gb_per_s=64,
        datasheet="NVIDIA L40S datasheet, PCIe 48 GB",
    ),
    Hardware(
        name="cpu",
        memory_bytes=16 * GIB,
        context_bytes=0,
        bandwidth=20e9,
        flops={"bfloat16": 1e11, "float16": 1e11, "float32": 1e11},
        link_bandwidth=1e10,
        sources=dict.fromkeys(
            ("memory_bytes", "context_bytes", "bandwidth", "flops", "link_bandwidth"),
            "assumed: a small machine for tests, not a prediction of any",
        ),
    ),
)
HARDWARE: Mapping[str, Hardware] = {gpu.name: gpu for gpu in _GPUS}


def hardware(name: str) -> Hardware:
    """Find a device by name. InputError: the name is unknown; the message lists the names."""
    if name not in HARDWARE:
        raise InputError(f"gpu {name!r} is unknown; choose one of {', '.join(HARDWARE)}")
    return HARDWARE[name]
