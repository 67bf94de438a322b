"""Requests of 0.5.23, and what an admission pass has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.runtime_context import get_parallel

from sqreal.plugin.hooks import Hook

_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


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


def asked(_adder: Any, _req: Any) -> dict[str, float]:
    """What an admission test asks for: a method is called with it, which detail_hooks watches."""
    return {}


def micro_batch(_scheduler: Any) -> int:
    """How many requests may run at once."""
    return int(get_parallel().pp_max_micro_batch_size)


def one_in_chunks(
    original: Callable[..., Any], adder: Any, req: Any, *, has_chunked_req: bool = False, **kwargs: Any
) -> Any:
    """One prompt at a time is prefilled in chunks, and a second one waits.

    A window pool may cut a chunk short or leave no slot for it. With what that leaves of the pass SGLang begins a second
    prompt, and fails: it can remember one (Scheduler.chunked_req).
    """
    found = original(adder, req, has_chunked_req=has_chunked_req, **kwargs)
    begun = has_chunked_req or adder.new_chunked_req is not None
    return AddReqResult.OTHER if begun and getattr(found, "is_chunked", False) else found


def admission_hooks(seats: Callable[..., int]) -> list[Hook]:
    """`seats(found, scheduler, running, begins=...)` may widen how many requests a pass may hold."""

    def allocatable(
        original: Callable[..., int], scheduler: Any, running_bs: int, *args: Any, **kwargs: Any
    ) -> int:
        found = original(scheduler, running_bs, *args, **kwargs)
        return seats(found, scheduler, running_bs, begins="num_held_rows" not in kwargs)

    parameters = "self running_bs beam_width running_batch num_held_rows"
    selects = (
        "self req * total_tokens host_hit_length swa_host_hit_length truncation_align_size has_chunked_req"
    )
    return [
        Hook(f"{_SCHEDULER}.get_num_allocatable_reqs", parameters, allocatable),
        Hook(f"{_ADDER}._select_prefill_admission", selects, one_in_chunks),
    ]
