"""SGLang 0.5.16: a session's slot takes a row at the end of its turn; the next turn runs on a copy of what it says.

Requests keep their lengths themselves, a match names KV slots instead of a length, and locks are counted by nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams, IncLockRefResult, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache_components import BASE_COMPONENT_TYPE, ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel, get_server_args
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession

from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.reader import Reader

TREES = (UnifiedRadixCache,)
"""The radix caches without the plugin's that the step log knows; for this one start with SGLANG_ENABLE_UNIFIED_RADIX_TREE=1."""
FULL = BASE_COMPONENT_TYPE
"""The pool of all layers but those with windows."""
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_PRIVATE = "sqreal_private"  # attribute of a request: what it adds to its prefix is nobody else's


# Sessions.


@dataclass(eq=False)
class Row(SessionSlot):  # type: ignore[misc]  # SGLang's class, untyped here
    """The row of KV that a slot holds; lengths are in tokens. While a turn runs on it, they are the turn's."""

    turn: Any = None  # the request that runs on a copy of what the slot says, or waits to
    publishes_prompt = False  # a slot comes when its first turn is over

    @property
    def _holder(self) -> Any:
        return self.turn if self.busy and self.turn is not None else self

    @property
    def index(self) -> int:
        return int(self.req_pool_idx)

    @property
    def protected(self) -> int:
        """So many at its start are the tree's."""
        return int(self.cache_protected_len)

    @property
    def committed(self) -> int:
        return int(self._holder.kv_committed_len)

    @property
    def allocated(self) -> int:
        return int(self._holder.kv.kv_allocated_len)

    @property
    def slid(self) -> int:
        """So many at its start, those of the tree left out, have no window KV any more."""
        return int(self._holder.kv.swa_evicted_seqlen)

    def shrink(self, tokens: int, slid: int) -> None:
        """So many tokens are gone from it, `slid` of them without window KV."""
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
    """What SGLang asks of its sessions in this version, and what becomes of their KV."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self.cache = cache
        self.slots: dict[str, Any] = {}

    def borrowed_slot(self, req: Any) -> Any:
        """The slot on whose row a request runs, if any."""
        if req.session is None or not req.session.streaming:
            return None
        slot = self.slots.get(req.session.session_id)
        return slot if slot is not None and slot.turn is req else None

    def will_lend_record(self, req: Any) -> bool:
        """Whether a request that waits will run on its session's row."""
        session = req.session
        return (
            session is not None
            and session.streaming
            and req.to_finish is None
            and session.session_id in self.slots
        )

    def try_cache_finished_req(self, req: Any, is_insert: bool = True, **kwargs: Any) -> bool:
        if req.session is None or not req.session.streaming:
            return False
        name = req.session.session_id
        slot = self.slots.get(name)
        if slot is None:  # a first turn: what it has becomes the session's
            slot = self.slots[name] = self.new_slot(
                req.session,
                last_node=req.last_node,
                cache_protected_len=req.cache_protected_len,
                swa_uuid_for_lock=req.swa_uuid_for_lock,
            )
        return self.lost(req, slot) or bool(super().try_cache_finished_req(req, is_insert, **kwargs))

    def give_back(self, req: Any, slot: Any, *, aborted: bool) -> None:
        """A turn runs on its row no more."""
        del aborted
        slot.busy = False
        slot.save_from_req(req, is_first=False)

    def matched(self, slot: Any, node: Any, tokens: int) -> MatchResult:
        """A prefix of so many tokens of a slot's row, locked by `node`."""
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
        for start, stop in spans:  # slots without window KV are known to the allocator
            self.cache.token_to_kv_pool_allocator.free(row[start:stop].clone())

    def free_tail(self, slot: Any, tokens: int) -> None:
        """Free what lies behind so many tokens."""
        self._free_kv_aligned(slot.index, tokens, slot.allocated)
        slot.kv.kv_allocated_len = min(slot.kv.kv_allocated_len, tokens)
        slot.kv_committed_len = min(slot.kv_committed_len, tokens)
        slot.kv.swa_evicted_seqlen = min(slot.kv.swa_evicted_seqlen, tokens)

    def free_row(self, slot: Any) -> None:
        """Free all of it that is not the tree's."""
        if slot.last_node is not None:
            self.cache.dec_lock_ref(slot.last_node, DecLockRefParams(swa_uuid_for_lock=slot.swa_uuid_for_lock))
        if slot.protected < slot.allocated:
            self.free_spans(slot, [(slot.protected, slot.allocated)])
        self.cache.req_to_token_pool.free_slots.append(slot.index)
        if slot.turn is not None:  # a turn that waits has looked at this slot already: it has no row any more
            slot.turn.req_pool_idx = slot.turn.kv = slot.turn.swa_uuid_for_lock = None
            slot.turn.kv_committed_len = 0

    # Locks, and SGLang's accounts of what no request owns.

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
        """Rows without a session count as well; they get names that no session has."""
        slots: dict[str, Any] = self.slots
        self.slots = {**slots, **{f"forked/{index}": slot for index, slot in enumerate(self.left)}}
        try:
            return int(getattr(super(), account)(active))
        finally:
            self.slots = slots


class Cache(UnifiedRadixCache):  # type: ignore[misc]  # as above
    """Where SGLang's cache asks about sessions and forks."""

    def match_prefix(self, params: Any) -> Any:
        req = params.req
        if req is not None and not self.session.will_lend_record(req):
            params = self.session.shared(params)
        return super().match_prefix(params)

    def cache_unfinished_req(self, req: Any, chunked: bool = False, **kwargs: Any) -> None:
        if getattr(req, _PRIVATE, False):
            if chunked:  # as of a session's turn: what is computed stays its own
                row = self.req_to_token_pool.req_to_token[req.req_pool_idx]
                req.prefix_indices = row[: req.extend_range.end].to(torch.int64, copy=True)
            return
        session = req.session
        if session is None or not session.streaming:
            super().cache_unfinished_req(req, chunked, **kwargs)
            return
        whole = req.extend_range
        if not chunked and not self.session.has_slot(session.session_id):  # publishes no more than is shared
            first = self.session.conversation(session).first
            req.set_extend_range(min(whole.start, first), min(whole.end, first))
        super().cache_unfinished_req(req, chunked, **kwargs)
        req.extend_range = whole
        req.swa_prefix_lock_released = (
            True  # the lock goes with the slot; nobody gives a part of it back before
        )

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int, **kwargs: Any
    ) -> None:
        mine = getattr(req, _PRIVATE, False)
        super().cache_finished_req(req, is_insert and not mine, kv_len_to_handle=kv_len_to_handle, **kwargs)
        self.session.left_row(req)


def keep_private(req: Any) -> None:
    """What this request adds to the prefix that it matches is nobody else's."""
    setattr(req, _PRIVATE, True)  # SGLang's own flag loses the chunks of a prefill


def create_cache(context: Any, cache_class: type) -> Any:
    window = (ComponentType.SWA,) if context.is_hybrid_swa else ()
    context.params.tree_components = (ComponentType.FULL, *window)
    return cache_class(context.params)


def limited(key: Any, tokens: int) -> RadixKey:
    """The first so many tokens of a key."""
    return RadixKey(
        key.token_ids, extra_key=key.extra_key, is_bigram=key.is_bigram, limit=min(tokens, len(key))
    )


# Requests.


def prefix_len(req: Any) -> int:
    """How many tokens it found cached."""
    return len(req.prefix_indices)


def extend_len(req: Any) -> int:
    """How many tokens it computes in its next pass."""
    return int(req.extend_range.length)


def refused(scheduler: Any, recv_req: Any) -> Any:
    """The request of an answer that refuses it."""
    return Req(
        recv_req.rid,
        recv_req.input_text,
        recv_req.input_ids,
        recv_req.sampling_params,
        vocab_size=scheduler.model_config.vocab_size,
        http_worker_ipc=recv_req.http_worker_ipc,
    )


class _Instead:
    """Another object, with some attributes in place of its own."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self._other = other
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def rendered(serving: Any, request: Any, *, prompt: bool) -> list[int]:
    """A chat request as its template renders it. `prompt`: with the beginning of an answer, which SGLang always asks for."""
    if not prompt:
        manager = serving.tokenizer_manager
        apply = manager.tokenizer.apply_chat_template
        tokenizer = _Instead(
            manager.tokenizer,
            apply_chat_template=lambda *args, **words: apply(
                *args, **{**words, "add_generation_prompt": False}
            ),
        )
        serving = copy.copy(serving)
        serving.tokenizer_manager = _Instead(manager, tokenizer=tokenizer)
    return list(serving._process_messages(request, False).prompt_ids)  # noqa: SLF001 - the one place that renders


def queue_hooks(left: Callable[[Any], None]) -> list[Hook]:
    """`left` is told of requests that were aborted before they ran; their sessions take another turn then."""

    def sent(original: Callable[..., None], sender: Any, output: Any, recv_obj: Any = None) -> None:
        original(sender, output, recv_obj)
        if isinstance(output, AbortReq) and isinstance(recv_obj, Req):
            left(recv_obj)
            if recv_obj.session is not None and recv_obj.session.streaming and recv_obj.to_finish is None:
                recv_obj.session.abort_req()

    def slid(original: Callable[..., None], batch: Any, req: Any, pre_len: int) -> None:
        tree = batch.tree_cache
        floor = tree.session.window_floor(req)
        if floor is not None:  # a fork reads the window before it
            pre_len = min(pre_len, floor + max(tree.sliding_window_size, tree.page_size))
        original(batch, req, pre_len)

    sender = "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper"
    return [
        Hook(f"{sender}.send_output", "self output recv_obj", sent),
        Hook(f"{_BATCH}._evict_swa", "self req pre_len", slid),
    ]


# Admission.


class Budget:
    """What is left for an admission pass (PrefillAdder), in tokens."""

    def __init__(self, adder: Any) -> None:
        self._adder = adder

    @property
    def total(self) -> float:
        return float(self._adder.rem_total_tokens)

    @property
    def window(self) -> float:
        return float(self._adder.rem_swa_tokens)

    @property
    def promised(self) -> float:
        """What of the pool is promised to requests that run, and to those already let in."""
        return float(self._adder.rem_total_token_offset)

    @property
    def overhead(self) -> int:
        """What admission counts for each request beside its tokens."""
        return int(self._adder.page_size)

    def window_need(self, extend: int, new: int) -> float:
        del new  # a window, whatever comes
        return float(self._adder._swa_budget_for_req(self._adder.ceil_paged_tokens(extend)))  # noqa: SLF001 - as add_one_req does

    def fits(self, req: Any, *, extend: int, new: int) -> bool:
        """Whether add_one_req would let it in, as far as the pools go."""
        del req
        if extend + new + self.overhead >= self.total:
            return False
        if not self._adder.is_hybrid_swa or self.window_need(extend, new) < self.window:
            return True
        return self._adder.rem_chunk_tokens is not None and self._adder._swa_chunk_cap() > 0  # noqa: SLF001 - as above


def micro_batch(_scheduler: Any) -> int:
    """How many requests may run at once."""
    return int(get_server_args().pp_max_micro_batch_size)


def admission_hooks(seats: Callable[..., int]) -> list[Hook]:
    """`seats(found, scheduler, running, begins=...)` may widen how many requests a pass may hold."""
    ordered = False  # is the queue in order, so that its requests are looked at next?

    def passes(original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        nonlocal ordered
        ordered = False
        return original(scheduler, running_batch)

    def orders(original: Callable[..., Any], policy: Any, waiting_queue: Any, running_batch: Any) -> Any:
        nonlocal ordered
        ordered = True
        return original(policy, waiting_queue, running_batch)

    def allocatable(original: Callable[..., int], scheduler: Any, running_bs: int) -> int:
        return seats(original(scheduler, running_bs), scheduler, running_bs, begins=not ordered)

    return [
        Hook(f"{_SCHEDULER}.get_new_batch_prefill", "self running_batch", passes),
        Hook(
            "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority",
            "self waiting_queue running_batch",
            orders,
        ),
        Hook(f"{_SCHEDULER}.get_num_allocatable_reqs", "self running_bs", allocatable),
    ]


# The start, and the step log.


def parallel(_scheduler: Any) -> Any:
    """The server's dp_size, pp_size and tp_rank."""
    return _Instead(get_parallel(), dp_size=get_server_args().dp_size)


def attends_in_parallel(scheduler: Any) -> bool:
    return bool(scheduler.enable_dp_attention)


def check_server(scheduler: Any) -> dict[str, bool]:
    """What this version cannot do with in-place eviction, by its fix."""
    tree = scheduler.tree_cache
    on_cpu = scheduler.server_args.device == "cpu"
    return {
        "use --page-size 1 on a CPU for a model with sliding windows": on_cpu
        and tree.supports_swa()
        and tree.page_size > 1
    }


def refresh_calls(_scheduler: Any) -> dict[str, int]:
    """This version has no counter behind rule 32 of the scheduler."""
    return {}


def lengths(req: Any) -> list[int]:
    """KV of a request: tree-owned, committed, allocated."""
    return [req.cache_protected_len, req.kv_committed_len, 0 if req.kv is None else req.kv.kv_allocated_len]


def slot_lengths(slot: Any) -> list[int]:
    """KV of a slot: tree-owned, committed, allocated."""
    if isinstance(slot, Row):
        return [slot.protected, slot.committed, slot.allocated]
    return lengths(slot)


def detail_hooks(details: Any) -> list[tuple[str, str, Callable[..., Any]]]:
    """The methods that a step log's details come from: path, parameters, watcher."""

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


NEEDS = (
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
    Need("sglang.srt.server_args.ServerArgs", "pp_max_micro_batch_size dp_size device"),
    Need(_SCHEDULER, "enable_dp_attention server_args"),
    Need("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat", "tokenizer_manager _process_messages"),
)
