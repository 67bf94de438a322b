# SPDX-License-Identifier: Apache-2.0
"""The models that sqsim knows by name, with the keys of each `config.json` that its geometry needs.

Values are copied from the configuration files on the Hugging Face hub (openai/gpt-oss-20b, openai/gpt-oss-120b,
meta-llama/Llama-3.1-8B, Qwen/Qwen3-32B). The tiny models exist for tests: SGLang serves them on a CPU with
dummy weights. Any other model of these families is given as a path to its own `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping

Config = Mapping[str, object]


def _gpt_oss(layers: int, experts: int) -> Config:
    return {
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "sliding_window": 128,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "vocab_size": 201_088,
        "max_position_embeddings": 131_072,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def _tiny(architecture: str) -> Config:
    return {
        "architectures": [architecture],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


KNOWN_MODELS: Mapping[str, Config] = {
    "gpt-oss-20b": _gpt_oss(layers=24, experts=32),
    "gpt-oss-120b": _gpt_oss(layers=36, experts=128),
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-32b": {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "tiny-llama": _tiny("LlamaForCausalLM"),
    "tiny-qwen3": _tiny("Qwen3ForCausalLM"),
    "tiny-gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 128,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}
