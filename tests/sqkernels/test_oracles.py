# SPDX-License-Identifier: Apache-2.0
"""Against other people's code: kvpress 0.5.5 by golden files (golden/make.py), transformers' gpt-oss for sinks, its YaRN."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sqkernels.buffers import Buffers
from sqkernels.h2o import h2o_accumulate, h2o_scores
from sqkernels.moves import Moves
from sqkernels.rotation import Rotation, move_rotated, yarn_frequencies
from sqkernels.snapkv import snapkv_scores
from sqkernels.topk import topk_keep
from sqkernels.window import Window

from tests.sqkernels import paged

# transformers imports torchvision where it finds it, and PyPI's build of it cannot be imported beside a CPU build of torch.
sys.modules["torchvision"] = None

LAYERS = [0, 1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).with_name("golden") / "kvpress.npz") as file:
        return {name: torch.from_numpy(value.copy()) for name, value in file.items()}


def paged_window(keys, queries, sinks=None):
    """Keys [heads, n, D] laid on shuffled slots, and the last queries [window, heads, D] of n."""
    heads, count, dim = keys.shape
    rows = paged.rows([count])
    cache = torch.zeros(count + 1, heads, dim)
    cache[rows.slots(0).long()] = keys.transpose(0, 1)
    return Window(rows, cache, queries[None].contiguous(), dim**-0.5, sinks)


@pytest.mark.parametrize("layer", LAYERS)
def test_snapkv_keeps_what_kvpress_keeps(golden, layer):
    keys, size = golden["keys"][layer], int(golden["window"])
    window = paged_window(keys, golden["queries"][layer, -size:])
    heads, count = keys.shape[:2]
    kept = golden["snapkv"][layer].long()
    keep = topk_keep(snapkv_scores(window)[0], [count] * heads, [kept.shape[1] - size] * heads, size)
    for head in range(heads):
        assert torch.nonzero(keep[head])[:, 0].tolist() == kept[head].tolist()


@pytest.mark.parametrize("layer", LAYERS)
def test_sums_are_the_attention_that_kvpress_observes(golden, layer):
    """ObservedAttentionPress divides each sum by the number of queries that see the key, n - i; H2O does not."""
    window = paged_window(golden["keys"][layer], golden["queries"][layer])
    sums = torch.zeros(window.keys.shape[0], window.heads)
    h2o_accumulate(sums, window)
    count = window.rows.longest
    observed = golden["observed"][layer] * torch.arange(count, 0, -1)
    torch.testing.assert_close(h2o_scores(sums, window)[0], observed, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_keys_turn_as_kvpress_turns_them(golden, layer):
    """It closes the gaps: the key kept at place i of p goes to position i, by i - p. Per head, as kvpress keeps."""
    rotation = Rotation.of(golden["frequencies"], 120, CPU)
    for head, kept in enumerate(golden["snapkv"][layer].long()):
        cache = torch.zeros(300, 1, 16)
        cache[:120, 0] = golden["keys"][layer, head]
        new = torch.arange(len(kept))
        move_rotated(Buffers.of([cache]), Moves.of(kept, 150 + new, 300, CPU), new - kept, rotation)
        torch.testing.assert_close(cache[150 + new, 0], golden["turned"][layer, head], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_frequencies_are_those_of_transformers(truncate):
    pytest.importorskip("transformers", reason="needs transformers: make test-kernels")
    from transformers import GptOssConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = GptOssConfig()
    config.rope_parameters["truncate"] = truncate
    asked = {name: config.rope_parameters[name] for name in ("beta_fast", "beta_slow", "factor")}
    assert asked == {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0}
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    got = yarn_frequencies(config.head_dim, 150_000, 32, 4096, truncate=truncate)
    torch.testing.assert_close(got.float(), expected, rtol=1e-5, atol=0)


def test_sinks_take_their_share_as_in_gpt_oss():
    """transformers' eager attention: the last 8 rows of its weights, sinks dropped after the softmax."""
    pytest.importorskip("transformers", reason="needs transformers: make test-kernels")
    from transformers import DynamicCache, GptOssConfig, GptOssForCausalLM
    from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=101, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
        layer_types=["full_attention"], max_position_embeddings=512, attn_implementation="eager",
    )  # fmt: skip
    model = GptOssForCausalLM(config).eval().float()
    attention = model.model.layers[0].self_attn
    torch.nn.init.normal_(attention.sinks)
    seen = {}

    def remember(module, _, named, out):
        cos, sin = named["position_embeddings"]
        query = module.q_proj(named["hidden_states"]).view(1, 90, 8, 16).transpose(1, 2)
        seen["queries"], seen["weights"] = (
            apply_rotary_pos_emb(query, query, cos, sin)[0][0].transpose(0, 1),
            out[1][0],
        )

    attention.register_forward_hook(remember, with_kwargs=True)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(torch.randint(0, 101, (1, 90)), past_key_values=cache, output_attentions=True)
    window = paged_window(cache.layers[0].keys[0], seen["queries"][-8:].detach(), attention.sinks.detach())
    assert window.scale == attention.scaling
    sums = torch.zeros(window.keys.shape[0], 2)
    h2o_accumulate(sums, window)
    expected = seen["weights"][:, -8:].sum(1).view(2, 4, 90).mean(1)
    torch.testing.assert_close(h2o_scores(sums, window)[0], expected, atol=1e-5, rtol=1e-5)
    assert expected.sum() < 0.99 * 2 * 8  # the sinks took something


def test_a_gptoss_key_turned_is_the_key_computed_there():
    """YaRN: a key rotated at its old position and turned equals the one rotated at the new, in float32 and in bf16."""
    random = paged.generator()
    frequencies = yarn_frequencies(64, 150_000, 32, 4096, truncate=False)
    raw = torch.randn(40, 2, 64, generator=random)
    old, new = torch.arange(20_000, 20_040), torch.arange(19_000, 19_080, 2)

    def rotated(positions):
        angle = positions.double()[:, None] * frequencies[None]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second = raw.double().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    for dtype, within in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3.2e-2)):
        cache = torch.zeros(80, 2, 64, dtype=dtype)
        cache[:40] = rotated(old).to(dtype)
        moves = Moves.of(torch.arange(40), torch.arange(79, 39, -1), 80, CPU)
        move_rotated(Buffers.of([cache]), moves, new - old, Rotation.of(frequencies, 2000, CPU))
        error = (cache[40:].flip(0).double() - rotated(new)).abs().max()
        assert error < within, dtype  # two roundings of values up to 4
