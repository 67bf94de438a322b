# SPDX-License-Identifier: Apache-2.0
"""Matrix of `same_records.py`: ten scenarios, each with every policy, cache and load kind.

Tasks are few and small, so that a run takes a fraction of a second. Between them the scenarios cover recorded and
synthetic traces, models with and without a sliding window, five GPUs, page sizes, chunked prefill, retractions,
replicas under each router, turn limits, capped tool waits, sub-agents, and tasks drawn with replacement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Keys = dict[str, Any]

TRACES: dict[str, list[str]] = {
    "frames": ["synth", "--profile", "frames", "--tasks", "16", "--seed", "0", "--scale", "0.5"],
    "long-outputs": ["synth", "--profile", "frames", "--tasks", "24", "--seed", "0", "--scale", "0.1"],
    "frames-48": ["synth", "--profile", "frames", "--tasks", "48", "--seed", "0"],
    "browsecomp": ["synth", "--profile", "browsecomp", "--tasks", "5", "--seed", "1", "--scale", "0.5"],
    "coding": ["synth", "--profile", "coding", "--tasks", "8", "--seed", "2", "--scale", "0.3"],
    "weka": ["import", "recordings/weka"],
    "claude_code": ["import", "recordings/claude_code"],
    "mooncake": ["import", "recordings/mooncake"],
    "tau_bench": ["import", "recordings/tau_bench"],
    "webdancer": ["import", "recordings/webdancer"],
}
"""Trace -> the arguments of `sqsim trace` that make it; `recordings/` is the old tree's `traces/`."""

# Each with its load: tasks at a time, and tasks a second.
SCENARIOS: dict[str, tuple[int, float, Keys]] = {
    "frames": (8, 0.5, {"traces": "frames", "seed": 7, "engine": {"gpu": "h100-sxm"}}),
    "kv-pressure": (
        14,
        4.0,
        {
            "traces": "long-outputs",
            "tasks": 14,
            "engine": {
                "gpu": "l40s",
                "kv_capacity": 12_000,
                "schedule_conservativeness": 0.05,
                "max_new_tokens": 256,
            },
            "tool_wait_cap_s": 2.0,
        },
    ),
    "pages-of-64": (
        4,
        0.2,
        {
            "traces": "browsecomp",
            "engine": {
                "gpu": "h200-sxm",
                "profile": "gpt-oss-20b-h200-sxm-fa3-mxfp4moe-vllm",
                "page_size": 64,
                "chunked_prefill": 2048,
                "kv_capacity": 131_072,
            },
        },
    ),
    "arrivals-llama": (
        6,
        0.5,
        {
            "traces": "coding",
            "model": "llama-3.1-8b",
            "engine": {
                "gpu": "a100-sxm-80gb",
                "page_size": 16,
                "chunked_prefill": 512,
                "kv_capacity": 65_536,
                "context_length": 60_000,
            },
            "tool_wait_cap_s": 4.0,
        },
    ),
    "sub-agents": (
        4,
        0.1,
        {
            "traces": "weka",
            "tasks": 8,
            "resample": True,
            "seed": 3,
            "engine": {"gpu": "h100-sxm", "kv_capacity": 400_000},
            "tool_wait_cap_s": 20.0,
        },
    ),
    "single-requests": (
        16,
        2.0,
        {
            "traces": "mooncake",
            "tasks": 60,
            "model": "qwen3-32b",
            "engine": {"gpu": "h200-sxm", "kv_capacity": 120_000},
            "replicas": 2,
            "router": "least_loaded",
        },
    ),
    "conversations": (
        5,
        0.3,
        {
            "traces": ["tau_bench", "webdancer", "claude_code"],
            "model": "qwen3-32b",
            "engine": {"gpu": "h100-sxm", "tensor_parallel": 2, "kv_dtype": "fp8_e4m3", "kv_capacity": 40_000},
        },
    ),
    "turn-limit": (
        8,
        1.0,
        {
            "traces": "frames",
            "engine": {"gpu": "b200-sxm", "swa_pool": False, "max_new_tokens": 512, "kv_capacity": 60_000},
            "max_turns": 9,
            "apply": "turn_end",
        },
    ),
    "replicas": (
        12,
        3.0,
        {
            "traces": ["frames", "tau_bench"],
            "tasks": 18,
            "resample": True,
            "seed": 11,
            "model": "gpt-oss-120b",
            "engine": {
                "gpu": "h100-sxm",
                "kv_capacity": 25_000,
                "page_size": 16,
                "schedule_conservativeness": 0.2,
            },
            "replicas": 3,
        },
    ),
    "round-robin": (
        8,
        0.5,
        {
            "traces": ["coding", "weka"],
            "seed": 5,
            "engine": {"gpu": "l40s", "mem_fraction": 0.9, "swa_full_tokens_ratio": 0.5},
            "replicas": 2,
            "router": "round_robin",
        },
    ),
}

CACHES = {"radix": "reprefill", "session": "in_place"}
"""Cache -> what may follow an eviction with it."""

POLICIES: dict[str, Keys] = {
    "none": {"name": "none"},
    "keep_last": {"name": "keep_last", "n": 3},
    "keep_last-trigger": {"name": "keep_last", "n": 1, "trigger_tokens": 6000},
    "sidequest-4": {"name": "sidequest", "k": 4},
    "sidequest-1-with_main": {
        "name": "sidequest",
        "k": 1,
        "aux_start": "with_main",
        "recall": 0.6,
        "false_rate": 0.15,
    },
    "sidequest-2-early": {"name": "sidequest", "k": 2, "spawn_without_cursors": True, "aux_tokens": 60},
    "sidequest-live": {"name": "sidequest", "decisions": "live"},  # refused: a simulation has no model
    "oracle": {"name": "oracle"},
    "oracle-unfit": {"name": "oracle"},  # refused: it asks for the other cache's eviction
    "compaction": {"name": "compaction", "trigger_tokens": 8000, "summary_tokens": 300},
    "pin_ttl": {"name": "pin_ttl", "ttl_s": 5.0},
    "pause": {"name": "pause", "above": 0.6, "below": 0.4},
}
EVICTING = ("keep_last", "sidequest", "oracle")


def _loads(concurrency: int, rate_per_s: float) -> dict[str, Keys]:
    return {
        "concurrency": {"concurrency": concurrency},
        "poisson": {"rate_per_s": rate_per_s},
        "uniform": {"rate_per_s": rate_per_s, "arrivals": "uniform"},
        "bursts": {"rate_per_s": rate_per_s, "arrivals": "bursts", "burst": 4},
        "daily": {"rate_per_s": rate_per_s, "arrivals": "daily", "swing": 0.9, "period_s": 60.0},
        "as_recorded": {"as_recorded": True, "speedup": 2.0},
    }


@dataclass(frozen=True)
class Combination:
    """A scenario under one policy, cache and load; `keys` are the keys of its file."""

    scenario: str
    policy: str
    cache: str
    load: str
    keys: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.scenario} / {self.policy} / {self.cache} / {self.load}"


def _policy(name: str, cache: str) -> Keys:
    keys = POLICIES[name]
    if keys["name"] not in EVICTING:
        return keys
    other = next(each for each in CACHES if each != cache)
    return {**keys, "after_eviction": CACHES[other if name.endswith("unfit") else cache]}


def _files(traces: str | list[str]) -> list[str]:
    return [f"traces/{name}.jsonl" for name in ([traces] if isinstance(traces, str) else traces)]


def combine(scenario: str, policy: str, cache: str, load: str, keys: Keys, load_keys: Keys) -> Combination:
    """Build one combination."""
    found = {
        **keys,
        "traces": _files(keys["traces"]),
        "engine": {**keys["engine"], "cache": cache},
        "load": load_keys,
        "policy": _policy(policy, cache),
    }
    return Combination(scenario, policy, cache, load, found)


def combinations(scenarios: int) -> Iterator[Combination]:
    """Yield every combination of the first `scenarios` scenarios."""
    for scenario, (concurrency, rate_per_s, keys) in list(SCENARIOS.items())[:scenarios]:
        for policy in POLICIES:
            for cache in CACHES:
                for load, load_keys in _loads(concurrency, rate_per_s).items():
                    yield combine(scenario, policy, cache, load, keys, load_keys)


def timed() -> list[Combination]:
    """List the runs of `--speed`: 48 FRAMES-like tasks, 24 at a time."""
    keys: Keys = {"traces": "frames-48", "engine": {"gpu": "h100-sxm"}}
    load = {"concurrency": 24}
    cases = (("none", "radix"), ("sidequest-4", "session"))
    return [combine("frames-48", policy, cache, "concurrency", keys, load) for policy, cache in cases]


# What no synthetic trace has of its own.


def change_traces(folder: Path) -> None:
    """Make the tasks of `coding` arrive one after the other, and those of `long-outputs` reason at length."""
    _change(folder / "coding.jsonl", lambda number, task: task.update(arrival_s=3.0 * number))
    _change(folder / "long-outputs.jsonl", _reason_longer)


def _reason_longer(_: int, task: Keys) -> None:
    for turn in task["turns"]:
        turn["reasoning_tokens"] *= 20


def _change(trace: Path, change: Callable[[int, Keys], None]) -> None:
    tasks = [json.loads(line) for line in trace.read_text().splitlines()]
    for number, task in enumerate(tasks):
        change(number, task)
    trace.write_text("".join(json.dumps(task) + "\n" for task in tasks))
