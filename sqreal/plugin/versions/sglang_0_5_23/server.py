# SPDX-License-Identifier: Apache-2.0
"""Properties and limits of a 0.5.23 server, and the sources of its step log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.runtime_context import get_parallel

from sqreal.plugin.hooks import Hook

FULL = BASE_COMPONENT_TYPE
"""Return the pool of all layers except those with windows."""
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"


def parallel(_scheduler: Any) -> Any:
    """Return the server's dp_size, pp_size, tp_rank and attn_dp_enabled."""
    return get_parallel()


def unserved(_scheduler: Any) -> dict[str, bool]:
    """List what this version cannot do with in-place eviction, by its fix: nothing more than others."""
    return {}


def info_hooks() -> list[Hook]:
    """List no hook: /server_info is complete."""
    return []


def refresh_calls(scheduler: Any) -> dict[str, int]:
    """Return the counter of the scheduler's rule 32."""
    return {"refresh": scheduler.policy._waiting_prefix_refresh_calls}  # noqa: SLF001 - nowhere else


def lengths(req: Any) -> list[int]:
    """Return a request's KV lengths: tree-owned, committed, allocated."""
    return slot_lengths(req)


def slot_lengths(slot: Any) -> list[int]:
    """Return a slot's KV lengths: tree-owned, committed, allocated."""
    kv = slot.kv
    return [kv.cache_protected_len, kv.kv_committed_len, kv.kv_allocated_len]


def asked_of_budget(
    adder: Any,
    req: Any,
    *,
    extend_input_len: int,
    total_tokens: int,
    swa_host_hit_length: int,
    chunk_limit: int | None,
) -> dict[str, float]:
    """Return a request's need and the remaining budget, its own prefix locked."""
    budget = adder.memory_budget
    asked = {"need": total_tokens, "rem": round(float(budget.remaining_total), 4)}
    if hasattr(budget, "swa_tokens"):
        asked["need_swa"] = budget.swa_tokens(
            budget.ceil_paged_tokens(extend_input_len),
            adder._swa_new_tokens(req),  # noqa: SLF001 - the budget's own argument
            chunk_limit=chunk_limit,
            swa_host_hit_length=swa_host_hit_length,
        )
        asked["rem_swa"] = round(float(budget.remaining_swa), 4)
    return asked


def detail_hooks(details: Any) -> list[tuple[str, str, Callable[..., Any]]]:
    """List the methods whose calls a step log details: path, parameters, watcher."""

    def asked(original: Callable[..., Any], adder: Any, req: Any, **words: Any) -> Any:
        details.asked(asked_of_budget(adder, req, **words))
        return original(adder, req, **words)

    def released(original: Callable[..., Any], tree: Any, req: Any) -> Any:
        return details.released(req, tree, lambda: original(tree, req))

    return [
        (
            f"{_ADDER}._check_prefill_budget",
            "self req * extend_input_len total_tokens swa_host_hit_length chunk_limit",
            asked,
        ),
        (f"{_TREE}._evict", "self params available_size_targets * allocation_reclaim_satisfied", details.evict),
        (f"{_TREE}._evict_device_leaf", "self node_id tracker", details.leaf),
        (f"{_TREE}.checkpoint_into_tree", "self req * up_to kwargs", details.insert),
        (f"{_TREE}.claim_kv_row", "self req", released),
        (f"{_TREE}.touch_prefix", "self key", details.touch),
    ]
