"""Room for who waits: idle sessions give up their KV, the least recently used first, before anybody is refused.

SGLang pins the row of an idle session, so a pool full of them would stop the queue. Here a candidate of the queue, the
next chunk of a prompt and the next token of running requests may each have idle sessions released, if that makes room
for them; so may a candidate that finds no free row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_parallel

from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.sessions import Sessions, Slot
from sqreal.plugin.wish import fork_of

_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_CLIP = 4096  # SGLang's CLIP_MAX_NEW_TOKENS: admission reserves no more output than this for one request

Original = Callable[..., Any]


class Admission:
    """The hooks, and how far the admission pass that is going on has come."""

    def __init__(self) -> None:
        self._tried = 0  # candidates of the queue that the pass has looked at
        self._admitted = 0  # requests that it let in, the chunked one included

    def hooks(self) -> list[Hook]:
        """The methods of SGLang that are widened."""
        return [
            Hook(f"{_ADDER}.add_one_req", "self req has_chunked_req truncation_align_size", self.candidate),
            Hook(f"{_ADDER}.add_chunked_req", "self req", self.chunk),
            Hook(
                f"{_ADDER}._select_prefill_admission",
                "self req * total_tokens host_hit_length swa_host_hit_length truncation_align_size has_chunked_req",
                one_in_chunks,
            ),
            Hook(
                "sglang.srt.managers.scheduler.Scheduler.get_num_allocatable_reqs",
                "self running_bs beam_width running_batch num_held_rows",
                self.seats,
            ),
            Hook(
                "sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem",
                "self selected_indices",
                self.decode,
            ),
        ]

    def candidate(self, original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        """The queue's next request: make room for it if idle sessions can, then let SGLang decide."""
        self._tried += 1
        while (short := _shortage(adder, req)) is not None and _release_for(adder, req, *short):
            pass
        answer = original(adder, req, *args, **kwargs)
        if adder.can_run_list and adder.can_run_list[-1] is req:
            self._admitted += 1
            slot = adder.tree_cache.session.borrowed_slot(req)
            if slot is not None:
                slot.busy = True
        return answer

    def chunk(self, original: Original, adder: Any, req: Any) -> Any:
        """The next chunk of a prompt: it waits when there are no slots for it, where SGLang would run out of them."""
        while not _chunk_fits(adder, req) and _release_for(adder, req, 0, 0):
            pass
        if not _chunk_fits(adder, req):
            return req
        more = original(adder, req)
        self._admitted += bool(adder.can_run_list) and adder.can_run_list[-1] is req
        return more

    def seats(self, original: Original, scheduler: Any, running_bs: int, *args: Any, **kwargs: Any) -> int:
        """How many requests a pass may hold: a session's turn brings its row, and for others one can be freed."""
        found: int = original(scheduler, running_bs, *args, **kwargs)
        most = int(get_parallel().pp_max_micro_batch_size) - running_bs
        if "num_held_rows" not in kwargs:  # the pass begins: may anybody enter?
            self._tried = self._admitted = 0
            return most
        if found > self._admitted or most <= self._admitted:
            return found
        req = scheduler.waiting_queue[self._tried]
        sessions: Sessions = scheduler.tree_cache.session
        if sessions.will_lend_record(req) or _release_oldest(sessions, req):
            return self._admitted + 1
        return found

    def decode(self, original: Original, batch: Any, *args: Any, **kwargs: Any) -> bool:
        """The next token of all that run: idle sessions go before anybody is retracted."""
        while not (fits := bool(original(batch, *args, **kwargs))):
            if not _release_oldest(batch.tree_cache.session, None):
                break
        return fits


def one_in_chunks(
    original: Original, adder: Any, req: Any, *, has_chunked_req: bool = False, **kwargs: Any
) -> Any:
    """One prompt at a time is prefilled in chunks, and a second one waits.

    A window pool may cut a chunk short or leave no slot for it. With what that leaves of the pass SGLang begins a second
    prompt, and fails: it can remember one (Scheduler.chunked_req).
    """
    found = original(adder, req, has_chunked_req=has_chunked_req, **kwargs)
    begun = has_chunked_req or adder.new_chunked_req is not None
    return AddReqResult.OTHER if begun and getattr(found, "is_chunked", False) else found


def _shortage(adder: Any, req: Any) -> tuple[float, float] | None:
    """Slots and window slots that a candidate lacks, its own prefix kept (PrefillAdder.add_one_req); None: it fits."""
    budget = adder.memory_budget
    new = min(max(req.sampling_params.max_new_tokens - len(req.output_ids), 0), _CLIP)
    extend = len(req.full_untruncated_fill_ids) - req.prefix_len
    need = extend + new + adder.per_req_token_overhead
    with adder._lock_node(req.last_node):  # noqa: SLF001 - as add_one_req does
        fits, _ = budget.check_prefill(
            extend_input_len=extend,
            total_tokens=need,
            max_new_tokens=new,
            input_tokens=len(req.full_untruncated_fill_ids),
            swa_host_hit_length=0,
            chunk_limit=adder.rem_chunk_tokens,
        )
        if fits:
            return None
        window = -1.0
        if adder.is_hybrid_swa:
            pages = adder.ceil_paged_tokens(extend)
            window = budget.swa_tokens(pages, new, chunk_limit=adder.rem_chunk_tokens) - budget.remaining_swa
        return need - budget.remaining_total, window


def _chunk_fits(adder: Any, req: Any) -> bool:
    """Whether the next chunk finds slots. Like SGLang, a single pool lets it go on beyond what is promised to others."""
    budget = adder.memory_budget
    limit = min(adder.rem_chunk_tokens, int(budget.remaining_total))
    if adder.is_hybrid_swa:
        limit = min(limit, int(budget.remaining_swa) - adder.page_size)
    elif limit <= 0:
        limit = adder.rem_chunk_tokens
    if limit <= 0:
        return False
    end = min(len(req.full_untruncated_fill_ids), req.prefix_len + limit)
    slots = adder.ceil_paged_tokens(end) - adder.ceil_paged_tokens(req.prefix_len)
    return bool(slots <= budget.remaining_total + budget.total_offset)


def _release_for(adder: Any, req: Any, short: float, window_short: float) -> bool:
    """Release the least recently used idle session; not when all of them together would not close the gap."""
    cache = adder.tree_cache
    idle = _releasable(cache.session, req)
    gain = sum(slot.kv.kv_committed_len for _, slot in idle)
    if not idle or gain <= short:
        return False
    if adder.is_hybrid_swa:
        window_gain = sum(_window_slots(cache, slot) + cache.sliding_window_size for _, slot in idle)
        if window_gain <= window_short:
            return False
    return _release_oldest(cache.session, req)


def _window_slots(cache: Any, slot: Slot) -> int:
    kv, page = slot.kv, cache.page_size
    slid = kv.get_evicted_seqlen(ComponentType.SWA)
    return int(-(-kv.kv_committed_len // page) * page - max(kv.cache_protected_len, slid))


def _release_oldest(sessions: Sessions, spare: Any) -> bool:
    idle = _releasable(sessions, spare)
    if idle:
        sessions.release_idle(idle[0][0])
    return bool(idle)


def _releasable(sessions: Sessions, spare: Any) -> list[tuple[str, Slot]]:
    """Idle sessions nobody reads, least recently used first, but for the one that `spare` continues or forks."""
    own = None
    if spare is not None:
        fork = fork_of(spare)
        own = fork.session if fork is not None else spare.session and spare.session.session_id
    return [(name, slot) for name, slot in sessions.idle() if name != own]


NEEDS = (
    Need(
        _ADDER,
        "tree_cache memory_budget can_run_list new_chunked_req rem_chunk_tokens page_size per_req_token_overhead is_hybrid_swa"
        " ceil_paged_tokens _lock_node",
    ),
    Need("sglang.srt.mem_cache.prefill_budget.PrefillBudget", "check_prefill remaining_total total_offset"),
    Need("sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget", "swa_tokens remaining_swa"),
    Need("sglang.srt.managers.scheduler.Scheduler", "waiting_queue"),
    Need("sglang.srt.session.streaming_session.StreamingSession", "will_lend_record borrowed_slot"),
)
