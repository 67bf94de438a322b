# SPDX-License-Identifier: Apache-2.0
"""Tiny models that SGLang serves on a CPU: a `config.json` each; their weights are random (load format dummy).

sqsim knows the same shapes under the same names, so a real and a simulated run use the same model.
"""

from __future__ import annotations

import json
from pathlib import Path

from sqsim.errors import InputError
from sqsim.models.cost.known_models import KNOWN_MODELS

# Keys that SGLang and transformers read in addition to the shape.
_DENSE = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT_OSS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "swiglu_limit": 7.0,
    "experts_per_token": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
TINY_MODELS: dict[str, dict[str, object]] = {
    "tiny-llama": {"model_type": "llama", **_DENSE},
    "tiny-qwen3": {"model_type": "qwen3", **_DENSE},
    "tiny-gpt-oss": {"model_type": "gpt_oss", **_GPT_OSS},
}


def write_tiny_model(name: str, directory: Path) -> Path:
    """Write a tiny model's directory and return it; writing it again gives the same bytes."""
    if name not in TINY_MODELS:
        raise InputError(f"{name!r} is not a tiny model; choose one of {', '.join(TINY_MODELS)}")
    config = {**KNOWN_MODELS[name], **TINY_MODELS[name]}
    path = directory / "config.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; give another directory") from error
    return directory
