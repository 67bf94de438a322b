# SPDX-License-Identifier: Apache-2.0
"""Scenario made from a running server: its model, capacity, page size and limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from sqreal.server.server import ServerInfo
from sqreal.setup.install import cuda_devices
from sqreal.setup.tiny_models import TINY_MODELS
from sqsim.errors import InputError
from sqsim.models.cost.hardware import HARDWARE
from sqsim.models.cost.known_models import KNOWN_MODELS
from sqsim.scenario.scenario import make_scenario

TRACES = "traces.jsonl.zst"
"""Placeholder for the traces until the user names some."""

_GPUS = {  # the driver's name -> ours
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA B200": "b200-sxm",
}
_KV_DTYPES = {"bf16": "bfloat16", "half": "float16", "float": "float32"}
_MODELLED: Mapping[str, object] = {
    "schedule_policy": "fcfs",
    "retraction_policy": "length",
    "radix_eviction_policy": "lru",
    "dp_size": 1,
    "pp_size": 1,
    "num_continuous_decode_steps": 1,
    "max_prefill_tokens": 16384,
    "enable_mixed_chunk": False,
    "enable_priority_scheduling": False,
    "enable_hierarchical_cache": False,
    "enable_dynamic_chunking": False,
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "speculative_algorithm": None,
    "disaggregation_mode": "null",
    "prefill_max_requests": None,
}
"""Settings of a server that a scenario cannot state, with the values that a simulation assumes."""


def scenario_text(
    info: ServerInfo, url: str, *, traces: str = TRACES, model: str | None = None, gpu: str | None = None
) -> str:
    """Write the scenario as YAML; comments above it list the settings that it cannot state.

    An InputError where the server reports no GPU or model that can be used here.
    """
    content = {
        "traces": traces,
        "model": model if model is not None else _model(info),
        "engine": _engine(info, url, gpu),
        "load": {"concurrency": 24},
        "policy": {"name": "none"},
        "seed": 0,
    }
    make_scenario(content, where=f"{url}/server_info")  # raises if the text cannot be read
    notes = [f"from {url}: SGLang {info.version}, {info.model}"]
    notes += [f"not in a scenario, and not simulated: {note}" for note in unmodelled(info)]
    if traces == TRACES:
        notes.append("name your traces here")
    header = "".join(f"# {note}\n" for note in notes)
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)


def unmodelled(info: ServerInfo) -> list[str]:
    """List the server's settings that a simulation does not model, as `name: value`."""
    expected = {**_MODELLED, "radix_cache_backend": "sidequest" if info.in_place else None}
    return [
        f"{name}: {info.raw[name]}"
        for name, value in expected.items()
        if name in info.raw and info.raw[name] != value
    ]


def _engine(info: ServerInfo, url: str, gpu: str | None) -> dict[str, Any]:
    shape = {
        "gpu": gpu or _gpu(info, url),
        "tensor_parallel": info.tensor_parallel,
        "kv_dtype": _kv_dtype(info),
        "kv_capacity": info.kv_capacity,
        "page_size": info.page_size,
        "max_running": info.max_running,
        "chunked_prefill": _chunk(info),
        "schedule_conservativeness": float(info.schedule_conservativeness),
        "cache": "session" if info.in_place else "radix",
    }
    if info.context_length is not None:
        shape["context_length"] = info.context_length
    if info.device != "cpu" and info.mem_fraction is not None:
        shape["mem_fraction"] = info.mem_fraction
    if info.swa_capacity is not None:
        shape["swa_full_tokens_ratio"] = info.swa_full_tokens_ratio
    if info.raw.get("disable_hybrid_swa_memory"):
        shape["swa_pool"] = False
    return shape


def _chunk(info: ServerInfo) -> int:
    """Return the chunk size; where the server does not chunk, the smallest one that never cuts a prompt."""
    if info.chunked_prefill is not None and info.chunked_prefill > 0:
        return info.chunked_prefill
    longest = info.context_length or info.kv_capacity
    return -(-longest // info.page_size) * info.page_size


def _model(info: ServerInfo) -> str:
    if _base(info) in TINY_MODELS:
        return _base(info)  # its directory may be the server's own and end with it
    config = Path(info.model) / "config.json"
    if config.is_file():
        return str(config)
    if _base(info) in KNOWN_MODELS:
        return _base(info)
    raise InputError(
        f"the server's model {info.model} is neither a directory here nor a known model; "
        f"give --model the path of its config.json, or one of {', '.join(KNOWN_MODELS)}"
    )


def _gpu(info: ServerInfo, url: str) -> str:
    if info.device == "cpu":
        return "cpu"
    here = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    found = cuda_devices() if here else []
    if found and found[0] in _GPUS:
        return _GPUS[found[0]]
    seen = f" (this machine has {', '.join(found)})" if found else ""
    raise InputError(
        f"SGLang does not report which GPU the server at {url} runs on{seen}; give --gpu, one of {', '.join(HARDWARE)}"
    )


def _kv_dtype(info: ServerInfo) -> str:
    """Return the KV format: as set, else the model's own, else bfloat16."""
    for dtype in (info.kv_dtype, info.dtype):
        if dtype != "auto":
            return _KV_DTYPES.get(dtype, dtype)
    path = Path(info.model) / "config.json"
    config = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else KNOWN_MODELS.get(_base(info), {})
    )
    return str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")


def _base(info: ServerInfo) -> str:
    """Return the last part of the model's path or hub name, the form of known models' names."""
    return info.model.rstrip("/").rpartition("/")[2].lower()
