"""SGLang's radix cache with sessions that can be cut and forked: the back end `--radix-cache-backend sidequest`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import (
    create_unified_radix_cache,
    get_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sqreal.plugin.conversation import fork_over
from sqreal.plugin.hooks import Need
from sqreal.plugin.server_check import BACK_END
from sqreal.plugin.sessions import Reader, Sessions


class SessionCache(UnifiedRadixCache):  # type: ignore[misc]  # SGLang's class, untyped here
    """Plain requests are served as by SGLang's own cache."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.session = Sessions(self)

    def _match_tree(self, params: Any) -> Any:
        """A session's first turn takes no more from the tree than it may give: the rest of its row can be dropped."""
        req = params.req
        if req is not None and req.session is not None and req.session.streaming:
            key, first = params.key, self.session.conversation(req.session).first
            limited = RadixKey(
                key.token_ids,
                extra_key=key.extra_key,
                is_bigram=key.is_bigram,
                limit=min(first, len(key)),
                cache_salt=key.cache_salt,
            )
            params = replace(params, key=limited)
        return super()._match_tree(params)

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        if isinstance(req.last_node, Reader):
            row = self.req_to_token_pool.req_to_token[req.last_node.slot.kv.req_pool_idx]
            return row[: req.prefix_len].to(torch.int64)
        return super().prefix_device_indices(req)

    def lock(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node_id, Reader):
            return self.session.lock(node_id)
        return super().lock(node_id, *args, **kwargs)

    def unlock(self, lock: Any) -> None:
        if isinstance(lock, Reader):
            self.session.unlock(lock)
        else:
            super().unlock(lock)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if req.finished() or req.to_finish is not None:  # else it was retracted, and comes back
            fork_over(req)

    def release_swa_prefix_lock(self, req: Any) -> None:
        """A prefix whose window a fork may read stays locked."""
        if not isinstance(req.lock, Reader) and self.session.window_floor(req) is None:
            super().release_swa_prefix_lock(req)

    def swa_retain_floor(self, req: Any) -> int | None:
        floor: int | None = self.session.window_floor(req)
        return floor

    def session_records(self) -> dict[str, Any]:
        """Every row that no request owns, for SGLang's accounts; those without a session get names that none has."""
        records: dict[str, Any] = super().session_records()
        return records | {f"forked/{index}": slot.kv for index, slot in enumerate(self.session.left)}


def register() -> None:
    """Make the back end known by its name, once a process."""
    if get_radix_cache_factory(BACK_END) is None:
        register_radix_cache_backend(
            BACK_END, lambda context: create_unified_radix_cache(context, cache_class=SessionCache)
        )


NEEDS = (
    Need(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache",
        "session _match_tree prefix_device_indices lock unlock on_release release_swa_prefix_lock swa_retain_floor session_records"
        " free_kv_row req_to_token_pool page_size supports_swa sliding_window_size claim_kv_row",
    ),
    Need(
        "sglang.srt.session.streaming_session.StreamingSession",
        "slots cache any_holding_kv try_match_prefix take try_checkpoint try_cache_finished_req release_session"
        " borrowed_slot _lock_to_slot _free_tail",
    ),
    Need("sglang.srt.session.streaming_session.SessionSlot", "virtual_node kv lock publishes_prompt"),
    Need(
        "sglang.srt.session.session_controller.Session",
        "streaming session_id req_nodes _inflight abort_req committed_origin_len committed_unpadded_len",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.ReqKvInfo",
        "req_pool_idx cache_protected_len cache_inserted_len kv_committed_len kv_allocated_len get_evicted_seqlen"
        " set_evicted_seqlen mark_kv_released",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "origin_input_ids origin_input_ids_unpadded output_ids full_untruncated_fill_ids sampling_params session lock"
        " last_node prefix_len to_finish finished_reason detach_kv release_mm_inputs_on_abort skip_radix_cache_insert",
    ),
    Need("sglang.srt.mem_cache.memory_pool.ReqToTokenPool", "req_to_token free"),
)
