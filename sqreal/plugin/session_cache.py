# SPDX-License-Identifier: Apache-2.0
"""SGLang's radix cache with sessions that can be cut and forked: the back end `--radix-cache-backend sidequest`."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

from sqreal.plugin import versions
from sqreal.plugin.hooks import Need
from sqreal.plugin.server_check import BACK_END
from sqreal.plugin.sessions import Sessions

_ADAPTER = versions.adapter()


class SessionCache(_ADAPTER.Cache):  # type: ignore[misc,name-defined]  # SGLang's class, untyped here
    """Radix cache with sessions; it serves plain requests like SGLang's own cache."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.session = Sessions(self)


def register() -> None:
    """Register the back end by its name, once in each process."""
    if get_radix_cache_factory(BACK_END) is None:
        register_radix_cache_backend(BACK_END, lambda context: _ADAPTER.create_cache(context, SessionCache))


NEEDS = (
    *_ADAPTER.NEEDS,
    Need(
        "sglang.srt.session.session_controller.Session",
        "streaming session_id req_nodes _inflight abort_req committed_origin_len committed_unpadded_len",
    ),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "origin_input_ids origin_input_ids_unpadded output_ids full_untruncated_fill_ids sampling_params session"
        " last_node to_finish finished_reason",
    ),
    Need("sglang.srt.mem_cache.memory_pool.ReqToTokenPool", "req_to_token"),
)
