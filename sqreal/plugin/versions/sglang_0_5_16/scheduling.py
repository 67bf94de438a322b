# SPDX-License-Identifier: Apache-2.0
"""Requests and admission budget of 0.5.16; prefixes are tensors of KV slots."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult
from sglang.srt.runtime_context import get_server_args

from sqreal.plugin.hooks import Hook

_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"


def prefix_len(req: Any) -> int:
    """Number of tokens that a request found cached."""
    return len(req.prefix_indices)


def extend_len(req: Any) -> int:
    """Number of tokens that a request computes in its next pass."""
    return int(req.extend_range.length)


def refused(scheduler: Any, recv_req: Any) -> Any:
    """Return the request of a refusing answer."""
    return Req(
        recv_req.rid,
        recv_req.input_text,
        recv_req.input_ids,
        recv_req.sampling_params,
        vocab_size=scheduler.model_config.vocab_size,
        http_worker_ipc=recv_req.http_worker_ipc,
    )


class Instead:
    """Proxy of another object, with some attributes replaced."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self._other = other
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def rendered(serving: Any, request: Any, *, prompt: bool) -> list[int]:
    """Render a chat request by its template. `prompt`: with the beginning of an answer, which SGLang always adds."""
    if not prompt:
        manager = serving.tokenizer_manager
        apply = manager.tokenizer.apply_chat_template
        tokenizer = Instead(
            manager.tokenizer,
            apply_chat_template=lambda *args, **words: apply(
                *args, **{**words, "add_generation_prompt": False}
            ),
        )
        serving = copy.copy(serving)
        serving.tokenizer_manager = Instead(manager, tokenizer=tokenizer)
    return list(serving._process_messages(request, False).prompt_ids)  # noqa: SLF001 - the one place that renders


def queue_hooks(left: Callable[[Any], None]) -> list[Hook]:
    """List the queue's hooks; `left` is called for requests aborted before they ran, whose sessions can then take another turn."""

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
    """Remaining budget of an admission pass (PrefillAdder), in tokens."""

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
        """Tokens of the pool promised to running requests and to those already admitted."""
        return float(self._adder.rem_total_token_offset)

    @property
    def overhead(self) -> int:
        """Tokens that admission counts for each request in addition to its own."""
        return int(self._adder.page_size)

    def window_need(self, extend: int, new: int) -> float:
        del new  # a window, in any case
        return float(self._adder._swa_budget_for_req(self._adder.ceil_paged_tokens(extend)))  # noqa: SLF001 - as add_one_req does

    def fits(self, req: Any, *, extend: int, new: int) -> bool:
        """Whether the pools have room for add_one_req to admit it."""
        del req
        if extend + new + self.overhead >= self.total:
            return False
        if not self._adder.is_hybrid_swa or self.window_need(extend, new) < self.window:
            return True
        return self._adder.rem_chunk_tokens is not None and self._adder._swa_chunk_cap() > 0  # noqa: SLF001 - as above


def asked(adder: Any, req: Any) -> dict[str, float]:
    """Return the need of an admission test and the room it finds, its own prefix locked, which add_one_req compares itself."""
    budget = Budget(adder)
    extend = len(req.full_untruncated_fill_ids) - prefix_len(req)
    new = min(max(req.sampling_params.max_new_tokens - len(req.output_ids), 0), CLIP_MAX_NEW_TOKENS)
    found = {"need": extend + new + budget.overhead}
    with adder._lock_node(req.last_node):  # noqa: SLF001 - as add_one_req does
        found["rem"] = round(budget.total, 4)
        if adder.is_hybrid_swa:
            found |= {"need_swa": budget.window_need(extend, new), "rem_swa": round(budget.window, 4)}
    return found


def micro_batch(_scheduler: Any) -> int:
    """Return the number of requests that may run at once."""
    return int(get_server_args().pp_max_micro_batch_size)


def one_in_chunks(
    original: Callable[..., Any], adder: Any, req: Any, has_chunked_req: bool, truncation_align_size: int | None
) -> Any:
    """Let a second prompt wait, as one at a time is prefilled in chunks.

    A window pool may cut a chunk short or leave no slot for it. With what that leaves of the pass SGLang begins a second
    prompt, and fails: it can remember one (Scheduler.chunked_req).
    """
    if (has_chunked_req or adder.new_chunked_req is not None) and _in_chunks(adder, req):
        return AddReqResult.OTHER
    return original(adder, req, has_chunked_req, truncation_align_size)


def _in_chunks(adder: Any, req: Any) -> bool:
    """Whether add_one_req would chunk it, if it admits it."""
    limit = adder.rem_chunk_tokens
    if limit is None:
        return False
    tokens = adder.ceil_paged_tokens(len(req.full_untruncated_fill_ids) - prefix_len(req))
    with adder._lock_node(req.last_node):  # noqa: SLF001 - as add_one_req does
        if adder.is_hybrid_swa and Budget(adder).window_need(tokens, 0) >= adder.rem_swa_tokens:
            limit = min(limit, adder._swa_chunk_cap())  # noqa: SLF001 - as above; 0: there is no room at all
    return bool(0 < limit < tokens)


def admission_hooks(seats: Callable[..., int]) -> list[Hook]:
    """List the hooks of admission; `seats(found, scheduler, running, begins=...)` may raise the number of requests of a pass."""
    ordered = False  # is the queue in order, so that its requests are examined next?

    def passes(original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        nonlocal ordered
        ordered = False
        if running_batch.is_empty():
            # As 0.5.23 does: only a request that leaves opens the queue again, and here none is left. So a
            # request that waits for memory that is held would wait for ever.
            running_batch.batch_is_full = False
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
        Hook(f"{_ADDER}.add_one_req", "self req has_chunked_req truncation_align_size", one_in_chunks),
    ]
