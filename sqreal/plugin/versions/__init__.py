# SPDX-License-Identifier: Apache-2.0
"""Supported SGLang versions, and their differences as one adapter each.

`adapter()` is the package of the installed one, sglang_0_5_16 or sglang_0_5_23. Both have the same names:

* `Row`, `Rows`, `Cache`: SGLang's session slot, streaming sessions and radix cache, with the methods that sessions.py calls;
* `create_cache`, `keep_private`, `limited`, `prefix_len`, `extend_len`, `refused`, `rendered`: single calls that differ;
* `Budget`, `micro_batch`: the rest of an admission pass;
* `FULL`, `asked`, `lengths`, `slot_lengths`, `refresh_calls`: the data that the step log reads;
* `admission_hooks`, `queue_hooks`, `detail_hooks`: hooks on methods that differ;
* `unserved`, `parallel`, `info_hooks`: its limits, its parallelism, figures that /server_info lacks; `NEEDS`: the names that all of this reads, for the contract (hooks.py).

The plugin's other files hold the parts that are the same in both. This one needs no SGLang.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

TESTED_VERSIONS = ("0.5.16", "0.5.23")
"""The SGLang versions that the plugin was tested with; it loads on no other."""

_SIGNATURES = {
    "Scheduler.__init__": (
        "self server_args port_args gpu_id tp_rank moe_ep_rank pp_rank attn_cp_rank moe_dp_rank dp_rank",
        "self server_args port_args",
    ),
    "ForwardBatch.init_new": (
        "cls batch model_runner * capture_hidden_mode return_hidden_states_before_norm",
        "cls batch model_runner * capture_hidden_mode return_hidden_states_before_norm extend_position_info spec_mrope_positions kv_loc_plan write_cols",
    ),
    "Scheduler.handle_generate_request": ("self recv_req", "self recv_req * mm_input_error"),
    "ScheduleBatch.retract_decode": ("self server_args", "self"),
}


def signature(method: str) -> str:
    """Return the parameters of a method that differs between versions: the installed one's, without SGLang the latest's."""
    return _SIGNATURES[method][TESTED_VERSIONS.index(_served())]


def adapter() -> Any:
    """Import the package of the installed version."""
    return import_module(f"{__name__}.sglang_{_served().replace('.', '_')}")


def _served() -> str:
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        return TESTED_VERSIONS[-1]
    return installed if installed in TESTED_VERSIONS else TESTED_VERSIONS[-1]
