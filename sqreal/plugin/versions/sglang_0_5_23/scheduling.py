# SPDX-License-Identifier: Apache-2.0
"""Requests and admission budget of 0.5.23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.runtime_context import get_parallel

from sqreal.plugin.hooks import Hook

_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def prefix_len(req: Any) -> int:
    """Number of tokens that a request found cached."""
    return int(req.prefix_len)


def extend_len(req: Any) -> int:
    """Number of tokens that a request computes in its next pass."""
    return int(req.extend_len)


def refused(scheduler: Any, recv_req: Any) -> Any:
    """Return the request of a refusing answer."""
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
    """Render a chat request by its template. `prompt`: with the beginning of an answer."""
    request._format_add_generation_prompt = prompt  # noqa: SLF001 - SGLang's only name for it
    return list(serving._process_messages(request, False).prompt_ids)  # noqa: SLF001 - the one place that renders


def queue_hooks(left: Callable[[Any], None]) -> list[Hook]:
    """List the queue's hooks; `left` is called for requests aborted before they ran."""

    def released(original: Callable[..., None], scheduler: Any, req: Any) -> None:
        original(scheduler, req)
        left(req)

    return [Hook(f"{_SCHEDULER}._release_aborted_request", "self req", released)]


# Admission.


class Budget:
    """Remaining budget of an admission pass (PrefillAdder), in tokens."""

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
        """Tokens of the pool promised to running requests and to those already admitted."""
        return float(self._budget.total_offset)

    @property
    def overhead(self) -> int:
        """Tokens that admission counts for each request in addition to its own."""
        return int(self._adder.per_req_token_overhead)

    def window_need(self, extend: int, new: int) -> float:
        pages = self._adder.ceil_paged_tokens(extend)
        return float(self._budget.swa_tokens(pages, new, chunk_limit=self._adder.rem_chunk_tokens))

    def fits(self, req: Any, *, extend: int, new: int) -> bool:
        """Whether the pools have room for add_one_req to admit it."""
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
    """Return nothing: an admission test calls a method with its need, which detail_hooks watches."""
    return {}


def micro_batch(_scheduler: Any) -> int:
    """Return the number of requests that may run at once."""
    return int(get_parallel().pp_max_micro_batch_size)


def one_in_chunks(
    original: Callable[..., Any], adder: Any, req: Any, *, has_chunked_req: bool = False, **kwargs: Any
) -> Any:
    """Let a second prompt wait, as one at a time is prefilled in chunks.

    A window pool may cut a chunk short or leave no slot for it. With what that leaves of the pass SGLang begins a second
    prompt, and fails: it can remember one (Scheduler.chunked_req).
    """
    found = original(adder, req, has_chunked_req=has_chunked_req, **kwargs)
    begun = has_chunked_req or adder.new_chunked_req is not None
    return AddReqResult.OTHER if begun and getattr(found, "is_chunked", False) else found


def admission_hooks(seats: Callable[..., int]) -> list[Hook]:
    """List the hooks of admission; `seats(found, scheduler, running, begins=...)` may raise the number of requests of a pass."""

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
