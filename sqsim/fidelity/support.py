# SPDX-License-Identifier: Apache-2.0
"""Coverage: the evidence that a prediction would rest on, for every known model and GPU."""

from __future__ import annotations

from typing import Any

from sqsim.errors import InputError
from sqsim.models.cost.hardware import HARDWARE, Hardware
from sqsim.models.cost.known_models import KNOWN_MODELS
from sqsim.models.cost.profile import shipped_profiles
from sqsim.models.cost.uncertainty import describe_uncertainty
from sqsim.scenario.engine import Engine
from sqsim.scenario.resolved import Resolved


def support() -> list[dict[str, Any]]:
    """Build one JSON-able row a model and GPU, for its `auto` profile at a scenario's defaults.

    `evidence`: term -> measured | derived | assumed | published; `ranges`: term -> quantity -> [smallest,
    largest] measured; `held_out_error`: term -> mean absolute relative error on rows that the fit never saw;
    `in_doubt`: term -> the uncertainty that `sqsim run --bands` draws from;
    `kv_capacity_tokens` is None where the model does not fit, and `kv_capacity` then states why;
    `other_profiles`: names that `engine.profile` takes besides `auto`.
    """
    return [_row(model, gpu) for model in KNOWN_MODELS for gpu in HARDWARE.values()]


def _row(model: str, gpu: Hardware) -> dict[str, Any]:
    resolved = Resolved(model, Engine(gpu=gpu.name))
    shape, auto = resolved.geometry, resolved.profile
    try:
        tokens, how = resolved.kv_capacity.tokens, resolved.kv_capacity.how
    except InputError as error:
        tokens, how = None, str(error)
    terms = auto.terms()
    others = [each.name for each in shipped_profiles(shape.name, gpu.name) if each.name != auto.name]
    if auto.auto is not None:
        others.append("roofline")
    return {
        "model": model,
        "gpu": gpu.name,
        "profile": auto.name,
        "why": auto.auto or "no measured profile is the default for this pair",
        "engine": auto.engine,
        "version": auto.version,
        "note": auto.note,
        "evidence": auto.evidence(),
        "sources": {name: term.source for name, term in terms.items()},
        "ranges": {
            name: {key: list(ends) for key, ends in term.ranges.items()}
            for name, term in terms.items()
            if term.ranges
        },
        "held_out_error": {name: term.fit.held_out_mean_abs_error for name, term in terms.items() if term.fit},
        "in_doubt": describe_uncertainty(auto),
        "weights": auto.weights,
        "weight_bytes": resolved.weight_bytes,
        "kv_capacity_tokens": tokens,
        "kv_capacity": how,
        "other_profiles": others,
    }
