# SPDX-License-Identifier: Apache-2.0
"""Make the measured cost profiles of gpt-oss-20b from the kernel timings in data/, with 16-bit and with 8-bit KV.

    python reports/profiles/make_profiles.py            # writes sqsim/models/cost/profiles/*.yaml
    python reports/profiles/make_profiles.py --check    # says which differ from what is committed; writes nothing

Attention is fitted by non-negative least squares on relative errors, MoE is a table. A fifth of the rows (by
the sha256 of the CSV line) is held out: the errors that a profile states are of a fit without those rows;
the values that it ships are then fitted to all rows. What no row covers (projections at hidden size 2880, the
output projection, reading a prefix) is the roofline's, and marked so.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sqsim.models.cost import roofline
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.hardware import hardware
from sqsim.models.cost.profile import (
    CurveTerm,
    DecodeTerm,
    EightBitKv,
    Fit,
    PrefillTerm,
    PrefixTerm,
    Profile,
    profile_text,
)
from sqsim.models.cost.step_cost import Curve, window_pairs

HERE = Path(__file__).parent
PROFILES = HERE.parents[1] / "sqsim" / "models" / "cost" / "profiles"
MADE_BY = "reports/profiles/make_profiles.py; do not edit"
MODEL = "gpt-oss-20b"
MAX_REQUESTS = 256  # SGLang's default max_running, and the batches that are captured as CUDA graphs
KINK = 16  # requests: below, decode attention is bound by its launch
WINDOW = geometry(MODEL).window or 0
TILE_ROWS = 192
"""Rows of a tile of FlashAttention 3 at head dimension 64 (its hopper/tile_size.h); the query heads of a KV head are rows."""
MULTIPROCESSORS = 132
"""Of an H100 or H200 (SXM): tiles that are computed at a time."""
KV_DTYPES = {"bfloat16": "bfloat16", "fp8_e4m3": "fp8"}
"""KV dtype of a scenario -> the rows' name."""

Row = dict[str, str]
Vector = NDArray[np.float64]


class Moe(NamedTuple):
    """One MoE kernel: the source of its rows, how it holds its experts, the name of its profile."""

    engine: str
    weights: str
    label: str
    auto: str | None
    shown_by: str


MOES = (
    Moe(
        "SGLang",
        "bfloat16",
        "fa3-bf16moe-sglang",
        None,
        "look at its log: without the line 'enabling triton_kernels MOE kernel' it has upcast the experts to bfloat16, and "
        "max_total_num_tokens is smaller",
    ),
    Moe(
        "VLLM",
        "mxfp4",
        "fa3-mxfp4moe-vllm",
        "SGLang 0.5.23 takes the native MXFP4 kernels (moe_runner_backend triton_kernel) for gpt-oss on this GPU where the "
        "package triton_kernels is installed, which SGLang's kernel wheel brings along, and neither --quantization nor expert "
        "parallelism is asked for (arg_groups/model_overrides/gpt_oss.py); its log then says 'enabling triton_kernels MOE "
        "kernel'. Else it upcasts the experts to bfloat16: use the bf16moe profile; max_total_num_tokens tells the two apart. "
        "These kernels were measured in vLLM",
        "look at its log: 'Detected GPT-OSS model, enabling triton_kernels MOE kernel'",
    ),
)


# --- rows ---


def read(name: str) -> list[tuple[str, Row]]:
    """Read (the CSV line, its columns) of a file in data/."""
    lines = (HERE / "data" / name).read_text(encoding="utf-8").splitlines()
    return list(zip(lines[1:], csv.DictReader(lines), strict=True))


def held_out(line: str) -> bool:
    return int(hashlib.sha256(line.encode()).hexdigest(), 16) % 5 == 0


def column(rows: Iterable[tuple[str, Row]], *names: str) -> Vector:
    """Sum integer columns, by row."""
    return np.array([sum(int(row[name]) for name in names) for _, row in rows], dtype=float)


def seconds(rows: Iterable[tuple[str, Row]]) -> Vector:
    return np.array([float(row["latency"]) * 1e-3 for _, row in rows])


def attention(gpu: str, operation: str, window: int, kv: str = "bfloat16") -> list[tuple[str, Row]]:
    rows = read(f"gpt_oss_20b_{gpu.replace('-', '_')}_attention.csv")
    wanted = (operation, str(window), KV_DTYPES[kv])
    return [
        (line, row)
        for line, row in rows
        if (row["op_name"], row["window_size"], row["kv_cache_dtype"]) == wanted
    ]


# --- fits ---


def span(values: Vector) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def rounded(value: float) -> float:
    """Round to five significant digits: more than the rows carry, and the same on every machine."""
    return float(f"{value:.5g}")


def spread(rows: list[tuple[str, Row]], predicted: Vector, held: Vector) -> float:
    """Return the root mean square of the relative errors on the rows that the fit never saw."""
    off = (predicted / seconds(rows) - 1)[held == 1]
    return rounded(float(np.sqrt(np.mean(off**2))))


def errors(rows: list[tuple[str, Row]], predicted: Vector, held: Vector) -> Fit:
    """Return the relative errors on both sides of the split."""
    off = np.abs(predicted / seconds(rows) - 1)
    kept, out = off[held == 0], off[held == 1]
    return Fit(
        rows=len(kept),
        mean_abs_error=rounded(kept.mean()),
        held_out_rows=len(out),
        held_out_mean_abs_error=rounded(out.mean()) if len(out) else None,
        held_out_max_abs_error=rounded(out.max()) if len(out) else None,
    )


class Regression(NamedTuple):
    """Coefficients by name, their covariance in that order, and their errors."""

    values: dict[str, float]
    covariance: Vector
    fit: Fit
    spread: float

    def said(self, rows: list[tuple[str, Row]], numbers: dict[str, list[float]]) -> dict[str, Any]:
        """Return a term's rows, fit and spread. `numbers`: path -> the coefficients' shares in a number that it ships."""
        shares = np.array(list(numbers.values()))
        covariance = shares @ self.covariance @ shares.T
        covariance = [[rounded(value) for value in line] for line in covariance]
        fit = self.fit.model_copy(update={"names": list(numbers), "covariance": covariance})
        return {**said(rows, fit), "spread": self.spread}


def regress(rows: list[tuple[str, Row]], features: dict[str, Vector]) -> Regression:
    """Fit non-negative coefficients that minimise squared relative errors."""
    matrix, measured = np.stack(list(features.values()), axis=1), seconds(rows)
    held = np.array([held_out(line) for line, _ in rows], dtype=float)
    relative = matrix / measured[:, None]

    train, _ = nnls(relative[held == 0], np.ones(int((held == 0).sum())))
    values, _ = nnls(relative, np.ones(len(rows)))

    active = np.flatnonzero(values > 0)  # a coefficient at its bound of zero has no variance of its own
    used = relative[:, active]
    variance = float(np.sum((used @ values[active] - 1) ** 2) / (len(rows) - len(active)))
    covariance = np.zeros((len(values), len(values)))
    covariance[np.ix_(active, active)] = variance * np.linalg.inv(used.T @ used)
    predicted = matrix @ train
    named = dict(zip(features, map(rounded, values), strict=True))
    return Regression(named, covariance, errors(rows, predicted, held), spread(rows, predicted, held))


def decode_rows(gpu: str, window: int, kv: str = "bfloat16") -> list[tuple[str, Row]]:
    """Read decode rows of batches up to the size that a server runs."""
    rows = attention(gpu, "generation_attention", window, kv)
    return [(line, row) for line, row in rows if int(row["batch_size"]) <= MAX_REQUESTS]


def decode_features(rows: list[tuple[str, Row]], window: int) -> dict[str, Vector]:
    """Return launch floor, requests, requests above the kink, tokens of KV read."""
    requests, context = column(rows, "batch_size"), column(rows, "isl", "step")
    return {
        "fixed_s": np.ones(len(rows)),
        "per_request_s": requests,
        "per_request_beyond_s": np.maximum(0, requests - KINK),
        "per_token_s": requests * (np.minimum(context, window) if window else context),
    }


def decode(gpu: str, window: int, kv: str = "bfloat16") -> DecodeTerm:
    """Fit the decode attention of a layer."""
    rows = decode_rows(gpu, window, kv)
    requests, context = column(rows, "batch_size"), column(rows, "isl", "step")
    found = regress(rows, decode_features(rows, window))
    term = f"decode_{'sliding' if window else 'full'}"
    counts = (1, KINK, MAX_REQUESTS)
    numbers = {
        f"{term}.points.{at}": [1.0, count, max(0, count - KINK), 0.0] for at, count in enumerate(counts)
    }
    values = np.array(list(found.values.values()))
    return DecodeTerm(
        **found.said(rows, {**numbers, f"{term}.per_token_s": [0.0, 0.0, 0.0, 1.0]}),
        ranges={"requests": span(requests), "context_tokens": span(context)},
        points=[
            (float(count), rounded(float(shares @ values)))
            for count, shares in zip(counts, map(np.array, numbers.values()), strict=True)
        ],
        per_token_s=found.values["per_token_s"],
        frontier=[] if window else frontier(requests, context),
    )


def frontier(requests: Vector, context: Vector) -> list[tuple[float, float]]:
    """Return, for each batch size, the largest context measured at that many requests or more."""
    sizes = sorted(set(requests))
    return [(float(size), float(context[requests >= size].max())) for size in sizes]


def prefill_features(rows: list[tuple[str, Row]], window: int) -> dict[str, Vector]:
    """Return launch floor, requests, new tokens, pairs of a new token and one that it attends to, waves after the first."""
    requests, length = column(rows, "batch_size"), column(rows, "isl")
    pairs = np.array([window_pairs(int(new), 0, window or int(new)) for new in length], dtype=float)
    return {
        "fixed_s": np.ones(len(rows)),
        "per_request_s": requests,
        "per_token_s": requests * length,
        "per_pair_s": requests * pairs,
        "per_wave_s": np.ceil(requests * np.ceil(length / tile_tokens()) / tiles_at_once()) - 1,
    }


def tile_tokens() -> float:
    """Return the new tokens of a tile: its rows over the query heads that share a KV head."""
    shape = geometry(MODEL)
    return TILE_ROWS * shape.kv_heads / shape.heads


def tiles_at_once() -> float:
    """Return the tiles a KV head that are computed at a time."""
    return MULTIPROCESSORS / geometry(MODEL).kv_heads


def prefill(gpu: str, window: int, kv: str = "bfloat16") -> PrefillTerm:
    """Fit the prefill attention of a layer."""
    rows = attention(gpu, "context_attention", window, kv)
    features = prefill_features(rows, window)
    found = regress(rows, features)
    term = f"prefill_{'sliding' if window else 'full'}"
    numbers = {
        f"{term}.{name}": list(shares) for name, shares in zip(features, np.eye(len(features)), strict=True)
    }
    ranges = {
        "requests": span(column(rows, "batch_size")),
        "new_tokens": span(column(rows, "isl")),
        "prefix_tokens": (0.0, 0.0),
    }
    tiles = {"tile_tokens": tile_tokens(), "tiles_at_once": tiles_at_once()}
    return PrefillTerm(**found.said(rows, numbers), ranges=ranges, **tiles, **found.values)


def eight_bit(gpu: str) -> EightBitKv:
    """Fit the terms of attention with 8-bit KV."""
    kv = "fp8_e4m3"
    full = decode(gpu, 0, kv)
    return EightBitKv(
        decode_full=full,
        decode_sliding=decode(gpu, WINDOW, kv),
        prefill_full=prefill(gpu, 0, kv),
        prefill_sliding=prefill(gpu, WINDOW, kv),
        prefix_read=prefix(full),
    )


def prefix(full: DecodeTerm) -> PrefixTerm:
    return PrefixTerm(
        evidence="derived",
        source="no row has a prefix: its KV is read at the rate that decode attention reads KV",
        per_token_s=full.per_token_s,
    )


def moe_rows(gpu: str, engine: str, routing: str = "power_law") -> list[tuple[str, Row]]:
    """Read the MoE rows, by default of the two skewed routings (power laws 1.01 and 1.2) that were measured.

    Balanced routing would touch all 32 experts from 8 tokens on, which no router does.
    """
    return [
        (line, row)
        for line, row in read(f"gpt_oss_20b_{gpu.replace('-', '_')}_moe.csv")
        if row["framework"] == engine and row["distribution"].startswith(routing)
    ]


def moe(gpu: str, engine: str) -> CurveTerm:
    """Make a table by tokens: the mean over the skewed routings."""
    rows = moe_rows(gpu, engine)
    tokens, held = column(rows, "num_tokens"), np.array([held_out(line) for line, _ in rows], dtype=float)
    curve = Curve(table(tokens[held == 0], seconds(rows)[held == 0]))
    predicted = np.array([curve(count) for count in tokens])
    return CurveTerm(
        **said(rows, errors(rows, predicted, held), ", power-law routing, mean of exponents 1.01 and 1.2"),
        spread=spread(rows, predicted, held),
        ranges={"tokens": span(tokens)},
        points=table(tokens, seconds(rows)),
    )


def table(tokens: Vector, times: Vector) -> list[tuple[float, float]]:
    """Return the mean time by token count, made non-decreasing (a larger step is never faster)."""
    counts = np.unique(tokens)
    means = np.maximum.accumulate([times[tokens == count].mean() for count in counts])
    return [(float(count), rounded(mean)) for count, mean in zip(counts, means, strict=True)]


def said(rows: list[tuple[str, Row]], fit: Fit, what: str = "") -> dict[str, Any]:
    row = rows[0][1]
    kv = ", 8-bit KV" if row.get("kv_cache_dtype") == "fp8" else ""
    source = (
        f"{row['framework']} {row['version']}, {row['kernel_source']}, {row['op_name']}{kv}, {row['device']}{what}; "
        "rows of aiconfigurator-core 0.12.0 (reports/profiles/data)"
    )
    return {"evidence": "measured", "source": source, "fit": fit}


# --- profiles ---


def make(gpu: str, kernel: Moe) -> Profile:
    shape, device = geometry(MODEL), hardware(gpu)
    full = decode(gpu, 0)
    mixes = kernel.engine != "SGLang"
    return Profile(
        schema="sqsim-profile/1",
        name=f"{MODEL}-{gpu}-{kernel.label}",
        model=MODEL,
        gpu=gpu,
        engine="sglang attention, vllm moe" if mixes else "sglang",
        version="sglang 0.5.14, vllm 0.24.0" if mixes else "0.5.14",
        weights=kernel.weights,
        kv_dtype="bfloat16",
        note=(
            "FA3 attention; the native MXFP4 MoE kernel (13.8 GB of weights), measured in vLLM"
            if mixes
            else "FA3 attention; SGLang's fused Triton MoE kernel on experts upcast to bfloat16 (41.8 GB of weights)"
        )
        + ". Kernel timings repeat one shape, so KV of up to some 24K tokens may have come from the L2 cache.",
        auto=kernel.auto,
        shown_by=kernel.shown_by,
        step=roofline.step_term(),
        dense=rounded_term(roofline.dense_term(shape, device)),
        moe=moe(gpu, kernel.engine),
        lm_head=rounded_term(roofline.lm_head_term(shape, device)),
        decode_full=full,
        decode_sliding=decode(gpu, WINDOW),
        prefill_full=prefill(gpu, 0),
        prefill_sliding=prefill(gpu, WINDOW),
        prefix_read=prefix(full),
        eight_bit_kv=eight_bit(gpu),
    )


def rounded_term(term: CurveTerm) -> CurveTerm:
    return term.model_copy(update={"points": [(rounded(x), rounded(y)) for x, y in term.points]})


def all_profiles() -> dict[str, str]:
    """Return file name -> text of every measured profile."""
    made = (make(gpu, kernel) for gpu in ("h100-sxm", "h200-sxm") for kernel in MOES)
    return {f"{profile.name}.yaml": profile_text(profile, MADE_BY) for profile in made}


def main() -> int:
    differing = 0
    for name, text in all_profiles().items():
        path = PROFILES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing += 1
            print(f"{'differs' if '--check' in sys.argv else 'written'}: {path}")
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    return 1 if differing and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
