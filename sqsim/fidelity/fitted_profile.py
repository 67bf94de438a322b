# SPDX-License-Identifier: Apache-2.0
"""A cost profile written from coefficients that were fitted to real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from sqsim.fidelity.step_fit import StepFit
from sqsim.fidelity.step_times import StepTimes
from sqsim.models.cost.geometry import Geometry
from sqsim.models.cost.profile import (
    ClientTerm,
    CurveTerm,
    DecodeTerm,
    Fit,
    PrefillTerm,
    PrefixTerm,
    Profile,
    StepTerm,
)


def _numbers(shape: Geometry) -> dict[str, tuple[str, float]]:
    """Map each number of a profile, by its path, to the coefficient that it is a share of, and that share.

    In a model with sliding layers, pairs of a prefill's tokens are charged to every layer, and all other work to the full
    layers.
    """
    full = 1.0 / max(1, shape.full_layers)
    found = {
        "step.fixed_s": ("step", 1.0),
        "decode_full.points.1": ("decode_requests", full),
        "decode_full.per_token_s": ("decode_context", full),
        "prefill_full.fixed_s": ("prefill", full),
        "prefill_full.per_request_s": ("prefill_rows", full),
        "prefill_full.per_token_s": ("prefill_tokens", full),
        "prefill_full.per_pair_s": ("prefill_pairs", 1.0 / shape.layers),
        "prefix_read.per_token_s": ("prefix_tokens", full),
    }
    if shape.sliding_layers:
        found["decode_sliding.per_token_s"] = ("decode_window", 1.0 / shape.sliding_layers)
        found["prefill_sliding.per_pair_s"] = ("prefill_pairs", 1.0 / shape.layers)
    return found


def _fit(fitted: StepFit, numbers: Mapping[str, tuple[str, float]]) -> Fit:
    """Describe the fit: its errors, and the covariance of the profile's numbers."""
    shares = np.array(
        [
            [share if name == coefficient else 0.0 for name in fitted.names]
            for coefficient, share in numbers.values()
        ]
    )
    covariance = shares @ fitted.covariance @ shares.T
    held = fitted.held_out
    return Fit(
        rows=fitted.kept,
        mean_abs_error=rounded(fitted.mean_abs_error),
        held_out_rows=sum(score.steps for score in held),
        held_out_mean_abs_error=rounded(fmean(score.mean_abs_error for score in held)),
        held_out_max_abs_error=rounded(max(abs(score.total_error) for score in held)),
        names=list(numbers),
        covariance=[[rounded(x) for x in line] for line in covariance],
    )


def fitted_profile(
    name: str,
    shape: Geometry,
    gpu: str,
    run: Mapping[str, Any],
    fitted: StepFit,
    runs: Sequence[StepTimes],
) -> Profile:
    """Build the profile called `name` from fitted coefficients. `run` is one run's run.json, `runs` are the steps fitted to."""
    server = run["server"]
    source = (
        f"{len(runs)} runs of SGLang {run['versions']['sglang']} on {server['device']}, {server['dtype']}, "
        f"attention {server['attention_backend']}; fitted to whole steps by `sqsim calibrate`"
    )
    works = [step.work for each in runs for step in each.steps]
    ranges = {
        "requests": _span(work.decode_requests for work in works if work.decode_requests),
        "context_tokens": _span(
            work.decode_context / work.decode_requests for work in works if work.decode_requests
        ),
    }
    prefill_ranges = {
        "requests": _span(len(work.prefill) for work in works if work.prefill),
        "new_tokens": _span(new for work in works for new, _ in work.prefill),
        "prefix_tokens": _span(before for work in works for _, before in work.prefill),
    }
    nothing = CurveTerm(
        evidence="measured", source="in the terms `step`, `decode_full` and `prefill_full`", points=[(0.0, 0.0)]
    )
    coefficients = dict(zip(fitted.names, map(float, fitted.values), strict=True))
    numbers = {
        path: where for path, where in _numbers(shape).items() if where[0] in coefficients
    }  # with one request in every prefill, the cost of a prefill is part of the cost of a row

    def number(path: str) -> float:
        coefficient, share = numbers.get(path, ("", 0.0))
        return rounded(coefficients.get(coefficient, 0.0) * share)

    said: dict[str, Any] = {"evidence": "measured", "source": source}
    sliding = shape.sliding_layers > 0
    return Profile(
        schema="sqsim-profile/1",
        name=name,
        model=shape.name,
        gpu=gpu,
        engine="sglang",
        version=str(run["versions"]["sglang"]),
        weights=shape.weights,
        kv_dtype=str(run["scenario"]["engine"]["kv_dtype"]).replace("auto", "bfloat16"),
        note="Fitted to the whole steps of real runs; host work, dense layers and sampling are in the terms `step`, "
        "`decode_full` and `prefill_full`.",
        spread=rounded(fitted.spread),
        step=StepTerm(
            **said, fixed_s=max(number("step.fixed_s"), 1e-9), per_layer_s=0.0, fit=_fit(fitted, numbers)
        ),
        dense=nothing,
        moe=nothing if shape.experts else None,
        lm_head=nothing,
        decode_full=DecodeTerm(
            **said,
            ranges=ranges,
            points=[(0.0, 0.0), (1.0, number("decode_full.points.1"))],
            per_token_s=number("decode_full.per_token_s"),
        ),
        decode_sliding=DecodeTerm(
            **said, ranges=ranges, points=[(0.0, 0.0)], per_token_s=number("decode_sliding.per_token_s")
        )
        if sliding
        else None,
        prefill_full=PrefillTerm(
            **said,
            ranges=prefill_ranges,
            fixed_s=number("prefill_full.fixed_s"),
            per_request_s=number("prefill_full.per_request_s"),
            per_token_s=number("prefill_full.per_token_s"),
            per_pair_s=number("prefill_full.per_pair_s"),
        ),
        prefill_sliding=PrefillTerm(
            **said,
            ranges=prefill_ranges,
            fixed_s=0.0,
            per_request_s=0.0,
            per_token_s=0.0,
            per_pair_s=number("prefill_sliding.per_pair_s"),
        )
        if sliding
        else None,
        prefix_read=PrefixTerm(**said, ranges=prefill_ranges, per_token_s=number("prefix_read.per_token_s")),
        client=_client(runs, source),
    )


def rounded(value: float) -> float:
    """Round to 6 significant digits."""
    return float(f"{value:.6g}")


def _span(values: Any) -> tuple[float, float]:
    found = list(values) or [0.0]
    return float(min(found)), float(max(found))


def _client(runs: Sequence[StepTimes], source: str) -> ClientTerm | None:
    """Average the delays of requests without the slowest and fastest tenth: a few wait for others of the same instant.

    The spread is the standard deviation between runs.
    """
    requests = [value for run in runs for value in run.request_s]
    responses = [value for run in runs for value in run.response_s]
    if not requests or not responses:
        return None
    request_s, response_s = (max(0.0, _trimmed(values)) for values in (requests, responses))
    each = [
        _trimmed(run.request_s) + _trimmed(run.response_s) for run in runs if run.request_s and run.response_s
    ]
    both = request_s + response_s
    return ClientTerm(
        evidence="measured",
        source=source,
        spread=rounded(min(2.0, stdev(each) / both)) if len(each) > 1 and both else None,
        request_s=rounded(request_s),
        response_s=rounded(response_s),
    )


def _trimmed(values: Sequence[float]) -> float:
    tenth = len(values) // 10
    return fmean(sorted(values)[tenth : len(values) - tenth])
