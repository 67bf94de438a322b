# SPDX-License-Identifier: Apache-2.0
"""Properties and limits of a 0.5.16 server, and the sources of its step log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache_components import BASE_COMPONENT_TYPE
from sglang.srt.runtime_context import get_parallel, get_server_args

from sqreal.plugin.hooks import Hook
from sqreal.plugin.versions.sglang_0_5_16.scheduling import Instead
from sqreal.plugin.versions.sglang_0_5_16.sessions import Row

FULL = BASE_COMPONENT_TYPE
"""Return the pool of all layers except those with windows."""
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"


def parallel(_scheduler: Any) -> Any:
    """Return the server's dp_size, pp_size, tp_rank and attn_dp_enabled."""
    return Instead(
        get_parallel(),
        dp_size=get_server_args().dp_size,
        attn_dp_enabled=get_server_args().enable_dp_attention,
    )


def unserved(scheduler: Any) -> dict[str, bool]:
    """List what this version cannot do with in-place eviction, by its fix."""
    args = scheduler.server_args
    # Pages are handed out by Triton kernels alone (mem_cache/allocator/paged.py), for which a CPU has no driver.
    return {"use --page-size 1 on a CPU": args.device == "cpu" and args.page_size > 1}


def info_hooks() -> list[Hook]:
    """List the hook that adds the tokens of the sliding-window pool, which /server_info lacks."""

    def state(original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
        answer = original(scheduler, recv_req)
        if scheduler.is_hybrid_swa:
            answer.internal_state["memory_usage"]["token_capacity_swa"] = int(scheduler.swa_tokens_per_layer)
        return answer

    return [Hook(f"{_SCHEDULER}.get_internal_state", "self recv_req", state)]


def refresh_calls(_scheduler: Any) -> dict[str, int]:
    """Return nothing: this version lacks the counter of the scheduler's rule 32."""
    return {}


def lengths(req: Any) -> list[int]:
    """Return a request's KV lengths: tree-owned, committed, allocated."""
    return [req.cache_protected_len, req.kv_committed_len, 0 if req.kv is None else req.kv.kv_allocated_len]


def slot_lengths(slot: Any) -> list[int]:
    """Return a slot's KV lengths: tree-owned, committed, allocated."""
    if isinstance(slot, Row):
        return [slot.protected, slot.committed, slot.allocated]
    return lengths(slot)


def detail_hooks(details: Any) -> list[tuple[str, str, Callable[..., Any]]]:
    """List the methods whose calls a step log details: path, parameters, watcher."""

    def finished(original: Callable[..., None], tree: Any, req: Any, *args: Any, **words: Any) -> None:
        def release() -> bool:
            session = req.session
            original(tree, req, *args, **words)
            return session is not None and tree.session.has_slot(session.session_id)

        details.released(req, tree, release)

    return [
        (f"{_TREE}.evict", "self params", details.evict),
        (f"{_TREE}._evict_device_leaf", "self node tracker", details.leaf),
        (f"{_TREE}.cache_finished_req", "self req is_insert * kv_len_to_handle kwargs", finished),
    ]
