"""/generate: what the process that speaks HTTP has to refuse, since a scheduler sees its parts one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin.checks import short
from sqreal.plugin.hooks import Hook, Need

_REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"


def normalized(original: Callable[..., None], request: Any) -> None:
    """A session goes on with one prompt and one answer; of several the first would be done, and the others refused."""
    original(request)
    if request.session_params is None:
        return
    if request.parallel_sample_num > 1:
        raise ValueError(f"n: {request.parallel_sample_num}: a session goes on with one answer; leave it out")
    if not request.is_single:
        raise ValueError(
            f"session_params: {short(request.session_params)} with a batch of {request.batch_size} prompts; "
            "send a session's turns one by one"
        )


HOOKS = (Hook(f"{_REQUEST}.normalize_batch_and_arguments", "self", normalized),)
NEEDS = (Need(_REQUEST, "session_params parallel_sample_num is_single batch_size"),)
