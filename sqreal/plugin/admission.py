# SPDX-License-Identifier: Apache-2.0
"""Admission with idle sessions: the least recently used release their KV before any request is refused.

SGLang pins the row of an idle session, so a pool full of them would block the queue. Here a candidate of the queue, the
next chunk of a prompt and the next token of running requests may each release idle sessions, if that makes room
for them; so may a candidate that finds no free row. A held session is never released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin import versions
from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.request_options import fork_of
from sqreal.plugin.sessions import Sessions, Slot

_ADAPTER = versions.adapter()
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_CLIP = 4096  # SGLang's CLIP_MAX_NEW_TOKENS: admission reserves no more output than this for one request

Original = Callable[..., Any]


class Admission:
    """Hooks of admission, and the progress of the current admission pass."""

    def __init__(self) -> None:
        self._tried = 0  # candidates of the queue that the pass has examined
        self._admitted = 0  # requests that it admitted, including the chunked one

    def hooks(self) -> list[Hook]:
        """List the hooks of SGLang's methods."""
        return [
            Hook(f"{_SCHEDULER}.get_next_batch_to_run", "self running_batch last_batch", self.round),
            *_ADAPTER.admission_hooks(self.seats),
            Hook(f"{_ADDER}.add_one_req", "self req has_chunked_req truncation_align_size", self.candidate),
            Hook(f"{_ADDER}.add_chunked_req", "self req", self.chunk),
            Hook(
                "sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem",
                "self selected_indices",
                self.decode,
            ),
        ]

    def round(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin a scheduling round: sessions whose hold has expired may be released in it."""
        scheduler.tree_cache.session.end_holds()
        return original(scheduler, *args, **kwargs)

    def candidate(self, original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        """Make room for the queue's next request if idle sessions can, then let SGLang decide."""
        self._tried += 1
        while (short := _shortage(adder, req)) is not None and _release_for(adder, req, *short):
            pass
        answer = original(adder, req, *args, **kwargs)
        if adder.can_run_list and adder.can_run_list[-1] is req:
            self._admitted += 1
            slot = adder.tree_cache.session.borrowed_slot(req)
            if slot is not None:
                slot.busy, slot.held_until = True, None
        return answer

    def chunk(self, original: Original, adder: Any, req: Any) -> Any:
        """Make room for a prompt's next chunk, which waits if there are no slots; SGLang would run out of them."""
        while not _chunk_fits(adder, req) and _release_for(adder, req, 0, 0):
            pass
        if not _chunk_fits(adder, req):
            return req
        more = original(adder, req)
        self._admitted += bool(adder.can_run_list) and adder.can_run_list[-1] is req
        return more

    def seats(self, found: int, scheduler: Any, running: int, *, begins: bool) -> int:
        """Return the number of requests a pass may hold: a session's turn brings its row, and one can be freed for others.

        `found`: SGLang's own number. `begins`: the pass begins, and the number decides whether any request may enter.
        """
        most: int = _ADAPTER.micro_batch(scheduler) - running
        if begins:
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
        """Make room for the next token of running requests: idle sessions are released before any request is retracted."""
        while not (fits := bool(original(batch, *args, **kwargs))):
            if not _release_oldest(batch.tree_cache.session, None):
                break
        return fits


def _shortage(adder: Any, req: Any) -> tuple[float, float] | None:
    """Count the slots and window slots that a candidate lacks, keeping its own prefix (PrefillAdder.add_one_req); None: it fits."""
    budget = _ADAPTER.Budget(adder)
    new = min(max(req.sampling_params.max_new_tokens - len(req.output_ids), 0), _CLIP)
    extend = len(req.full_untruncated_fill_ids) - _ADAPTER.prefix_len(req)
    with adder._lock_node(req.last_node):  # noqa: SLF001 - as add_one_req does
        if budget.fits(req, extend=extend, new=new):
            return None
        window = budget.window_need(extend, new) - budget.window if adder.is_hybrid_swa else -1.0
        return extend + new + budget.overhead - budget.total, window


def _chunk_fits(adder: Any, req: Any) -> bool:
    """Whether the next chunk finds slots. Like SGLang, a single pool lets it use slots that are promised to others."""
    budget = _ADAPTER.Budget(adder)
    limit = min(adder.rem_chunk_tokens, int(budget.total))
    if adder.is_hybrid_swa:
        limit = min(limit, int(budget.window) - adder.page_size)
    elif limit <= 0:
        limit = adder.rem_chunk_tokens
    if limit <= 0:
        return False
    prefix: int = _ADAPTER.prefix_len(req)
    end = min(len(req.full_untruncated_fill_ids), prefix + limit)
    slots = adder.ceil_paged_tokens(end) - adder.ceil_paged_tokens(prefix)
    return bool(slots <= budget.total + budget.promised)


def _release_for(adder: Any, req: Any, short: float, window_short: float) -> bool:
    """Release the least recently used idle session, unless all of them together would not make enough room."""
    cache = adder.tree_cache
    idle = _releasable(cache.session, req)
    gain = sum(slot.committed for _, slot in idle)
    if not idle or gain <= short:
        return False
    if adder.is_hybrid_swa:
        window_gain = sum(_window_slots(cache, slot) + cache.sliding_window_size for _, slot in idle)
        if window_gain <= window_short:
            return False
    return _release_oldest(cache.session, req)


def _window_slots(cache: Any, slot: Slot) -> int:
    page = cache.page_size
    return int(-(-slot.committed // page) * page - max(slot.protected, slot.slid))


def _release_oldest(sessions: Sessions, spare: Any) -> bool:
    idle = _releasable(sessions, spare)
    if idle:
        sessions.release_idle(idle[0][0])
    return bool(idle)


def _releasable(sessions: Sessions, spare: Any) -> list[tuple[str, Slot]]:
    """List idle sessions without readers, least recently used first, except the one that `spare` continues or forks."""
    own = None
    if spare is not None:
        fork = fork_of(spare)
        own = fork.session if fork is not None else spare.session and spare.session.session_id
    return [(name, slot) for name, slot in sessions.idle() if name != own]


NEEDS = (
    Need(
        _ADDER,
        "tree_cache can_run_list new_chunked_req rem_chunk_tokens page_size is_hybrid_swa ceil_paged_tokens _lock_node",
    ),
    Need(_SCHEDULER, "waiting_queue tree_cache"),
)
