# SPDX-License-Identifier: Apache-2.0
"""Attention with sinks and sliding windows in plain torch, so that gpt-oss runs on a CPU without AMX.

SGLang's `torch_native` backend, the only one that runs there, does not support sinks. This one is for tests and small models:
exact in float32, slow.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention import attention_registry
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from sqreal.plugin.hooks import Need

_REPLACED = (
    "intel_amx",
    "torch_native",
)  # gpt-oss must be started with the first; without AMX SGLang takes the second

NEEDS = (
    Need(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend",
        "token_to_kv_pool req_to_token_pool use_sliding_window_kv_pool swa_out_cache_loc forward_extend forward_decode",
    ),
    Need(
        "sglang.srt.layers.radix_attention.RadixAttention",
        "layer_id scaling sliding_window_size tp_q_head_num tp_k_head_num qk_head_dim v_head_dim is_cross_attention",
    ),
    Need("sglang.srt.mem_cache.memory_pool.KVWriteLoc", "loc swa_loc"),
    Need(
        "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool",
        "set_kv_buffer get_key_buffer get_value_buffer translate_loc_from_full_to_swa",
    ),
    Need(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        "out_cache_loc req_pool_indices seq_lens extend_prefix_lens extend_seq_lens",
    ),
)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scaling: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute causal attention of a sequence's last tokens.

    query [q, heads, d]; keys [n, kv_heads, d] and values [n, kv_heads, d_v] of the sequence's last n >= q tokens, the
    queries' own at their end; a query attends to `window` tokens before its own (None: all); `sinks` [heads] are logits that take
    part in the softmax and carry no value. Returns [q, heads * d_v] in the query's type, computed in float32.
    """
    length, heads, _ = query.shape
    context, kv_heads, _ = keys.shape
    grouped = query.float().view(length, kv_heads, heads // kv_heads, -1)
    logits = torch.einsum("qhgd,nhd->hgqn", grouped, keys.float()) * scaling
    distance = torch.arange(context - length, context)[:, None] - torch.arange(context)
    hidden = distance < 0
    if window is not None:
        hidden |= distance > window
    logits = logits.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(kv_heads, -1, 1, 1).expand(-1, -1, length, 1)
        logits = torch.cat([logits, column], dim=-1)
    weights = logits.softmax(-1)[..., :context]
    return torch.einsum("hgqn,nhd->qhgd", weights, values.float()).reshape(length, -1).to(query.dtype)


class SinkAttention(TorchNativeAttnBackend):  # type: ignore[misc]  # SGLang is not type-checked here
    """Attention backend that writes the new KV, then attends row by row."""

    def forward_extend(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Any = None,
    ) -> torch.Tensor:
        prefix_lens, new_lens = (
            forward_batch.extend_prefix_lens.tolist(),
            forward_batch.extend_seq_lens.tolist(),
        )
        return self._rows(q, k, v, layer, forward_batch, save_kv_cache, sinks, prefix_lens, new_lens)

    def forward_decode(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Any = None,
    ) -> torch.Tensor:
        prefix_lens = (forward_batch.seq_lens - 1).tolist()
        return self._rows(
            q, k, v, layer, forward_batch, save_kv_cache, sinks, prefix_lens, [1] * len(prefix_lens)
        )

    def _rows(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        sinks: Any,
        prefix_lens: list[int],
        new_lens: list[int],
    ) -> torch.Tensor:
        assert not layer.is_cross_attention, "no model with sinks has cross attention"
        pool = self.token_to_kv_pool
        if save_kv_cache:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        window = layer.sliding_window_size
        window = None if window is None or window < 0 else window
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(len(query), layer.tp_q_head_num * layer.v_head_dim)
        start = 0
        for row, prefix, new in zip(forward_batch.req_pool_indices, prefix_lens, new_lens, strict=True):
            # KV that left the window may be freed: it must not even be read.
            first = 0 if window is None else max(0, prefix - window)
            slots = self.req_to_token_pool.req_to_token[row, first : prefix + new]
            if window is not None and self.use_sliding_window_kv_pool:
                slots = pool.translate_loc_from_full_to_swa(slots)
            rows = slice(start, start + new)
            output[rows] = attend(
                query[rows], keys[slots], values[slots], scaling=layer.scaling, window=window, sinks=sinks
            )
            start += new
        return output


def install() -> None:
    """Replace the backends that a CPU server may be started with."""
    for name in _REPLACED:
        attention_registry.ATTENTION_BACKENDS[name] = SinkAttention
