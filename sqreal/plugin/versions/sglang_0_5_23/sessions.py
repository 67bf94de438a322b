# SPDX-License-Identifier: Apache-2.0
"""Sessions of 0.5.23: each owns its row and the tree lock from its first turn's admission on; turns borrow them."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import create_unified_radix_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession

from sqreal.plugin.reader import Reader


class Row(SessionSlot):  # type: ignore[misc]  # SGLang's class, untyped here
    """Row of KV that a slot holds; lengths are in tokens."""

    @property
    def index(self) -> int:
        return int(self.kv.req_pool_idx)

    @property
    def protected(self) -> int:
        """Number of leading tokens that the tree owns."""
        return int(self.kv.cache_protected_len)

    @property
    def committed(self) -> int:
        return int(self.kv.kv_committed_len)

    @property
    def allocated(self) -> int:
        return int(self.kv.kv_allocated_len)

    @property
    def slid(self) -> int:
        """Number of leading private tokens whose sliding-window KV has been freed."""
        return int(self.kv.get_evicted_seqlen(ComponentType.SWA))

    def shrink(self, tokens: int, slid: int) -> None:
        """Note that tokens were cut from it, `slid` of them without window KV."""
        if slid:
            self.kv.set_evicted_seqlen(ComponentType.SWA, self.slid - slid)
        self.kv.kv_allocated_len -= tokens
        self.kv.kv_committed_len -= tokens


class Rows(StreamingSession):  # type: ignore[misc]  # as above
    """Sessions' rows, with the interface that this version of SGLang calls."""

    def take(self, req: Any) -> None:
        """Make a first turn's row the session's."""
        if req.session is None or not req.session.streaming or self.borrowed_slot(req) is not None:
            return
        name = req.session.session_id
        assert name not in self.slots, f"session {name} already has a row"
        slot = self.new_slot(req.session, kv=req.kv, publishes_prompt=True)
        self._lock_to_slot(req, slot)
        self.slots[name] = slot

    def try_checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> bool:
        """Publish only the part of a first turn that the session shares."""
        slot = self.borrowed_slot(req)
        if slot is not None and slot.publishes_prompt:
            up_to = min(up_to, slot.conversation.first)
            if up_to <= slot.protected:
                return True
        return bool(super().try_checkpoint(req, up_to=up_to, **kwargs))

    def try_cache_finished_req(self, req: Any) -> bool:
        slot = self.borrowed_slot(req)
        if slot is not None and self.lost(req, slot):
            return True
        return bool(super().try_cache_finished_req(req))

    def give_back(self, req: Any, _slot: Any, *, aborted: bool) -> None:
        """Note that a turn no longer runs on its row."""
        req.detach_kv()
        if aborted:
            req.release_mm_inputs_on_abort()

    def matched(self, _slot: Any, node: Any, tokens: int) -> MatchResult:
        """Make a match of the first `tokens` tokens of a slot's row, locked by `node`."""
        return MatchResult(
            device_prefix_len=tokens,
            last_device_node=node,
            last_host_node=node,
            best_match_node=node,
            cache_protected_len=tokens,
        )

    def free_spans(self, slot: Any, spans: list[Any]) -> None:
        self.cache.free_kv_row(slot.kv, spans)

    def free_tail(self, slot: Any, tokens: int) -> None:
        """Free the slots after the first `tokens` tokens."""
        self._free_tail(slot.kv, tokens)

    def free_row(self, slot: Any) -> None:
        """Free the part that the tree does not own."""
        kv = slot.kv
        self.cache.unlock(slot.lock)
        slot.lock = None
        self.cache.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_allocated_len)])
        self.cache.req_to_token_pool.free(slot)
        # A waiting turn may hold this record already; it finds an empty one.
        kv.mark_kv_released()
        kv.cache_protected_len = kv.cache_inserted_len = kv.kv_committed_len = 0


class Cache(UnifiedRadixCache):  # type: ignore[misc]  # as above
    """Cache methods of SGLang that depend on sessions and forks."""

    def _match_tree(self, params: Any) -> Any:
        return super()._match_tree(self.session.shared(params))

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        if isinstance(req.last_node, Reader):
            row = self.req_to_token_pool.req_to_token[req.last_node.slot.index]
            return row[: req.prefix_len].to(torch.int64)
        return super().prefix_device_indices(req)

    def lock(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node_id, Reader):
            self.session.lock(node_id)
            return node_id
        return super().lock(node_id, *args, **kwargs)

    def unlock(self, lock: Any) -> None:
        if isinstance(lock, Reader):
            self.session.unlock(lock)
        else:
            super().unlock(lock)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        self.session.left_row(req)

    def release_swa_prefix_lock(self, req: Any) -> None:
        """Keep a prefix locked whose window a fork may read."""
        if not isinstance(req.lock, Reader) and self.session.window_floor(req) is None:
            super().release_swa_prefix_lock(req)

    def swa_retain_floor(self, req: Any) -> int | None:
        floor: int | None = self.session.window_floor(req)
        return floor

    def session_records(self) -> dict[str, Any]:
        """List every row that no request owns, for SGLang's accounts; those without a session get names that none has."""
        records: dict[str, Any] = super().session_records()
        return records | {f"forked/{index}": slot.kv for index, slot in enumerate(self.session.left)}


def keep_private(req: Any) -> None:
    """Keep private what a request adds to its matched prefix."""
    req.skip_radix_cache_insert = True


def create_cache(context: Any, cache_class: type) -> Any:
    return create_unified_radix_cache(context, cache_class=cache_class)


def limited(key: Any, tokens: int) -> RadixKey:
    """Return the first `tokens` tokens of a key."""
    return RadixKey(
        key.token_ids,
        extra_key=key.extra_key,
        is_bigram=key.is_bigram,
        limit=min(tokens, len(key)),
        cache_salt=key.cache_salt,
    )
