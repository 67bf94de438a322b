# SPDX-License-Identifier: Apache-2.0
"""The time of one step of the serving engine.

For a batch with prefill rows (new tokens n_i after b_i tokens) and `requests` decoding rows,

    step = fixed + layers * (small kernels + dense(tokens) + moe(tokens)) + lm_head(rows)
         + full layers    * (decode(requests) + context * per token + prefill + prefix read)
         + sliding layers * (decode(requests) + window  * per token + prefill)
    prefill = fixed + rows * per request + new * per token + pairs * per pair + (waves - 1) * per wave

with tokens = all new tokens and decoding rows, rows = requests that get (or work towards) a token, and pairs
counted within the window on sliding layers. A part is charged only where it has work. For a fixed set of
decoding rows the time is affine in context and window, so n alike steps can be summed in closed form.

Tensor parallelism divides the parts that are split (matrices, heads, KV), leaves the others (launches, host), and
adds two all-reduces a layer. Such a time is derived, whatever the profile's own evidence; so is the time with a KV
dtype for which the profile has no measurement.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

from sqsim.errors import InputError
from sqsim.models.cost.geometry import Geometry, geometry, kv_dtype_bytes
from sqsim.models.cost.hardware import Hardware, hardware
from sqsim.models.cost.profile import DecodeTerm, PrefillTerm, Profile, load_profile, shipped_profiles
from sqsim.models.cost.roofline import roofline

_ANY = (0.0, inf)
ALL_REDUCE_S = 8e-6  # latency of one all-reduce inside a node; assumed


class StepWork(NamedTuple):
    """The work of one step, in tokens."""

    prefill: Sequence[tuple[int, int]]  # for each row: new tokens, tokens with KV before them
    decode_requests: int
    decode_context: int  # sum over decoding rows of the KV length, the new token included
    decode_window: int  # the same, each row cut to the model's window (0 or ignored without one)


class DecodeAffine(NamedTuple):
    """Seconds of a decode-only step: base + context tokens * per context + window tokens * per window."""

    base_s: float
    per_context_token_s: float
    per_window_token_s: float


class Curve:
    """A rising piecewise linear curve: constant before the first point, extended after the last."""

    __slots__ = ("_slopes", "_xs", "_ys")

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._xs = [x for x, _ in points]
        self._ys = [y for _, y in points]
        slopes = [
            (y1 - y0) / (x1 - x0)
            for x0, x1, y0, y1 in zip(self._xs, self._xs[1:], self._ys, self._ys[1:], strict=False)
        ]
        self._slopes = [*slopes, slopes[-1] if slopes else 0.0]

    def __call__(self, x: float) -> float:
        if x <= self._xs[0]:
            return self._ys[0]
        at = bisect_right(self._xs, x) - 1
        return self._ys[at] + self._slopes[at] * (x - self._xs[at])


class CostModel:
    """Step times from one profile. Build it once a run: it keeps a decode step's coefficients by batch size."""

    def __init__(
        self,
        profile: Profile,
        geometry: Geometry,
        hardware: Hardware,
        *,
        tensor_parallel: int = 1,
        kv_dtype: str = "bfloat16",
    ) -> None:
        profile.require(geometry, f"profile {profile.name}")
        self.profile = profile = profile.with_kv(kv_dtype)
        notes = []
        if tensor_parallel > 1:
            notes.append(
                f"tensor_parallel {tensor_parallel}: step times derived by division, all-reduce assumed"
            )
        if kv_dtype != profile.kv_dtype:
            notes.append(f"kv_dtype {kv_dtype}: decode attention derived from {profile.kv_dtype} by bytes")
        self.notes = tuple(notes)  # parts of this run that are derived, whatever the profile's own evidence
        self._geometry = geometry
        self._window = geometry.window or 0
        self._tp = tensor_parallel
        kv_share = geometry.kv_heads_per_gpu(tensor_parallel) / geometry.kv_heads
        # Attention reads KV bytes, so its time a token scales with their number.
        self._kv_scale = kv_share * kv_dtype_bytes(kv_dtype) / kv_dtype_bytes(profile.kv_dtype)
        self._dense = Curve(profile.dense.points)
        self._moe = Curve(profile.moe.points) if profile.moe else Curve([(1.0, 0.0)])
        self._moe_tokens = profile.moe.ranges.get("tokens", _ANY)[1] if profile.moe else inf
        self._lm_head = Curve(profile.lm_head.points)
        self._decode_full = Curve(profile.decode_full.points)
        self._decode_sliding = Curve(profile.decode_sliding.points) if profile.decode_sliding else None
        self._fixed = profile.step.fixed_s + geometry.layers * profile.step.per_layer_s
        self._all_reduce_s, self._all_reduce_per_token_s = self._all_reduce(geometry, hardware)
        self._decode: dict[int, DecodeAffine] = {}

    def _all_reduce(self, geometry: Geometry, hardware: Hardware) -> tuple[float, float]:
        """Compute seconds a step and seconds a token of two ring all-reduces of 16-bit activations a layer."""
        if self._tp == 1:
            return 0.0, 0.0
        count, share = 2 * geometry.layers, 2 * (self._tp - 1) / self._tp
        return count * ALL_REDUCE_S, count * share * 2 * geometry.hidden / hardware.link_bandwidth

    def step_s(self, work: StepWork) -> float:
        """Compute the seconds of one step; they are positive for any work, even none."""
        if not work.prefill:
            base, per_context, per_window = self.decode_affine(work.decode_requests)
            return base + per_context * work.decode_context + per_window * work.decode_window
        return self._mixed_s(work)

    def decode_affine(self, requests: int) -> DecodeAffine:
        """Compute the coefficients of a decode-only step of `requests` requests."""
        known = self._decode.get(requests)
        if known is None:
            base = self._common_s(requests, requests) + self._decode_base_s(requests)
            known = self._decode[requests] = DecodeAffine(base, *self._decode_slopes(requests))
        return known

    def _common_s(self, tokens: int, rows: int) -> float:
        """Compute the seconds of everything but attention."""
        if not tokens:
            return self._fixed
        split = self._geometry.layers * (self._dense(tokens) + self._moe(tokens)) + self._lm_head(rows)
        return self._fixed + split / self._tp + self._all_reduce_s + tokens * self._all_reduce_per_token_s

    def _decode_base_s(self, requests: int) -> float:
        if not requests:
            return 0.0
        base = self._geometry.full_layers * self._decode_full(requests)
        if self._decode_sliding is not None:
            base += self._geometry.sliding_layers * self._decode_sliding(requests)
        return base

    def _decode_slopes(self, requests: int) -> tuple[float, float]:
        """Compute the seconds a token of context and a token of window, over all layers."""
        if not requests:
            return 0.0, 0.0
        profile = self.profile
        full = self._geometry.full_layers * profile.decode_full.per_token_s * self._kv_scale
        sliding = profile.decode_sliding.per_token_s if profile.decode_sliding else 0.0
        return full, self._geometry.sliding_layers * sliding * self._kv_scale

    def _mixed_s(self, work: StepWork) -> float:
        new = before = full_pairs = sliding_pairs = 0
        for tokens, prefix in work.prefill:
            new += tokens
            before += prefix
            full_pairs += tokens * prefix + tokens * (tokens + 1) // 2
            sliding_pairs += window_pairs(tokens, prefix, self._window)
        rows, requests = len(work.prefill), work.decode_requests
        seconds = self._common_s(new + requests, rows + requests) + self._decode_base_s(requests)
        per_context, per_window = self._decode_slopes(requests)
        seconds += per_context * work.decode_context + per_window * work.decode_window
        full, sliding = self.profile.prefill_full, self.profile.prefill_sliding
        prefix_s = before * self.profile.prefix_read.per_token_s * self._kv_scale
        layers = self._geometry.full_layers
        seconds += layers * (self._prefill_s(full, work.prefill, new, full_pairs) + prefix_s)
        if sliding is not None:
            layers = self._geometry.sliding_layers
            seconds += layers * self._prefill_s(sliding, work.prefill, new, sliding_pairs)
        return seconds

    def _prefill_s(self, term: PrefillTerm, rows: Sequence[tuple[int, int]], new: int, pairs: int) -> float:
        split = (new * term.per_token_s + pairs * term.per_pair_s) / self._tp
        seconds = term.fixed_s + len(rows) * term.per_request_s + split
        if term.per_wave_s:
            tiles = sum([ceil(tokens / term.tile_tokens) for tokens, _ in rows])
            seconds += max(0, ceil(tiles / (term.tiles_at_once * self._tp)) - 1) * term.per_wave_s
        return seconds

    def out_of_range(self, work: StepWork) -> tuple[str, ...]:
        """List where this step leaves the measured ranges; sizes are rounded up to powers of two, so that texts repeat."""
        names: list[str] = []
        requests = work.decode_requests
        if requests and self.profile.decode_full.frontier:
            left = _left_frontier(self.profile.decode_full, requests, work.decode_context / requests)
            if left:
                names.append(left)
        tokens = requests + sum([new for new, _ in work.prefill])
        if tokens > self._moe_tokens:
            names.append(f"moe: {_up(tokens)} tokens a step: measured to {self._moe_tokens:g}")
        ranges = self.profile.prefill_full.ranges
        if ranges and work.prefill:
            longest = max(new for new, _ in work.prefill)
            if longest > ranges["new_tokens"][1]:
                names.append(
                    f"prefill attention: {_up(longest)} new tokens: measured to {ranges['new_tokens'][1]:g}"
                )
            if any(prefix for _, prefix in work.prefill):
                names.append("prefill attention behind a prefix: not measured, derived")
        return tuple(names)


def window_pairs(new: int, before: int, window: int) -> int:
    """Count pairs of a new token and one of the last `window` tokens up to it, for `new` tokens after `before`."""
    growing = min(new, max(0, window - before - 1))  # new tokens that see themselves and all tokens before them
    return growing * before + growing * (growing + 1) // 2 + (new - growing) * window


def _up(number: float) -> str:
    """Round a size up to a power of two, for a sentence: 24,000 -> 32K."""
    size = 1 << max(0, int(number) - 1).bit_length()
    return f"{size // 1024}K" if size >= 1024 else str(size)


def _left_frontier(term: DecodeTerm, requests: int, context: float) -> str | None:
    at = bisect_left(term.frontier, (requests, 0.0))
    if at < len(term.frontier) and context <= term.frontier[at][1]:
        return None
    return _beyond(_up(requests), _up(context), term.frontier[min(at, len(term.frontier) - 1)])


@cache
def _beyond(requests: str, context: str, reach: tuple[float, float]) -> str:
    return (
        f"decode attention: {requests} requests at {context} context: "
        f"measured to batch {reach[0]:g} at {_up(reach[1])}"
    )


def profile(model: str, gpu: str, name: str = "auto") -> Profile:
    """Find the profile for a model and a GPU, both given as scenario values.

    `name` is `auto` (the shipped default of the pair, else the roofline), `roofline`, the name of a shipped
    profile, or a path to a YAML file. InputError: no such profile, or one of another pair.
    """
    shape, device = geometry(model), hardware(gpu)
    if name == "auto":
        default = [each for each in shipped_profiles(shape.name, gpu) if each.auto is not None]
        return default[0] if default else roofline(shape, device)
    if name == "roofline":
        return roofline(shape, device)
    if name.endswith((".yaml", ".yml")):
        found = load_profile(Path(name))
    else:
        shipped = {each.name: each for each in shipped_profiles()}
        if name not in shipped:
            raise InputError(
                f"engine.profile {name!r} is unknown; choose auto, roofline, a path to a .yaml file, or one of "
                f"{', '.join(shipped)}"
            )
        found = shipped[name]
    if (found.model, found.gpu) != (shape.name, gpu):
        raise InputError(
            f"engine.profile {name!r} is for {found.model} on {found.gpu}, not {shape.name} on {gpu}; "
            "use auto or roofline"
        )
    found.require(shape, name)
    return found
