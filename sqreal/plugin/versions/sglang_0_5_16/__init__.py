# SPDX-License-Identifier: Apache-2.0
"""SGLang 0.5.16: a session's slot takes a row at the end of its turn; the next turn runs on a copy of the slot's fields.

Requests keep their lengths themselves, a match names KV slots instead of a length, and locks are counted by nodes.
"""

# ruff: noqa: F401 - imported for `adapter()`: the names that versions/__init__.py lists
from __future__ import annotations

from sqreal.plugin.hooks import Need
from sqreal.plugin.versions.sglang_0_5_16.scheduling import (
    Budget,
    admission_hooks,
    asked,
    extend_len,
    micro_batch,
    prefix_len,
    queue_hooks,
    refused,
    rendered,
)
from sqreal.plugin.versions.sglang_0_5_16.server import (
    FULL,
    detail_hooks,
    info_hooks,
    lengths,
    parallel,
    refresh_calls,
    slot_lengths,
    unserved,
)
from sqreal.plugin.versions.sglang_0_5_16.sessions import Cache, Row, Rows, create_cache, keep_private, limited

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"

NEEDS = (
    Need("sglang.srt.managers.schedule_batch.ScheduleBatch", "is_empty batch_is_full"),
    Need(
        _TREE,
        "session match_prefix cache_unfinished_req cache_finished_req dec_lock_ref token_to_kv_pool_allocator"
        " req_to_token_pool page_size supports_swa sliding_window_size",
    ),
    Need(
        "sglang.srt.session.streaming_session.StreamingSession",
        "slots inner has_slot any_holding_kv try_match_prefix try_cache_finished_req try_inc_lock_ref try_dec_lock_ref"
        " release_session session_held_tokens session_held_swa_tokens session_held_req_count _free_kv_aligned",
    ),
    Need(
        "sglang.srt.session.streaming_session.SessionSlot",
        "virtual_node req_pool_idx kv kv_committed_len last_node cache_protected_len swa_uuid_for_lock save_from_req"
        " restore_to_req",
    ),
    Need("sglang.srt.managers.schedule_batch.ReqKvInfo", "kv_allocated_len swa_evicted_seqlen"),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "kv kv_committed_len req_pool_idx cache_protected_len swa_uuid_for_lock swa_prefix_lock_released prefix_indices"
        " extend_range set_extend_range",
    ),
    Need("sglang.srt.mem_cache.memory_pool.ReqToTokenPool", "free_slots"),
    Need(
        _ADDER,
        "rem_total_tokens rem_swa_tokens rem_total_token_offset _swa_budget_for_req _swa_chunk_cap",
    ),
    Need(
        "sglang.srt.server_args.ServerArgs",
        "pp_max_micro_batch_size dp_size device page_size enable_dp_attention",
    ),
    Need(_SCHEDULER, "server_args is_hybrid_swa swa_tokens_per_layer"),
    Need("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat", "tokenizer_manager _process_messages"),
)
