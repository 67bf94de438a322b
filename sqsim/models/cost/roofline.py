# SPDX-License-Identifier: Apache-2.0
"""Roofline profiles for any model and GPU from two datasheet figures: bytes over bandwidth, operations over peak.

Williams, Waterman, Patterson, "Roofline" (CACM 2009): a kernel takes the longer of the two. The efficiencies
are assumed; those of the experts were chosen in view of the kernel timings in reports/profiles/data. The `step` term
adds what a roofline leaves out (host, launches, small kernels); it was chosen in view of whole-server times, by
check_servers.py there.
"""

from __future__ import annotations

from sqsim.models.cost.geometry import DTYPE_BYTES, MXFP4_BYTES, Geometry
from sqsim.models.cost.hardware import Hardware
from sqsim.models.cost.profile import CurveTerm, DecodeTerm, PrefillTerm, PrefixTerm, Profile, StepTerm

BANDWIDTH_EFFICIENCY = 0.8  # of the datasheet's bandwidth: streaming kernels
GEMM_EFFICIENCY = 0.6  # of the dense peak: large matrix products
ATTENTION_EFFICIENCY = 0.4  # of the dense peak: prefill attention
MOE_EFFICIENCY = 0.5  # of the dense peak: grouped products of the experts
MXFP4_EFFICIENCY = 0.55  # of the datasheet's bandwidth: unpacking four-bit experts
LAUNCH_S = 5e-6  # an attention kernel with next to no work
STEP_S = 1e-3  # host work a step that overlap does not hide
SMALL_KERNELS_S = 3e-5  # norms, rotary embedding, routing of a layer, in a CUDA graph

_SOURCE = (
    "roofline of the datasheet's bandwidth and dense peak; efficiencies assumed (sqsim/models/cost/roofline.py)"
)
_MOE_KNOTS = [float(2**power) for power in range(17)]


class _Roof:
    """Seconds for bytes and operations on one device, in the model's dtype."""

    def __init__(self, hardware: Hardware, dtype: str) -> None:
        self.bandwidth = hardware.bandwidth
        self.peak = hardware.peak(dtype)

    def read(self, size: float, efficiency: float = BANDWIDTH_EFFICIENCY) -> float:
        return size / (self.bandwidth * efficiency)

    def compute(self, operations: float, efficiency: float = GEMM_EFFICIENCY) -> float:
        return operations / (self.peak * efficiency)

    def matrix(self, parameters: int, parameter_bytes: float) -> list[tuple[float, float]]:
        """Build the curve of a dense matrix product by rows: flat while reading the weights takes longer, then linear."""
        floor, per_row = self.read(parameters * parameter_bytes), self.compute(2.0 * parameters)
        ridge = max(1.0, floor / per_row)
        return [(ridge, max(floor, per_row)), (2 * ridge, 2 * ridge * per_row)]


def dense_term(geometry: Geometry, hardware: Hardware) -> CurveTerm:
    """Build the term of a layer's projections and router, with its MLP where that is dense."""
    mlp = geometry.router_parameters if geometry.experts else geometry.expert_matrix_parameters
    roof = _Roof(hardware, _compute_dtype(geometry))
    size = DTYPE_BYTES[_compute_dtype(geometry)]
    return CurveTerm(
        evidence="derived", source=_SOURCE, points=roof.matrix(geometry.attention_parameters + mlp, size)
    )


def lm_head_term(geometry: Geometry, hardware: Hardware) -> CurveTerm:
    dtype = _compute_dtype(geometry)
    points = _Roof(hardware, dtype).matrix(geometry.head_parameters, DTYPE_BYTES[dtype])
    return CurveTerm(evidence="derived", source=_SOURCE, points=points)


def step_term() -> StepTerm:
    return StepTerm(
        evidence="assumed",
        source="host work a step and small kernels a layer; chosen in view of public whole-server times of another model "
        "and engine (reports/profiles/check_servers.py)",
        fixed_s=STEP_S,
        per_layer_s=SMALL_KERNELS_S,
    )


def prefix_term(geometry: Geometry, hardware: Hardware) -> PrefixTerm:
    """Build the term of reading the KV before a prefill once; the prefill term charges its pairs."""
    roof = _Roof(hardware, _compute_dtype(geometry))
    return PrefixTerm(evidence="derived", source=_SOURCE, per_token_s=roof.read(_kv_layer_bytes(geometry)))


def roofline(geometry: Geometry, hardware: Hardware) -> Profile:
    """Build the derived profile of a model, in its checkpoint's own weight format, on one GPU."""
    sliding = geometry.sliding_layers > 0
    return Profile(
        schema="sqsim-profile/1",
        name=f"{geometry.name}-{hardware.name}-roofline",
        model=geometry.name,
        gpu=hardware.name,
        engine="none",
        version="none",
        weights=geometry.weights,
        kv_dtype="bfloat16",
        note="Nothing here was measured: a roofline, with assumed efficiencies and an assumed time a step.",
        step=step_term(),
        dense=dense_term(geometry, hardware),
        moe=_moe_term(geometry, hardware) if geometry.experts else None,
        lm_head=lm_head_term(geometry, hardware),
        decode_full=_decode_term(geometry, hardware),
        decode_sliding=_decode_term(geometry, hardware) if sliding else None,
        prefill_full=_prefill_term(geometry, hardware),
        prefill_sliding=_prefill_term(geometry, hardware) if sliding else None,
        prefix_read=prefix_term(geometry, hardware),
    )


def distinct_experts(experts: int, per_token: int, tokens: float) -> float:
    """Expected number of distinct experts when each token chooses `per_token` of them uniformly at random."""
    missed: float = (1.0 - per_token / experts) ** tokens
    return experts * (1.0 - missed)


def _moe_term(geometry: Geometry, hardware: Hardware) -> CurveTerm:
    """Build the term of a layer's experts: read each chosen expert once, and compute it for every token that chose it."""
    roof = _Roof(hardware, _compute_dtype(geometry))
    packed = geometry.weights == "mxfp4"
    size = MXFP4_BYTES if packed else DTYPE_BYTES[geometry.weights]
    efficiency = MXFP4_EFFICIENCY if packed else BANDWIDTH_EFFICIENCY
    expert = geometry.expert_matrix_parameters

    def seconds(tokens: float) -> float:
        touched = distinct_experts(geometry.experts, geometry.experts_per_token, tokens)
        operations = 2.0 * tokens * geometry.experts_per_token * expert
        return max(roof.read(touched * expert * size, efficiency), roof.compute(operations, MOE_EFFICIENCY))

    return CurveTerm(evidence="derived", source=_SOURCE, points=[(knot, seconds(knot)) for knot in _MOE_KNOTS])


def _decode_term(geometry: Geometry, hardware: Hardware) -> DecodeTerm:
    roof = _Roof(hardware, _compute_dtype(geometry))
    # With at most 16 query heads a KV head, decode attention is far below the ridge: the bytes determine its time.
    return DecodeTerm(
        evidence="derived",
        source=_SOURCE,
        points=[(1.0, LAUNCH_S)],
        per_token_s=roof.read(_kv_layer_bytes(geometry)),
    )


def _prefill_term(geometry: Geometry, hardware: Hardware) -> PrefillTerm:
    # A pair costs a multiply and an add for q.k, and as much for p.v, in every query head.
    operations = 4.0 * geometry.heads * geometry.head_dim
    return PrefillTerm(
        evidence="derived",
        source=_SOURCE,
        fixed_s=LAUNCH_S,
        per_request_s=0.0,
        per_token_s=0.0,
        per_pair_s=operations / (hardware.peak(_compute_dtype(geometry)) * ATTENTION_EFFICIENCY),
    )


def _compute_dtype(geometry: Geometry) -> str:
    return "bfloat16" if geometry.weights == "mxfp4" else geometry.weights


def _kv_layer_bytes(geometry: Geometry) -> int:
    return 2 * geometry.kv_heads * geometry.head_dim * DTYPE_BYTES["bfloat16"]
