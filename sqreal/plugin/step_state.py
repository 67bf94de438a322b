# SPDX-License-Identifier: Apache-2.0
"""State of SGLang's objects as JSON values for the step log. Nothing here changes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqreal.plugin import versions
from sqreal.plugin.hooks import Need
from sqreal.plugin.sessions import Sessions

_ADAPTER = versions.adapter()


def rids(reqs: Iterable[Any]) -> list[str]:
    return [req.rid for req in reqs]


def tokens(amount: float) -> float:
    """Round a budget, which is fractional where the new-token ratio enters."""
    return round(float(amount), 4)


def ratio(scheduler: Any) -> float:
    return round(float(scheduler.new_token_ratio_tracker.current), 6)


def pools(scheduler: Any) -> dict[str, Any]:
    """Read the pools, in tokens: free, evictable and locked tree tokens; with sessions, the row of each.

    With the plugin's sessions, `idle`: slots of rows on which no turn runs.
    """
    allocator, tree = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    if hasattr(allocator, "swa_available_size"):
        state: dict[str, Any] = {
            "avail": allocator.full_available_size(),
            "evictable": tree.full_evictable_size(),
            "protected": tree.full_protected_size(),
            "swa_avail": allocator.swa_available_size(),
            "swa_evictable": tree.swa_evictable_size(),
        }
    else:
        state = {
            "avail": allocator.available_size(),
            "evictable": tree.evictable_size(),
            "protected": tree.protected_size(),
        }
    if tree.session.slots:
        state["sess"] = {name: _ADAPTER.slot_lengths(slot) for name, slot in tree.session.slots.items()}
    if isinstance(tree.session, Sessions):
        state["idle"] = tree.session.idle_tokens()
    return state


def memory(tree: Any) -> list[int]:
    """Read [free, evictable] tokens of the full pool."""
    allocator = tree.token_to_kv_pool_allocator
    if hasattr(allocator, "full_available_size"):
        return [allocator.full_available_size(), tree.full_evictable_size()]
    return [allocator.available_size(), tree.evictable_size()]


def arrival(req: Any) -> dict[str, Any]:
    params = req.sampling_params
    return {
        "rid": req.rid,
        "n_in": len(req.origin_input_ids),
        "n_out": len(req.output_ids),
        "max_new": params.max_new_tokens,
        "ignore_eos": bool(params.ignore_eos),
        "stop": sorted(params.stop_token_ids or ()),
        "session": req.session.session_id if req.session is not None else None,
    }


def mode(batch: Any) -> str:
    kind = batch.forward_mode
    return "mixed" if kind.is_mixed() else "extend" if kind.is_extend() else kind.name.lower()


def rows(batch: Any) -> list[list[Any]]:
    """List [rid, extend, prefix, seq len, outputs known, prompt, KV committed, KV allocated, tree-owned] of each request."""
    lens = batch.seq_lens_cpu.tolist()
    if batch.forward_mode.is_extend():
        shares = zip(batch.extend_lens, batch.prefix_lens, strict=True)
    else:
        shares = zip([1] * len(lens), [length - 1 for length in lens], strict=True)
    return [
        [
            req.rid,
            extend,
            prefix,
            length,
            len(req.output_ids),
            len(req.origin_input_ids),
            committed,
            allocated,
            owned,
        ]
        for req, length, (extend, prefix) in zip(batch.reqs, lens, shares, strict=True)
        for owned, committed, allocated in (_ADAPTER.lengths(req),)
    ]


def admission(adder: Any, req: Any) -> dict[str, Any]:
    """Describe an admission test at its beginning; `need` and `rem` follow at the budget's call."""
    budget = _ADAPTER.Budget(adder)
    test = {
        "rid": req.rid,
        "prefix": _ADAPTER.prefix_len(req),
        "input": len(req.full_untruncated_fill_ids),
        "n_out": len(req.output_ids),
        "max_new": req.sampling_params.max_new_tokens,
        "need": None,
        "rem": None,
        "offset": tokens(budget.promised),
        "rem_unlocked": tokens(budget.total),
        "rem_chunk": adder.rem_chunk_tokens,
        "rem_input": adder.rem_input_tokens,
    }
    if adder.is_hybrid_swa:
        test["rem_swa"] = tokens(budget.window)
    return test


def chunk(adder: Any, req: Any) -> dict[str, Any]:
    """Describe the next chunk of a request in prefill."""
    budget = _ADAPTER.Budget(adder)
    return {
        "rid": req.rid,
        "prefix": _ADAPTER.prefix_len(req),
        "input": len(req.full_untruncated_fill_ids),
        "chunk": True,
        "rem_chunk": adder.rem_chunk_tokens,
        "rem": tokens(budget.total),
        "offset": tokens(budget.promised),
    }


def candidates(batch: Any) -> list[list[Any]]:
    """List [rid, outputs, prompt, KV, max_new] of the requests among which a retraction chooses."""
    return [
        [
            req.rid,
            len(req.output_ids),
            len(req.origin_input_ids),
            _ADAPTER.lengths(req)[1],
            req.sampling_params.max_new_tokens,
        ]
        for req in batch.reqs
    ]


def released(tree: Any, req: Any) -> dict[str, Any]:
    """Describe a request that gives up its KV row."""
    reason = req.finished_reason
    owned, committed, allocated = _ADAPTER.lengths(req)
    return {
        "rid": req.rid,
        "finished": req.finished(),
        "reason": type(reason).__name__ if reason is not None else None,
        "n_in": len(req.origin_input_ids),
        "n_out": len(req.output_ids),
        "committed": committed,
        "allocated": allocated,
        "protected": owned,
        "mem": memory(tree),
    }


NEEDS = (
    *_ADAPTER.NEEDS,
    Need(
        "sglang.srt.managers.scheduler.Scheduler",
        "waiting_queue running_batch forward_ct chunked_req new_token_ratio_tracker token_to_kv_pool_allocator"
        " tree_cache is_fully_idle disaggregation_mode enable_hierarchical_cache",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "rid origin_input_ids output_ids sampling_params session kv finished finished_reason is_retracted"
        " full_untruncated_fill_ids",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.ScheduleBatch",
        "reqs seq_lens_cpu extend_lens prefix_lens forward_mode forward_iter batch_is_full tree_cache"
        " new_tokens_required_next_decode",
    ),
    Need(
        "sglang.srt.managers.schedule_policy.PrefillAdder",
        "can_run_list rem_chunk_tokens rem_input_tokens is_hybrid_swa",
    ),
    Need(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache",
        "session token_to_kv_pool_allocator evictable_size protected_size full_evictable_size full_protected_size"
        " swa_evictable_size",
    ),
    Need("sglang.srt.session.streaming_session.StreamingSession", "slots"),
    Need("sglang.srt.session.streaming_session.SessionSlot", "kv"),
    Need(
        "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator",
        "available_size full_available_size swa_available_size",
    ),
    Need("sglang.srt.mem_cache.base_prefix_cache.EvictParams", "num_tokens swa_num_tokens"),
    Need("sglang.srt.mem_cache.base_prefix_cache.EvictResult", "num_tokens_evicted swa_num_tokens_evicted"),
    Need("sglang.srt.mem_cache.radix_cache.RadixKey", "token_ids"),
)
