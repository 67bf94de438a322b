# SPDX-License-Identifier: Apache-2.0
"""A plain-torch llama and qwen3 that take positions and a mask as they are given, and the weights of a tiny model for both sides.

Written from the architectures' definitions, sharing nothing with SGLang: what a server with dropped spans says is held
against what these say with the spans masked.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from sqreal.setup.tiny_models import write_tiny_model


def write_weights(name: str, directory: Path, seed: int = 0) -> Path:
    """A tiny model whose random weights are large enough that what a token sees decides what comes next."""
    write_tiny_model(name, directory)
    config = json.loads((directory / "config.json").read_text())
    draw = torch.Generator().manual_seed(seed)
    hidden, inner, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    size = config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * gain / columns**0.5

    def norm(width: int) -> Tensor:
        return 1 + 0.1 * torch.randn(width, generator=draw)

    weights = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden, generator=draw),
        "model.norm.weight": norm(hidden),
        "lm_head.weight": matrix(vocabulary, hidden, 4.0),
    }
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        weights |= {
            f"{layer}input_layernorm.weight": norm(hidden),
            f"{layer}post_attention_layernorm.weight": norm(hidden),
            f"{layer}self_attn.q_proj.weight": matrix(heads, hidden, 2.0),
            f"{layer}self_attn.k_proj.weight": matrix(kv_heads, hidden, 2.0),
            f"{layer}self_attn.v_proj.weight": matrix(kv_heads, hidden, 2.0),
            f"{layer}self_attn.o_proj.weight": matrix(hidden, heads, 2.0),
            f"{layer}mlp.gate_proj.weight": matrix(inner, hidden),
            f"{layer}mlp.up_proj.weight": matrix(inner, hidden),
            f"{layer}mlp.down_proj.weight": matrix(hidden, inner),
        }
        if config["model_type"] == "qwen3":
            weights |= {f"{layer}self_attn.{name}_norm.weight": norm(size) for name in ("q", "k")}
    config["torch_dtype"] = "float32"
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors")
    return directory


def without_end(directory: Path) -> Path:
    """No token ends an answer: a request says all that it declares, and yet reserves as one that may end before."""
    config = json.loads((directory / "config.json").read_text())
    config["eos_token_id"] = None
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class ReferenceModel:
    """The model of a directory that `write_weights` wrote, in float32."""

    window = 0  # tokens that a sliding layer sees, its own among them; 0: there is none

    def __init__(self, directory: Path) -> None:
        from safetensors.torch import load_file

        self.config = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
        self._weights = {name: weight.float() for name, weight in weights.items()}

    @torch.no_grad()
    def logits(self, ids: list[int], positions: list[int], mask: Tensor) -> Tensor:
        """Of every token; `mask[i, j]`: token i sees token j."""
        x = self._weights["model.embed_tokens.weight"][torch.tensor(ids)]
        places = torch.tensor(positions)
        turned = self._rotation(places)
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}."
            seen = self._sight(index, places, mask)
            x = x + self._attention(
                self._norm(x, f"{layer}input_layernorm"), f"{layer}self_attn.", turned, seen
            )
            x = x + self._mlp(self._norm(x, f"{layer}post_attention_layernorm"), f"{layer}mlp.")
        return self._norm(x, "model.norm") @ self._weights["lm_head.weight"].T

    def _attention(self, x: Tensor, layer: str, turned: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        size, heads, kv_heads = (
            self.config[key] for key in ("head_dim", "num_attention_heads", "num_key_value_heads")
        )
        q, k, v = (
            self._linear(x, f"{layer}{name}_proj").view(len(x), -1, size).transpose(0, 1) for name in "qkv"
        )
        if self.config["model_type"] == "qwen3":
            q, k = self._norm(q, f"{layer}q_norm"), self._norm(k, f"{layer}k_norm")
        q, k = _turn(q, *turned), _turn(k, *turned)
        k, v = (each.repeat_interleave(heads // kv_heads, dim=0) for each in (k, v))
        scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(~mask, -torch.inf)
        seen = self._softmax(scores, layer) @ v
        return self._linear(seen.transpose(0, 1).reshape(len(x), -1), f"{layer}o_proj")

    def _sight(self, index: int, positions: Tensor, mask: Tensor) -> Tensor:
        """What a layer's tokens see of what they may see."""
        del index, positions
        return mask

    def _softmax(self, scores: Tensor, layer: str) -> Tensor:
        del layer
        return scores.softmax(-1)

    def _mlp(self, x: Tensor, layer: str) -> Tensor:
        gate, up = (self._linear(x, f"{layer}{name}_proj") for name in ("gate", "up"))
        return self._linear(silu(gate) * up, f"{layer}down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self._weights[f"{name}.weight"]

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        size = self.config["head_dim"]
        rates = self.config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        angles = positions[:, None] * rates[None]
        return angles.cos(), angles.sin()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves of a head paired (the NeoX way, which llama and qwen3 use)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
