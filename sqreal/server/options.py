# SPDX-License-Identifier: Apache-2.0
"""Options of a server, and the command line and environment that they give SGLang."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqreal.errors import ModelPathError
from sqreal.setup.install import CPU_SHIMS, cuda_devices
from sqreal.setup.tiny_models import TINY_MODELS, write_tiny_model
from sqsim.errors import ScenarioError
from sqsim.scenario.scenario import Scenario

Device = Literal["cpu", "cuda"]

_FP8 = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options that decide how a server runs. None: SGLang's own default. Sizes are in tokens."""

    model: Path  # a directory with a config.json
    device: Device = "cpu"
    load_format: str = "auto"  # dummy: random weights, a config.json is enough
    dtype: str = "auto"  # the model's own
    kv_dtype: str = "auto"  # the model's
    attention_backend: str | None = None
    kv_capacity: int | None = None
    mem_fraction: float | None = None
    max_running: int | None = None
    context_length: int | None = None
    page_size: int = 1
    chunked_prefill: int | None = 8192
    schedule_conservativeness: float = 1.0
    swa_full_tokens_ratio: float = 0.8
    swa_pool: bool = True
    tensor_parallel: int = 1
    streaming_sessions: bool = False
    in_place: bool = False  # sessions of the plugin: cut in place, forked, released while idle
    skip_tokenizer: bool = True
    random_seed: int = 0
    spread_router: bool = False  # of random weights: use all experts, as a trained router does
    extra: tuple[str, ...] = ()  # further flags, passed to sglang.launch_server unchanged

    @property
    def plugin_attention(self) -> bool:
        """Whether the plugin's attention is needed: a CPU has none for gpt-oss (sinks and a window)."""
        return self.device == "cpu" and architecture(self.model) == "GptOssForCausalLM"

    def flags(self) -> list[str]:
        """Arguments of sglang.launch_server, except host and port."""
        values: dict[str, object] = {
            "model-path": self.model.resolve(),  # SGLang takes a relative one for a name on a hub
            "device": self.device,
            "load-format": self.load_format,
            "dtype": self.dtype,
            "kv-cache-dtype": self.kv_dtype,
            "attention-backend": self.attention_backend,
            "max-total-tokens": self.kv_capacity,
            "mem-fraction-static": self.mem_fraction,
            "max-running-requests": self.max_running,
            "context-length": self.context_length,
            "page-size": self.page_size,
            "chunked-prefill-size": self.chunked_prefill,
            "schedule-conservativeness": self.schedule_conservativeness,
            "swa-full-tokens-ratio": self.swa_full_tokens_ratio,
            "tp-size": self.tensor_parallel,
            "random-seed": self.random_seed,
            "radix-cache-backend": "sidequest" if self.in_place else None,
        }
        if self.device == "cpu":
            # intel_amx is the one name of a CPU backend that takes a sliding-window model; without its kernels
            # SGLang falls back to torch_native, and the plugin replaces it by attention with sinks and window.
            backend = "intel_amx" if self.plugin_attention else "torch_native"
            values["attention-backend"] = self.attention_backend or backend
            values["sampling-backend"] = "pytorch"
            values["grammar-backend"] = "none"
        switches = {
            "disable-hybrid-swa-memory": not self.swa_pool,
            "enable-streaming-session": self.streaming_sessions or self.in_place,
            "skip-tokenizer-init": self.skip_tokenizer,
            "enable-metrics": True,
            "enable-cache-report": True,
            "sleep-on-idle": self.device == "cpu",  # else an idle scheduler occupies a core
            "skip-server-warmup": True,  # the client warms up, so that the warm-up is not measured
        }
        given = [
            part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))
        ]
        return [*given, *(f"--{name}" for name, on in switches.items() if on), *self.extra]

    def environment(
        self, *, force_tokens: bool, step_log: Path | None, record: Path | None = None
    ) -> dict[str, str]:
        """Environment of the server: ours, and the variables that SGLang and the plugin read."""
        kept = {"SQREAL_RECORD_MB"}  # a limit, which asks for nothing by itself
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SQREAL_") or name in kept
        }
        environment |= {
            "PYTHONUNBUFFERED": "1",
            "PYTHONSAFEPATH": "1",  # its directory holds no module or plugin of the server
            "HF_HUB_OFFLINE": "1",  # models are directories; nothing is fetched
            "SGLANG_PLUGINS": "sqreal",  # no variables of another plugin setup
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",  # a health check must not run a request
            "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",  # a server that fails ends at once,
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",  # not after 65 seconds of waiting for dumps
        }
        if force_tokens:
            environment["SQREAL_FORCE_TOKENS"] = "1"
        if step_log is not None:
            environment["SQREAL_STEP_LOG"] = str(step_log.resolve())
        if record is not None:
            environment["SQREAL_RECORD"] = str(record.resolve())
        if self.in_place:
            environment["SQREAL_IN_PLACE"] = "1"
        if self.spread_router:
            environment["SQREAL_SPREAD_ROUTER"] = "1"
        if self.plugin_attention:
            environment["SQREAL_CPU_ATTENTION"] = "1"
        if self.device == "cpu":
            path = environment.get("PYTHONPATH")
            environment |= {
                "SGLANG_USE_CPU_ENGINE": "1",
                "TORCH_COMPILE_DISABLE": "1",  # needs a C++ compiler and 20 s at gpt-oss's first step, for no gain here
                "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
                "PYTHONPATH": str(CPU_SHIMS) if not path else f"{CPU_SHIMS}{os.pathsep}{path}",
            }
        return environment


def options_of(scenario: Scenario, work_dir: Path) -> ServerOptions:
    """Make the options of the server that a scenario describes. A tiny model is written into `work_dir`; others are read from their path.

    Weights are random (load_format dummy) where the model's directory holds none: costs and schedules depend on the
    shape, and outputs are forced anyway.
    """
    engine = scenario.engine
    model = _model_directory(scenario, work_dir)
    device: Device = "cpu" if engine.gpu == "cpu" else "cuda"
    if device == "cpu" and engine.kv_capacity is None:
        raise ScenarioError(
            "engine.kv_capacity: auto would take all memory of this machine for a server on a CPU; give a number of tokens"
        )
    policy, no_tokenizer = scenario.policy, not any(model.glob("tokenizer*"))
    if policy.runs_live and no_tokenizer:
        raise ScenarioError(
            f"policy.decisions: live needs the model's tokenizer to read what it writes, and {model} holds none; "
            "put its tokenizer.json there, or set policy.decisions: scripted"
        )
    fp8 = engine.kv_dtype in _FP8
    return ServerOptions(
        model=model,
        device=device,
        load_format="auto" if any(model.glob("*.safetensors")) else "dummy",
        dtype="auto" if device == "cpu" or fp8 else engine.kv_dtype,
        kv_dtype=engine.kv_dtype if fp8 else "auto",
        kv_capacity=engine.kv_capacity,
        mem_fraction=engine.mem_fraction if device == "cuda" else None,
        max_running=engine.max_running,
        context_length=engine.context_length,
        page_size=engine.page_size,
        chunked_prefill=engine.chunked_prefill,
        schedule_conservativeness=engine.schedule_conservativeness,
        swa_full_tokens_ratio=engine.swa_full_tokens_ratio,
        swa_pool=engine.swa_pool,
        tensor_parallel=engine.tensor_parallel,
        in_place=engine.cache == "session",
        skip_tokenizer=no_tokenizer,
        random_seed=scenario.seed % 2**31,
    )


def architecture(model: Path) -> str:
    """Read the architecture from a model directory's config.json; a ModelPathError where there is none."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelPathError(
            f"{path}: cannot be read ({error.strerror}); give a directory with a Hugging Face config.json"
        ) from error
    except ValueError as error:
        raise ModelPathError(f"{path}: is not JSON ({error}); give a Hugging Face config.json") from error
    names = config.get("architectures") if isinstance(config, Mapping) else None
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelPathError(f"{path}: names no architecture; give a Hugging Face config.json")
    return names[0]


def _model_directory(scenario: Scenario, work_dir: Path) -> Path:
    if scenario.model_path is not None:
        return scenario.model_path.resolve().parent
    name = scenario.model.lower()
    if name in TINY_MODELS:
        return write_tiny_model(name, work_dir / name)
    raise ScenarioError(
        f"model: {scenario.model} is a name, a server needs its files; give the path of its config.json"
        f"{'' if cuda_devices() else ', or one of ' + ', '.join(TINY_MODELS)}"
    )
