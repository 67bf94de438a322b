# SPDX-License-Identifier: Apache-2.0
"""Refusal of servers with which in-place eviction is not tested; it names the flags to leave out.

The command line is checked before a model is loaded, which may take minutes; the resulting scheduler is checked after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqreal.plugin.hooks import Need, PluginError

_SPECULATIVE = "leave out --speculative-algorithm"
_DIFFUSION = "leave out --dllm-algorithm"
_LORA = "leave out --enable-lora and --lora-paths"
_HIERARCHICAL = "leave out --enable-hierarchical-cache"
_DISAGGREGATED = "leave out --disaggregation-mode"
_PRIORITIES = "leave out --enable-priority-scheduling"
_NO_TREE = "leave out --disable-radix-cache"
_DATA_PARALLEL = "use --dp-size 1, without --enable-dp-attention"
_PIPELINE = "use --pp-size 1"
_NO_SESSIONS = "start with --enable-streaming-session"
BACK_END = "sidequest"
"""The radix cache that in-place sessions need."""


def check_flags(args: Any) -> None:
    """Raise a PluginError for an untested command line (SGLang's ServerArgs), naming flag and fix."""
    _refuse(
        {
            f"start with --radix-cache-backend {BACK_END}": args.radix_cache_backend != BACK_END,
            _NO_SESSIONS: not args.enable_streaming_session,
            _SPECULATIVE: args.speculative_algorithm is not None,
            _DIFFUSION: args.dllm_algorithm is not None,
            _LORA: bool(args.enable_lora or args.lora_paths),
            _HIERARCHICAL: args.enable_hierarchical_cache,
            _DISAGGREGATED: args.disaggregation_mode != "null",
            _PRIORITIES: args.enable_priority_scheduling,
            _NO_TREE: args.disable_radix_cache,
            _DATA_PARALLEL: args.dp_size > 1 or args.enable_dp_attention,
            _PIPELINE: args.pp_size > 1,
        }
    )


def check_scheduler(scheduler: Any, parallel: Any, others: Mapping[str, bool]) -> None:
    """Raise a PluginError for untested settings that the model or SGLang added to the command line.

    `parallel`: its dp_size, pp_size and attn_dp_enabled. `others`: fixes, and whether each is needed.
    """
    _refuse(
        {
            _SPECULATIVE: not scheduler.spec_algorithm.is_none(),
            _DIFFUSION: scheduler.dllm_config is not None,
            _LORA: scheduler.enable_lora,
            _HIERARCHICAL: scheduler.enable_hierarchical_cache,
            _DISAGGREGATED: scheduler.disaggregation_mode.value != "null",
            _PRIORITIES: scheduler.enable_priority_scheduling,
            _NO_TREE: scheduler.tree_cache.disable,
            _DATA_PARALLEL: parallel.dp_size > 1 or parallel.attn_dp_enabled,
            _PIPELINE: parallel.pp_size > 1,
            "serve a model without Mamba layers": scheduler.tree_cache.supports_mamba(),
            **others,
        }
    )


def _refuse(flags: dict[str, bool]) -> None:
    fixes = [fix for fix, wrong in flags.items() if wrong]
    if fixes:
        raise PluginError(f"in-place eviction is not tested with this server; {'; '.join(fixes)}")


NEEDS = (
    Need(
        "sglang.srt.server_args.ServerArgs",
        "radix_cache_backend enable_streaming_session speculative_algorithm dllm_algorithm enable_lora lora_paths"
        " enable_hierarchical_cache disaggregation_mode enable_priority_scheduling disable_radix_cache dp_size pp_size"
        " enable_dp_attention",
    ),
    Need(
        "sglang.srt.managers.scheduler.Scheduler",
        "tree_cache spec_algorithm dllm_config enable_lora enable_hierarchical_cache disaggregation_mode"
        " enable_priority_scheduling",
    ),
)
