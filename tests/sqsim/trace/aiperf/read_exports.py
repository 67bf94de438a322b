# SPDX-License-Identifier: Apache-2.0
"""Print what AIPerf's own loaders read in exports, as JSON. Runs in .venv-aiperf (make aiperf), without sqsim.

.venv-aiperf/bin/python tests/sqsim/trace/aiperf/read_exports.py mooncake FILE
.venv-aiperf/bin/python tests/sqsim/trace/aiperf/read_exports.py weka DIRECTORY
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from aiperf.config.dataset.defaults import InputTokensDefaults
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader
from aiperf.dataset.loader.weka_trace import WekaTraceLoader, _build_trace_idle_timing

NO_CAP_S = 1e12


def mooncake(path: str) -> dict[str, object]:
    """Load Mooncake lines; the prompts' texts are not made, so the tokenizer's side is a stub."""
    side = SimpleNamespace(
        tokenizer=SimpleNamespace(resolved_name="none"),
        _hash_id_corpus_rng=SimpleNamespace(set_trace_id=lambda _: None),
        _cache={},
    )
    loader = MooncakeTraceDatasetLoader(filename=path, prompt_generator=side)
    sessions = {}
    for name, traces in loader.load_dataset().items():
        turns = [loader._build_turn(trace, "") for trace in traces]
        mode = loader._infer_context_mode(traces) or loader.get_default_context_mode()
        sessions[name] = {
            "mode": None if mode is None else str(mode),
            "turns": [
                {
                    "timestamp": turn.timestamp,
                    "delay": turn.delay,
                    "max_tokens": turn.max_tokens,
                    "messages": turn.raw_messages,
                    "input_length": trace.input_length,
                    "hash_ids": trace.hash_ids,
                }
                for turn, trace in zip(turns, traces, strict=True)
            ],
        }
    return {"block_size": InputTokensDefaults.BLOCK_SIZE, "sessions": sessions}


def weka(path: str) -> dict[str, object]:
    """Load WEKA's objects: each agent's requests, with AIPerf's delays from a request's end to the next one's start."""
    loader = WekaTraceLoader(filename=path)
    plans = loader._build_reconstruction_plans(loader.load_dataset())
    found: dict[str, object] = {}
    for plan in plans.parent_plans:
        timing = _build_trace_idle_timing(
            plan=plan, child_plans=plans.child_plans, cap_seconds=NO_CAP_S, flat_plans=plans.flat_plans
        )
        found[plan.trace_id] = [
            _request(request, timing.parent_by_outer_idx[place].delay_ms) for place, request in plan.normals
        ]
        for child in plans.child_plans:
            if child.parent_trace_id == plan.trace_id:
                delays = [
                    timing.child_by_session_request[child.session_id, index].delay_ms
                    for index in range(len(child.requests))
                ]
                found[child.session_id] = list(map(_request, child.requests, delays))
    return {"agents": found, "split": len(plans.flat_plans)}


def _request(request: object, delay: float | None) -> dict[str, object]:
    names = ("input_length", "output_length", "hash_ids", "t")
    return {"delay": delay, **{name: getattr(request, name) for name in names}}


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    sys.stdout.write(json.dumps({"mooncake": mooncake, "weka": weka}[kind](place)))
