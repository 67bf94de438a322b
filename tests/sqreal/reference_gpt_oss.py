# SPDX-License-Identifier: Apache-2.0
"""A plain-torch gpt-oss that takes positions and a mask as they are given, and the weights of a tiny one for both sides.

Written from the architecture's definition (https://arxiv.org/abs/2508.10925, YaRN: https://arxiv.org/abs/2309.00071),
sharing nothing with SGLang nor with the plugin's attention.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from sqreal.setup.tiny_models import write_tiny_model
from tests.sqreal.reference_model import ReferenceModel

_ALPHA = 1.702  # of the experts' activation


def write_gpt_oss(directory: Path, dtype: str = "bfloat16", seed: int = 0) -> Path:
    """A tiny gpt-oss whose random weights make what a token sees, sinks and experts decide what comes next.

    The weights are bfloat16's whatever `dtype` the server computes in, which SGLang reads in part from the config.
    """
    write_tiny_model("tiny-gpt-oss", directory)
    config = json.loads((directory / "config.json").read_text())
    draw = torch.Generator().manual_seed(seed)
    hidden, inner, vocabulary, size, experts = (
        config[key]
        for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_local_experts")
    )
    heads, kv_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def normal(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=draw) * gain

    def norm(width: int) -> Tensor:
        return 1 + normal(width, gain=0.1)

    weights = {
        "model.embed_tokens.weight": normal(vocabulary, hidden),
        "model.norm.weight": norm(hidden),
        "lm_head.weight": normal(vocabulary, hidden, gain=4 / hidden**0.5),
    }
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        for name, rows, columns in (
            ("q", heads, hidden),
            ("k", kv_heads, hidden),
            ("v", kv_heads, hidden),
            ("o", hidden, heads),
        ):
            weights[f"{layer}self_attn.{name}_proj.weight"] = normal(rows, columns, gain=2 / columns**0.5)
            weights[f"{layer}self_attn.{name}_proj.bias"] = normal(rows, gain=0.1)
        weights |= {
            f"{layer}input_layernorm.weight": norm(hidden),
            f"{layer}post_attention_layernorm.weight": norm(hidden),
            f"{layer}self_attn.sinks": normal(config["num_attention_heads"]),
            # Wide apart: which experts serve a token must not turn on bfloat16's last bit too often.
            f"{layer}mlp.router.weight": normal(experts, hidden, gain=4 / hidden**0.5),
            f"{layer}mlp.router.bias": normal(experts, gain=0.1),
            f"{layer}mlp.experts.gate_up_proj": normal(experts, hidden, 2 * inner, gain=hidden**-0.5),
            f"{layer}mlp.experts.gate_up_proj_bias": normal(experts, 2 * inner, gain=0.1),
            f"{layer}mlp.experts.down_proj": normal(experts, inner, hidden, gain=inner**-0.5),
            f"{layer}mlp.experts.down_proj_bias": normal(experts, hidden, gain=0.1),
        }
    config["torch_dtype"] = dtype
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {name: weight.to(torch.bfloat16) for name, weight in weights.items()}, directory / "model.safetensors"
    )
    return directory


class GptOssReference(ReferenceModel):
    """The model of a directory that `write_gpt_oss` wrote, computed in float32 from its bfloat16 weights."""

    window = 128

    def _sight(self, index: int, positions: Tensor, mask: Tensor) -> Tensor:
        if self.config["layer_types"][index] == "full_attention":
            return mask
        return mask & (positions[:, None] - positions[None] < self.window)

    def _softmax(self, scores: Tensor, layer: str) -> Tensor:
        """Each head's sink takes its share of the weight, and has no value."""
        sinks = self._weights[f"{layer}sinks"].view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]

    def _mlp(self, x: Tensor, layer: str) -> Tensor:
        logits, chosen = self._linear(x, f"{layer}router").topk(self.config["num_experts_per_tok"])
        shares, limit = logits.softmax(-1), self.config["swiglu_limit"]
        y = torch.zeros_like(x)
        for expert in range(self.config["num_local_experts"]):
            both = x @ self._weights[f"{layer}experts.gate_up_proj"][expert]
            both = both + self._weights[f"{layer}experts.gate_up_proj_bias"][expert]
            gate, up = both[:, ::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
            out = (
                (up + 1) * gate * (_ALPHA * gate).sigmoid() @ self._weights[f"{layer}experts.down_proj"][expert]
            )
            out = out + self._weights[f"{layer}experts.down_proj_bias"][expert]
            y = y + out * (shares * (chosen == expert)).sum(-1, keepdim=True)
        return y

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """YaRN: high frequencies stay, low ones are stretched by `factor`, and both sides of a product grow a little."""
        size, base, scaling = (self.config[key] for key in ("head_dim", "rope_theta", "rope_scaling"))
        rates = base ** (-torch.arange(0, size, 2) / size)

        def pair(turns: float) -> float:
            """The pair of dimensions that turns so often in the original context."""
            context = scaling["original_max_position_embeddings"]
            return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = pair(scaling["beta_fast"]), pair(scaling["beta_slow"])
        stretched = ((torch.arange(size // 2) - first) / (last - first)).clamp(0, 1)
        rates = rates * (1 - stretched) + rates / scaling["factor"] * stretched
        growth = 0.1 * math.log(scaling["factor"]) + 1
        angles = positions[:, None] * rates[None]
        return angles.cos() * growth, angles.sin() * growth
