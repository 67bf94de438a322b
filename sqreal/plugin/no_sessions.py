# SPDX-License-Identifier: Apache-2.0
"""Server without in-place sessions: refuses request options that only they can serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.request_options import words


def queued(original: Callable[..., None], scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse a queued request with such options by name; the server continues."""
    if req.to_finish is None and (asked := words(req.sampling_params.custom_params)):
        req.set_finish_with_abort(
            f"{asked[0]}: this server has no in-place sessions; start it with sqreal serve MODEL --cache session"
        )
    original(scheduler, req, *args, **kwargs)


HOOKS = (
    Hook("sglang.srt.managers.scheduler.Scheduler._add_request_to_queue", "self req is_retracted", queued),
)
NEEDS = (
    Need("sglang.srt.managers.schedule_batch.Req", "to_finish sampling_params set_finish_with_abort"),
    Need("sglang.srt.sampling.sampling_params.SamplingParams", "custom_params"),
)
