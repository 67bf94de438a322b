# SPDX-License-Identifier: Apache-2.0
"""SGLang 0.5.23: a session owns its row and the tree lock from its first turn's admission on; turns borrow them."""

# ruff: noqa: F401 - imported for `adapter()`: the names that versions/__init__.py lists
from __future__ import annotations

from sqreal.plugin.hooks import Need
from sqreal.plugin.versions.sglang_0_5_23.scheduling import (
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
from sqreal.plugin.versions.sglang_0_5_23.server import (
    FULL,
    detail_hooks,
    info_hooks,
    lengths,
    parallel,
    refresh_calls,
    slot_lengths,
    unserved,
)
from sqreal.plugin.versions.sglang_0_5_23.sessions import Cache, Row, Rows, create_cache, keep_private, limited

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"

NEEDS = (
    Need(
        _TREE,
        "session _match_tree prefix_device_indices lock unlock on_release release_swa_prefix_lock swa_retain_floor session_records"
        " free_kv_row req_to_token_pool page_size supports_swa sliding_window_size",
    ),
    Need(
        "sglang.srt.session.streaming_session.StreamingSession",
        "slots cache any_holding_kv try_match_prefix take try_checkpoint try_cache_finished_req release_session"
        " borrowed_slot will_lend_record _lock_to_slot _free_tail",
    ),
    Need("sglang.srt.session.streaming_session.SessionSlot", "virtual_node kv lock publishes_prompt"),
    Need(
        "sglang.srt.managers.schedule_batch.ReqKvInfo",
        "req_pool_idx cache_protected_len cache_inserted_len kv_committed_len kv_allocated_len get_evicted_seqlen"
        " set_evicted_seqlen mark_kv_released",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "kv lock prefix_len extend_len detach_kv release_mm_inputs_on_abort skip_radix_cache_insert",
    ),
    Need("sglang.srt.mem_cache.memory_pool.ReqToTokenPool", "free"),
    Need(_ADDER, "memory_budget per_req_token_overhead _swa_new_tokens"),
    Need("sglang.srt.mem_cache.prefill_budget.PrefillBudget", "check_prefill remaining_total total_offset"),
    Need("sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget", "swa_tokens remaining_swa ceil_paged_tokens"),
    Need(_SCHEDULER, "_create_generation_req policy"),
    Need("sglang.srt.managers.schedule_policy.SchedulePolicy", "_waiting_prefix_refresh_calls"),
    Need("sglang.srt.entrypoints.openai.protocol.ChatCompletionRequest", "_format_add_generation_prompt"),
    Need("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat", "_format_add_generation_prompt"),
)
