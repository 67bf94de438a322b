# SPDX-License-Identifier: Apache-2.0
"""Refusals of /generate by the HTTP process, as a scheduler sees a request's parts one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin.checks import short
from sqreal.plugin.hooks import Hook, Need

_REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"


def normalized(original: Callable[..., None], request: Any) -> None:
    """Refuse several prompts or answers for a session: SGLang would run the first and refuse the others."""
    original(request)
    if request.session_params is None:
        return
    if request.parallel_sample_num > 1:
        raise ValueError(f"n: {request.parallel_sample_num}: a session continues with one answer; leave it out")
    if not request.is_single:
        raise ValueError(
            f"session_params: {short(request.session_params)} with a batch of {request.batch_size} prompts; "
            "send a session's turns one by one"
        )


HOOKS = (Hook(f"{_REQUEST}.normalize_batch_and_arguments", "self", normalized),)
NEEDS = (Need(_REQUEST, "session_params parallel_sample_num is_single batch_size"),)
