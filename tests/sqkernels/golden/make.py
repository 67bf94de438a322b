# SPDX-License-Identifier: Apache-2.0
"""What kvpress keeps and turns, on a tiny Llama with random weights, written to kvpress.npz beside this file.

kvpress needs an older transformers than SGLang, so it has an environment of its own:

    python3 -m venv golden && golden/bin/pip install kvpress==0.5.5
    golden/bin/python tests/sqkernels/golden/make.py

Per layer (2) of one prompt of N tokens, float32: keys [layer, KV heads, N, D] and queries [layer, N, heads, D], both after
rotary embedding; snapkv [layer, KV heads, kept], the positions that SnapKVPress keeps; turned [layer, KV heads, kept, D], the
keys that KeyRerotationPress leaves of them; observed [layer, KV heads, N], ObservedAttentionPress's scores; frequencies [D / 2].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from kvpress import KeyRerotationPress, ObservedAttentionPress, SnapKVPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

N, HEADS, KV_HEADS, DIM, LAYERS, WINDOW = 120, 4, 2, 16, 2, 16


class Observed(ObservedAttentionPress):
    """Its scores, kept aside."""

    def score(self, *arguments, **named):
        scores = super().score(*arguments, **named)
        self.seen.append(scores[0])
        return scores


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=DIM, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().float()
    for layer in model.model.layers:  # random weights attend to everything alike; sharper ones tell keys apart
        layer.self_attn.q_proj.weight.data *= 20
        layer.self_attn.k_proj.weight.data *= 20
    prompt = torch.randint(0, 101, (1, N))
    queries: dict[int, torch.Tensor] = {}

    def remember(module, _, named, __):
        cos, sin = named["position_embeddings"]
        query = module.q_proj(named["hidden_states"]).view(1, N, HEADS, DIM).transpose(1, 2)
        queries[module.layer_idx] = apply_rotary_pos_emb(query, query, cos, sin)[0][0].transpose(0, 1)

    def run(press=None):
        cache = DynamicCache()
        with torch.no_grad():
            if press is None:
                model(prompt, past_key_values=cache)
            else:
                with press(model):
                    model(prompt, past_key_values=cache)
        return torch.stack([layer.keys[0] for layer in cache.layers])

    hooks = [layer.self_attn.register_forward_hook(remember, with_kwargs=True) for layer in model.model.layers]
    keys = run()
    for hook in hooks:
        hook.remove()
    snapkv = SnapKVPress(0.5, window_size=WINDOW)
    left = run(snapkv)
    kept = (left[:, :, :, None] == keys[:, :, None]).all(-1)
    assert (kept.sum(-1) == 1).all()  # each kept key is one of the prompt's
    observed = Observed(0.5)
    observed.seen = []
    run(observed)
    np.savez_compressed(
        Path(__file__).with_name("kvpress.npz"),
        keys=keys.numpy(),
        queries=torch.stack([queries[layer] for layer in range(LAYERS)]).numpy(),
        snapkv=kept.int().argmax(-1).sort(-1).values.numpy().astype(np.int16),
        turned=run(KeyRerotationPress(snapkv)).numpy(),
        observed=torch.stack(observed.seen).numpy(),
        frequencies=model.model.rotary_emb.inv_freq.numpy(),
        window=WINDOW,
    )


if __name__ == "__main__":
    main()
