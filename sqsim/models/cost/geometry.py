# SPDX-License-Identifier: Apache-2.0
"""The shape of a model, and the memory and work that follow from it: parameters, weight bytes, KV bytes a token.

Everything is computed from the keys of a Hugging Face `config.json`; nothing is a stored total. Families:
GptOss (mixture of experts, alternating sliding-window and full attention, sinks), Llama and dense Qwen3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from sqsim.errors import InputError
from sqsim.models.cost.known_models import KNOWN_MODELS, Config

LayerKind = Literal["full", "sliding"]
Dtype = Literal["bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"]
Weights = Literal["bfloat16", "float16", "float32", "mxfp4"]

DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
# OCP Microscaling Formats v1.0: blocks of 32 four-bit values share one eight-bit scale.
MXFP4_BYTES = (4 + 8 / 32) / 8

_FAMILIES = {"GptOssForCausalLM": "gpt-oss", "LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
_MOST_LAYERS = 10_000
_LAYER_KINDS = {"full_attention": "full", "sliding_attention": "sliding"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's shape. The names of the fields state their units: layers, heads, tokens or parameters."""

    name: str
    family: str
    full_layers: int
    sliding_layers: int
    window: int | None  # tokens a sliding layer attends to, the newest included; None without such layers
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int  # 0: a dense MLP
    experts_per_token: int
    vocabulary: int
    context_length: int
    attention_bias: bool
    tied_embeddings: bool
    weights: Weights  # the format in which the checkpoint stores its (expert) matrices

    @property
    def layers(self) -> int:
        return self.full_layers + self.sliding_layers

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: q, k, v and o projections with their biases, sinks or q/k norms."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = self.hidden * (2 * q + 2 * kv)
        biases = q + 2 * kv + self.hidden if self.attention_bias else 0
        sinks = self.heads if self.family == "gpt-oss" else 0
        norms = 2 * self.head_dim if self.family == "qwen3" else 0
        return matrices + biases + sinks + norms

    @property
    def expert_matrix_parameters(self) -> int:
        """Parameters of one expert's gate, up and down matrices (of the dense MLP where there are no experts)."""
        return 3 * self.hidden * self.intermediate

    @property
    def _expert_biases(self) -> int:
        return 2 * self.intermediate + self.hidden if self.experts else 0

    @property
    def router_parameters(self) -> int:
        return self.experts * (self.hidden + 1)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection from hidden size to vocabulary."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint."""
        expert = (self.expert_matrix_parameters + self._expert_biases) * max(1, self.experts)
        layer = self.attention_parameters + self.router_parameters + expert + 2 * self.hidden
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: its own experts only, and one row of the embedding table."""
        idle = max(0, self.experts - self.experts_per_token)
        unused = self.layers * idle * (self.expert_matrix_parameters + self._expert_biases)
        table = 0 if self.tied_embeddings else self.head_parameters
        return self.parameters - unused - table

    def weight_bytes(self, weights: Weights | None = None) -> int:
        """Compute the bytes of all weights in a format; None: the checkpoint's own.

        `mxfp4` packs only the expert matrices and keeps the rest in bfloat16, as gpt-oss does. An engine
        that upcasts the experts holds `bfloat16`; the cost profile states the engine's format.
        """
        weights = weights or self.weights
        if weights != "mxfp4":
            return self.parameters * DTYPE_BYTES[weights]
        if not self.experts:
            raise InputError(
                f"model {self.name}: mxfp4 weights need experts, this model is dense; use bfloat16"
            )
        packed = self.layers * self.experts * self.expert_matrix_parameters
        return round(packed * MXFP4_BYTES) + (self.parameters - packed) * DTYPE_BYTES["bfloat16"]

    def kv_bytes_per_token(self, kind: LayerKind, dtype: str = "bfloat16", tensor_parallel: int = 1) -> int:
        """Compute the K and V bytes of one token in all layers of a kind, on one GPU."""
        layers = self.full_layers if kind == "full" else self.sliding_layers
        heads = self.kv_heads_per_gpu(tensor_parallel)
        return layers * 2 * heads * self.head_dim * kv_dtype_bytes(dtype)

    def kv_heads_per_gpu(self, tensor_parallel: int) -> int:
        """Count the KV heads on each GPU; a head is copied where there are more GPUs than heads."""
        if (
            tensor_parallel < 1
            or self.heads % tensor_parallel
            or (self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads)
        ):
            raise InputError(
                f"tensor_parallel {tensor_parallel}: {self.name} has {self.heads} query and {self.kv_heads} KV "
                "heads, which it must divide; use a power of two that does"
            )
        return max(1, self.kv_heads // tensor_parallel)


def kv_dtype_bytes(dtype: str) -> int:
    """Return the bytes of one K or V value. InputError: the name is none of `Dtype`."""
    if dtype not in DTYPE_BYTES:
        raise InputError(f"kv_dtype {dtype!r} is unknown; choose one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def geometry(model: str) -> Geometry:
    """Find the shape of a model by its name (case is ignored), or read it from a `config.json` or a folder with one."""
    if model.lower() in KNOWN_MODELS:
        return _read(KNOWN_MODELS[model.lower()], model.lower(), model.lower())
    path = Path(model)
    try:
        if path.is_dir():
            path /= "config.json"
        if not path.is_file():
            names = ", ".join(KNOWN_MODELS)
            raise InputError(f"model {model!r} is neither a known name nor a config.json; known: {names}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check path and permissions") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file ({error}); give a Hugging Face config.json") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds no JSON object; give a Hugging Face config.json")
    return _known(_read(config, model, str(path)))


def _known(shape: Geometry) -> Geometry:
    """Rename a shape to the known model that it equals; return it unchanged where it equals none."""
    for name, config in KNOWN_MODELS.items():
        if replace(shape, name=name) == _read(config, name, name):
            return replace(shape, name=name)
    return shape


def _read(config: Config, name: str, place: str) -> Geometry:
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        raise InputError(
            f"{place}: architecture {architecture!r} is not covered; covered: {', '.join(_FAMILIES)}"
        )
    family = _FAMILIES[architecture]
    if config.get("use_sliding_window"):
        raise InputError(f"{place}: use_sliding_window with {architecture} is not covered; set it to false")
    whole = _Keys(config, place)
    heads, hidden = whole("num_attention_heads"), whole("hidden_size")
    kv_heads = whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise InputError(
            f"{place}: num_key_value_heads: {kv_heads} does not divide {heads} heads; give the model's own"
        )
    kinds = _layer_kinds(config, whole("num_hidden_layers", most=_MOST_LAYERS), family, place)
    sliding = kinds.count("sliding")
    moe = family == "gpt-oss"
    experts = whole("num_local_experts") if moe else 0
    return Geometry(
        name=name,
        family=family,
        full_layers=len(kinds) - sliding,
        sliding_layers=sliding,
        window=whole("sliding_window", least=2) if sliding else None,
        hidden=hidden,
        intermediate=whole("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=whole("head_dim", hidden // heads),
        experts=experts,
        experts_per_token=whole("num_experts_per_tok", most=experts) if moe else 0,
        vocabulary=whole("vocab_size"),
        context_length=whole("max_position_embeddings"),
        attention_bias=bool(config.get("attention_bias", moe)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        weights=_stored_weights(config, place),
    )


@dataclass(frozen=True)
class _Keys:
    """Reader of whole numbers within bounds; the error names file, key and value."""

    config: Config
    place: str

    def __call__(self, key: str, default: int | None = None, *, least: int = 1, most: int = 10**9) -> int:
        value = self.config.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InputError(
                f"{self.place}: {key}: {value!r} is not a whole number from {least} to {most}; give the model's own"
            )
        return value


def _layer_kinds(config: Config, layers: int, family: str, place: str) -> list[str]:
    """List the kind of each layer, full or sliding; without `layer_types` gpt-oss alternates, sliding first."""
    types = config.get("layer_types")
    if types is None:
        alternating = ["sliding", "full"] * layers
        return alternating[:layers] if family == "gpt-oss" else ["full"] * layers
    if not isinstance(types, list) or len(types) != layers or not set(types) <= _LAYER_KINDS.keys():
        raise InputError(
            f"{place}: layer_types must list {layers} layers, each one of {', '.join(_LAYER_KINDS)}; got {types!r}"
        )
    return [_LAYER_KINDS[kind] for kind in types]


def _stored_weights(config: Config, place: str) -> Weights:
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method", "unnamed") if isinstance(quantised, dict) else None
    weights = method or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if weights not in get_args(Weights):
        raise InputError(
            f"{place}: weights in {weights!r} are not covered; covered: {', '.join(get_args(Weights))}"
        )
    return cast("Weights", weights)
