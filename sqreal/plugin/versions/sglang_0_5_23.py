"""SGLang 0.5.23: a session owns its row and the tree lock from its first turn's admission on; turns borrow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import create_unified_radix_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession

from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.reader import Reader

TREES = (UnifiedRadixCache,)
"""The radix caches that a server has without the plugin's."""
FULL = BASE_COMPONENT_TYPE
"""The pool of all layers but those with windows."""
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"


# Sessions.


class Row(SessionSlot):  # type: ignore[misc]  # SGLang's class, untyped here
    """The row of KV that a slot holds; lengths are in tokens."""

    @property
    def index(self) -> int:
        return int(self.kv.req_pool_idx)

    @property
    def protected(self) -> int:
        """So many at its start are the tree's."""
        return int(self.kv.cache_protected_len)

    @property
    def committed(self) -> int:
        return int(self.kv.kv_committed_len)

    @property
    def allocated(self) -> int:
        return int(self.kv.kv_allocated_len)

    @property
    def slid(self) -> int:
        """So many at its start, those of the tree left out, have no window KV any more."""
        return int(self.kv.get_evicted_seqlen(ComponentType.SWA))

    def shrink(self, tokens: int, slid: int) -> None:
        """So many tokens are gone from it, `slid` of them without window KV."""
        if slid:
            self.kv.set_evicted_seqlen(ComponentType.SWA, self.slid - slid)
        self.kv.kv_allocated_len -= tokens
        self.kv.kv_committed_len -= tokens


class Rows(StreamingSession):  # type: ignore[misc]  # as above
    """What SGLang asks of its sessions in this version, and what becomes of their KV."""

    def take(self, req: Any) -> None:
        """A first turn gets its row: it becomes the session's."""
        if req.session is None or not req.session.streaming or self.borrowed_slot(req) is not None:
            return
        name = req.session.session_id
        assert name not in self.slots, f"session {name} has a row already"
        slot = self.new_slot(req.session, kv=req.kv, publishes_prompt=True)
        self._lock_to_slot(req, slot)
        self.slots[name] = slot

    def try_checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> bool:
        """Publish no more of a first turn than the session shares."""
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
        """A turn runs on its row no more."""
        req.detach_kv()
        if aborted:
            req.release_mm_inputs_on_abort()

    def matched(self, _slot: Any, node: Any, tokens: int) -> MatchResult:
        """A prefix of so many tokens of a slot's row, locked by `node`."""
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
        """Free what lies behind so many tokens."""
        self._free_tail(slot.kv, tokens)

    def free_row(self, slot: Any) -> None:
        """Free all of it that is not the tree's."""
        kv = slot.kv
        self.cache.unlock(slot.lock)
        slot.lock = None
        self.cache.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_allocated_len)])
        self.cache.req_to_token_pool.free(slot)
        # A turn that waits may have looked at this record already; it finds an empty one.
        kv.mark_kv_released()
        kv.cache_protected_len = kv.cache_inserted_len = kv.kv_committed_len = 0


class Cache(UnifiedRadixCache):  # type: ignore[misc]  # as above
    """Where SGLang's cache asks about sessions and forks."""

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


def keep_private(req: Any) -> None:
    """What this request adds to the prefix that it matches is nobody else's."""
    req.skip_radix_cache_insert = True


def create_cache(context: Any, cache_class: type) -> Any:
    return create_unified_radix_cache(context, cache_class=cache_class)


def limited(key: Any, tokens: int) -> RadixKey:
    """The first so many tokens of a key."""
    return RadixKey(
        key.token_ids,
        extra_key=key.extra_key,
        is_bigram=key.is_bigram,
        limit=min(tokens, len(key)),
        cache_salt=key.cache_salt,
    )


# Requests.


def prefix_len(req: Any) -> int:
    """How many tokens it found cached."""
    return int(req.prefix_len)


def extend_len(req: Any) -> int:
    """How many tokens it computes in its next pass."""
    return int(req.extend_len)


def refused(scheduler: Any, recv_req: Any) -> Any:
    """The request of an answer that refuses it."""
    return scheduler._create_generation_req(  # noqa: SLF001 - how SGLang makes it
        recv_req,
        recv_req.rid,
        recv_req.input_text,
        recv_req.input_ids,
        recv_req.sampling_params,
        vocab_size=scheduler.model_config.vocab_size,
        http_worker_ipc=recv_req.http_worker_ipc,
    )


def rendered(serving: Any, request: Any, *, prompt: bool) -> list[int]:
    """A chat request as its template renders it. `prompt`: with the beginning of an answer."""
    request._format_add_generation_prompt = prompt  # noqa: SLF001 - SGLang's own word for it
    return list(serving._process_messages(request, False).prompt_ids)  # noqa: SLF001 - the one place that renders


def queue_hooks(left: Callable[[Any], None]) -> list[Hook]:
    """`left` is told of requests that were aborted before they ran."""

    def released(original: Callable[..., None], scheduler: Any, req: Any) -> None:
        original(scheduler, req)
        left(req)

    return [Hook(f"{_SCHEDULER}._release_aborted_request", "self req", released)]


# Admission.


class Budget:
    """What is left for an admission pass (PrefillAdder), in tokens."""

    def __init__(self, adder: PrefillAdder) -> None:
        self._adder, self._budget = adder, adder.memory_budget

    @property
    def total(self) -> float:
        return float(self._budget.remaining_total)

    @property
    def window(self) -> float:
        return float(self._budget.remaining_swa)

    @property
    def promised(self) -> float:
        """What of the pool is promised to requests that run, and to those already let in."""
        return float(self._budget.total_offset)

    @property
    def overhead(self) -> int:
        """What admission counts for each request beside its tokens."""
        return int(self._adder.per_req_token_overhead)

    def window_need(self, extend: int, new: int) -> float:
        pages = self._adder.ceil_paged_tokens(extend)
        return float(self._budget.swa_tokens(pages, new, chunk_limit=self._adder.rem_chunk_tokens))

    def fits(self, req: Any, *, extend: int, new: int) -> bool:
        """Whether add_one_req would let it in, as far as the pools go."""
        fits, _ = self._budget.check_prefill(
            extend_input_len=extend,
            total_tokens=extend + new + self.overhead,
            max_new_tokens=new,
            input_tokens=len(req.full_untruncated_fill_ids),
            swa_host_hit_length=0,
            chunk_limit=self._adder.rem_chunk_tokens,
        )
        return bool(fits)


def micro_batch(_scheduler: Any) -> int:
    """How many requests may run at once."""
    return int(get_parallel().pp_max_micro_batch_size)


def admission_hooks(seats: Callable[..., int]) -> list[Hook]:
    """`seats(found, scheduler, running, begins=...)` may widen how many requests a pass may hold."""

    def allocatable(
        original: Callable[..., int], scheduler: Any, running_bs: int, *args: Any, **kwargs: Any
    ) -> int:
        found = original(scheduler, running_bs, *args, **kwargs)
        return seats(found, scheduler, running_bs, begins="num_held_rows" not in kwargs)

    parameters = "self running_bs beam_width running_batch num_held_rows"
    return [Hook(f"{_SCHEDULER}.get_num_allocatable_reqs", parameters, allocatable)]


# The start, and the step log.


def parallel(_scheduler: Any) -> Any:
    """The server's dp_size, pp_size and tp_rank."""
    return get_parallel()


def attends_in_parallel(scheduler: Any) -> bool:
    return bool(scheduler.attn_dp_enabled)


def check_server(scheduler: Any) -> dict[str, bool]:
    """What this version cannot do with in-place eviction, by its fix."""
    del scheduler
    return {}


def refresh_calls(scheduler: Any) -> dict[str, int]:
    """The counter behind rule 32 of the scheduler."""
    return {"refresh": scheduler.policy._waiting_prefix_refresh_calls}  # noqa: SLF001 - nowhere else


def lengths(req: Any) -> list[int]:
    """KV of a request: tree-owned, committed, allocated."""
    return slot_lengths(req)


def slot_lengths(slot: Any) -> list[int]:
    """KV of a slot: tree-owned, committed, allocated."""
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
    """What a request needs and what is left, its own prefix locked."""
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
    """The methods that a step log's details come from: path, parameters, watcher."""

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
    Need(_SCHEDULER, "_create_generation_req attn_dp_enabled policy"),
    Need("sglang.srt.managers.schedule_policy.SchedulePolicy", "_waiting_prefix_refresh_calls"),
    Need("sglang.srt.entrypoints.openai.protocol.ChatCompletionRequest", "_format_add_generation_prompt"),
    Need("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat", "_format_add_generation_prompt"),
)
