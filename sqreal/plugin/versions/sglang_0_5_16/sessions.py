# SPDX-License-Identifier: Apache-2.0
"""Sessions of 0.5.16: a slot takes a row at the end of its turn; the next turn runs on a copy of the slot's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams, IncLockRefResult, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache_components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession

from sqreal.plugin.reader import Reader

_PRIVATE = "sqreal_private"  # attribute of a request: the tokens that it adds to its prefix are private


@dataclass(eq=False)
class Row(SessionSlot):  # type: ignore[misc]  # SGLang's class, untyped here
    """Row of KV that a slot holds; lengths are in tokens. While a turn runs on it, they are the turn's."""

    turn: Any = None  # the request that runs on a copy of the slot's fields, or waits to
    publishes_prompt = False  # a slot is made when its first prompt is computed and published

    @property
    def _holder(self) -> Any:
        return self.turn if self.busy and self.turn is not None else self

    @property
    def index(self) -> int:
        return int(self._holder.req_pool_idx)

    @property
    def protected(self) -> int:
        """Number of leading tokens that the tree owns."""
        return int(self.cache_protected_len)

    @property
    def committed(self) -> int:
        return int(self._holder.kv_committed_len)

    @property
    def allocated(self) -> int:
        return int(self._holder.kv.kv_allocated_len)

    @property
    def slid(self) -> int:
        """Number of leading private tokens whose sliding-window KV has been freed."""
        return int(self._holder.kv.swa_evicted_seqlen)

    def shrink(self, tokens: int, slid: int) -> None:
        """Note that tokens were cut from it, `slid` of them without window KV."""
        self.kv.swa_evicted_seqlen -= slid
        self.kv.kv_allocated_len -= tokens
        self.kv_committed_len -= tokens

    def restore_to_req(self, req: Any) -> None:
        super().restore_to_req(req)
        self.turn = req

    def save_from_req(self, req: Any, is_first: bool) -> None:
        super().save_from_req(req, is_first)
        self.turn = None


class Rows(StreamingSession):  # type: ignore[misc]  # as above
    """Sessions' rows, with the interface that this version of SGLang calls."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self.cache = cache
        self.slots: dict[str, Any] = {}

    def borrowed_slot(self, req: Any) -> Any:
        """Find the slot on whose row a request runs, if any."""
        if req.session is None or not req.session.streaming:
            return None
        slot = self.slots.get(req.session.session_id)
        return slot if slot is not None and slot.turn is req else None

    def will_lend_record(self, req: Any) -> bool:
        """Whether a waiting request will run on its session's row."""
        session = req.session
        if session is None or not session.streaming or req.to_finish is not None:
            return False
        return session.session_id in self.slots and self.slots[session.session_id].is_holding_kv

    def begin(self, req: Any) -> Any:
        """Make a first turn's row the session's; the turn holds it until its end."""
        slot = self.slots[req.session.session_id] = self.new_slot(
            req.session,
            turn=req,
            last_node=req.last_node,
            cache_protected_len=req.cache_protected_len,
            swa_uuid_for_lock=req.swa_uuid_for_lock,
        )
        return slot

    def try_cache_finished_req(self, req: Any, is_insert: bool = True, **kwargs: Any) -> bool:
        if req.session is None or not req.session.streaming:
            return False
        slot = self.slots.get(req.session.session_id)
        if slot is not None and slot.turn is not req:  # it was refused while another turn runs
            req.session = None
            return False
        slot = slot or self.begin(req)
        return self.lost(req, slot) or bool(super().try_cache_finished_req(req, is_insert, **kwargs))

    def give_back(self, req: Any, slot: Any, *, aborted: bool) -> None:
        """Note that a turn no longer runs on its row."""
        del aborted
        slot.busy = False
        slot.save_from_req(req, is_first=False)

    def matched(self, slot: Any, node: Any, tokens: int) -> MatchResult:
        """Make a match of the first `tokens` tokens of a slot's row, locked by `node`."""
        row = self.cache.req_to_token_pool.req_to_token[slot.index]
        return MatchResult(
            device_indices=row[:tokens].to(torch.int64, copy=True),
            last_device_node=node,
            last_host_node=node,
            best_match_node=node,
            cache_protected_len=tokens,
        )

    def free_spans(self, slot: Any, spans: list[Any]) -> None:
        row = self.cache.req_to_token_pool.req_to_token[slot.index]
        for start, stop in spans:  # the allocator knows slots without window KV
            self.cache.token_to_kv_pool_allocator.free(row[start:stop].clone())

    def free_tail(self, slot: Any, tokens: int) -> None:
        """Free the slots after the first `tokens` tokens."""
        self._free_kv_aligned(slot.index, tokens, slot.allocated)
        slot.kv.kv_allocated_len = min(slot.kv.kv_allocated_len, tokens)
        slot.kv_committed_len = min(slot.kv_committed_len, tokens)
        slot.kv.swa_evicted_seqlen = min(slot.kv.swa_evicted_seqlen, tokens)

    def free_row(self, slot: Any) -> None:
        """Free the part that the tree does not own."""
        if slot.last_node is not None:
            self.cache.dec_lock_ref(slot.last_node, DecLockRefParams(swa_uuid_for_lock=slot.swa_uuid_for_lock))
        if slot.protected < slot.allocated:
            self.free_spans(slot, [(slot.protected, slot.allocated)])
        self.cache.req_to_token_pool.free_slots.append(slot.index)
        if slot.turn is not None:  # a waiting turn has already read this slot, which no longer has a row
            slot.turn.req_pool_idx = slot.turn.kv = slot.turn.swa_uuid_for_lock = None
            slot.turn.kv_committed_len = 0

    # Locks, and SGLang's accounts of KV that no request owns.

    def try_inc_lock_ref(self, node: Any) -> Any:
        if isinstance(node, Reader):
            self.lock(node)
            return IncLockRefResult()
        return super().try_inc_lock_ref(node)

    def try_dec_lock_ref(self, node: Any, params: Any = None) -> Any:
        if isinstance(node, Reader):
            self.unlock(node)
        return super().try_dec_lock_ref(node, params)

    def session_held_tokens(self, active_pool_idxs: Any = None) -> int:
        return self._held("session_held_tokens", active_pool_idxs)

    def session_held_swa_tokens(self, active_pool_idxs: Any = None) -> int:
        return self._held("session_held_swa_tokens", active_pool_idxs)

    def session_held_req_count(self, active_pool_idxs: Any = None) -> int:
        return self._held("session_held_req_count", active_pool_idxs)

    def _held(self, account: str, active: Any) -> int:
        """List all held rows; those without a session get names that no session has."""
        slots: dict[str, Any] = self.slots
        self.slots = {**slots, **{f"forked/{index}": slot for index, slot in enumerate(self.left)}}
        try:
            return int(getattr(super(), account)(active))
        finally:
            self.slots = slots


class Cache(UnifiedRadixCache):  # type: ignore[misc]  # as above
    """Cache methods of SGLang that depend on sessions and forks."""

    def match_prefix(self, params: Any) -> Any:
        req = params.req
        if req is not None and not self.session.will_lend_record(req):
            params = self.session.shared(params)
        return super().match_prefix(params)

    def cache_unfinished_req(self, req: Any, chunked: bool = False, **kwargs: Any) -> None:
        if getattr(req, _PRIVATE, False):
            if chunked:  # as of a session's turn: computed tokens stay private
                row = self.req_to_token_pool.req_to_token[req.req_pool_idx]
                req.prefix_indices = row[: req.extend_range.end].to(torch.int64, copy=True)
            return
        session = req.session
        if session is None or not session.streaming:
            super().cache_unfinished_req(req, chunked, **kwargs)
            return
        whole = req.extend_range
        first_prompt = not chunked and not self.session.has_slot(session.session_id)
        if first_prompt:  # publishes no more than the shared tokens
            first = self.session.conversation(session).first
            req.set_extend_range(min(whole.start, first), min(whole.end, first))
        super().cache_unfinished_req(req, chunked, **kwargs)
        req.extend_range = whole
        req.swa_prefix_lock_released = True  # the lock is released with the slot, and no part of it earlier
        if first_prompt:
            self.session.begin(req)

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int, **kwargs: Any
    ) -> None:
        mine = getattr(req, _PRIVATE, False)
        super().cache_finished_req(req, is_insert and not mine, kv_len_to_handle=kv_len_to_handle, **kwargs)
        self.session.left_row(req)


def keep_private(req: Any) -> None:
    """Keep private what a request adds to its matched prefix."""
    setattr(req, _PRIVATE, True)  # SGLang's own flag loses the chunks of a prefill


def create_cache(context: Any, cache_class: type) -> Any:
    window = (ComponentType.SWA,) if context.is_hybrid_swa else ()
    context.params.tree_components = (ComponentType.FULL, *window)
    return cache_class(context.params)


def limited(key: Any, tokens: int) -> RadixKey:
    """Return the first `tokens` tokens of a key."""
    return RadixKey(
        key.token_ids, extra_key=key.extra_key, is_bigram=key.is_bigram, limit=min(tokens, len(key))
    )
