# SPDX-License-Identifier: Apache-2.0
"""Unit and meaning of every metric of a run; SPEC.md, "Metrics", is the contract."""

from __future__ import annotations

from typing import NamedTuple

PERCENTILES = (50, 90, 99)


class Metric(NamedTuple):
    """A metric's unit and meaning, for tables and pages."""

    unit: str
    meaning: str


def _percentiles_of(name: str, unit: str, meaning: str) -> dict[str, Metric]:
    return {f"{name}_p{p}": Metric(unit, f"{meaning}; percentile {p}") for p in PERCENTILES}


DEFINITIONS: dict[str, Metric] = {
    "tasks_total": Metric("tasks", "tasks that started, sub-agents included"),
    "tasks_completed": Metric("tasks", "tasks that reached their end"),
    "tasks_failed": Metric("tasks", "tasks that failed; `failed_<reason>` counts them by reason"),
    "run_time_s": Metric("s", "first arrival to last task end"),
    "output_tokens": Metric("tokens", "output of main steps"),
    "aux_output_tokens": Metric("tokens", "output of aux threads, cancelled or not"),
    "output_tok_s": Metric("tokens/s", "main output over run time"),
    "total_tok_s": Metric("tokens/s", "main and aux output over run time"),
    "output_tok_s_peak": Metric(
        "tokens/s",
        "largest main output of any 10 s (of the run, if it is shorter); a turn's first token counts when it was produced, the others evenly from then to its end",
    ),
    "kv_capacity_tokens": Metric("tokens", "full-attention KV slots"),
    "kv_usage_peak": Metric(
        "share",
        "largest (capacity - free - evictable) / capacity, SGLang's token_usage; undefined without an engine table",
    ),
    "kv_usage_mean": Metric("share", "the same, time-weighted over the run, idle time included"),
    "kv_held_peak": Metric(
        "share", "largest (capacity - free) / capacity, what the tree could give up included"
    ),
    "peak_tokens_mean": Metric("tokens", "largest resident main context of a task; mean over all tasks"),
    "peak_tokens_p50": Metric("tokens", "largest resident main context of a task; median over all tasks"),
    "peak_tokens_completed_mean": Metric("tokens", "largest resident main context; mean over completed tasks"),
    "kv_reads_main_tokens": Metric("tokens", "resident tokens read, summed over decoded tokens of main steps"),
    "kv_reads_aux_tokens": Metric("tokens", "resident tokens read, summed over decoded tokens of aux threads"),
    "prefill_tokens": Metric(
        "tokens", "computed by prefill for main steps, recomputation after a retraction included"
    ),
    "cached_tokens": Metric("tokens", "of main prompts, found in the cache when first admitted"),
    "aux_prefill_tokens": Metric("tokens", "of aux prompts, not found in the cache"),
    "aux_cached_tokens": Metric("tokens", "of aux prompts, found in the cache when first admitted"),
    "evicted_tokens": Metric("tokens", "cleared from main contexts by the policy"),
    "evictions": Metric("cursors", "cleared from main contexts by the policy"),
    "evicted_then_used": Metric("cursors", "evicted, and referred to by a later main step of the recording"),
    "evicted_uses": Metric("references", "references of later main steps to evicted cursors"),
    "aux_spawned": Metric("threads", "aux threads started: applied + cancelled + malformed"),
    "aux_applied": Metric("threads", "threads whose decision was applied, on time or late"),
    "aux_late": Metric("threads", "threads not finished at the boundary after their spawn, whatever their end"),
    "aux_cancelled": Metric("threads", "threads ended by the end of their task"),
    "aux_malformed": Metric("threads", "threads whose output could not be parsed: nothing was evicted"),
    "aux_ignored": Metric(
        "cursors", "named by an aux thread that never saw them, or evicted before it was applied"
    ),
    "retractions": Metric(
        "requests",
        "running requests, main and aux, put back into the queue; without an engine table main's own count, undefined if there are aux threads, because nothing counted theirs",
    ),
    "reclaimed_tokens": Metric(
        "tokens", "unreferenced KV that the radix tree dropped to make room; undefined without an engine table"
    ),
    "released_sessions": Metric(
        "sessions", "idle sessions whose KV was dropped to make room; undefined without an engine table"
    ),
    "pauses": Metric(
        "pauses", "times that policy `pause` paused an agent at a boundary; undefined under others"
    ),
    "paused_s": Metric("s", "time that agents were paused, summed over agents; undefined under others"),
    **_percentiles_of("ttft_s", "s", "main step: from submission to the end of the last prefill chunk's step"),
    **_percentiles_of("tpot_s", "s", "main step of 2 tokens or more: (end - first token) / (tokens - 1)"),
    **_percentiles_of("task_s", "s", "completed task: from arrival to end"),
    **_percentiles_of(
        "aux_ttft_s", "s", "aux thread: from submission to the end of the last prefill chunk's step"
    ),
    **_percentiles_of("aux_e2e_s", "s", "aux thread that was not cancelled: from submission to end"),
    "simulated": Metric("", "true: a simulation; false: measured on a server"),
    "wall_s": Metric("s", "wall-clock time that producing the record took"),
}
"""Unit and meaning of every key of `metrics`, in the order it returns them."""
