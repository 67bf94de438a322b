# SPDX-License-Identifier: Apache-2.0
"""Cross-check of the record with the server's own counters (/metrics).

SGLang counts a request when it ends, the aborted ones among them if they had left the queue. Counters are read before
the first task and after the last, so their difference excludes warm-up. A remaining difference is traffic of another
client, or a fault of one of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqreal.server.client import Generation
from sqsim.agent.served import Served

COUNTERS = {
    "finished_requests": "sglang:num_requests_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
    "generation_tokens": "sglang:generation_tokens_total",
    "retracted_requests": "sglang:num_retracted_requests_total",
}
"""Our names for SGLang's counters (observability/metrics_collector.py)."""
ABORTS = "sglang:num_aborted_requests_total"
"""Aborts that any client requested; our record has no counterpart."""
GAUGES = (
    "sglang:max_total_num_tokens",
    "sglang:max_total_num_tokens_swa",
    "sglang:kv_used_tokens",
    "sglang:kv_available_tokens",
    "sglang:kv_evictable_tokens",
    "sglang:swa_used_tokens",
    "sglang:swa_available_tokens",
    "sglang:swa_evictable_tokens",
)
"""Gauges of the pools. SGLang renews most of them every 40 decode steps and 30 idle seconds, so they may be out of date."""

Read = Mapping[str, float]


def cross_check(
    before: Read, after: Read, requests: Iterable[tuple[Served, Generation | None]]
) -> dict[str, Any]:
    """Write the section `server_metrics` of run.json. `requests`: all requests sent, and their answers.

    For each counter: the server's count, the count in the record's rows of completed requests, the count in the answers
    to aborted ones, and the remaining difference. The server does not list a counter that has counted nothing; it is 0.
    """
    if not any(name.startswith("sglang:") for name in after):
        return {
            "enabled": False,
            "note": "the server has no metrics; start it with --enable-metrics to compare them with this record",
        }
    record, aborted, in_queue = dict.fromkeys(COUNTERS, 0), dict.fromkeys(COUNTERS, 0), 0
    for served, answer in requests:
        if answer is None:
            continue
        if answer.finish != "abort":
            _add(
                record,
                served.prompt_tokens,
                served.cached_tokens,
                served.output_tokens,
                served.retractions,
            )
        elif "prompt_tokens" in (meta := answer.meta):
            _add(
                aborted,
                meta["prompt_tokens"],
                meta["cached_tokens"],
                meta["completion_tokens"],
                served.retractions,
            )
        else:
            in_queue += 1
            aborted["retracted_requests"] += served.retractions  # counted when they happen, not at its end
    counters = {}
    for name, theirs in COUNTERS.items():
        first, last = int(before.get(theirs, 0)), int(after.get(theirs, 0))
        counters[name] = {
            "before": first,
            "after": last,
            "counted": last - first,
            "record": record[name],
            "aborted": aborted[name],
            "difference": last - first - record[name] - aborted[name],
        }
    return {
        "enabled": True,
        "counters": counters,
        "differences": {name: each["difference"] for name, each in counters.items() if each["difference"]},
        "aborted": {
            "asked_for": int(after.get(ABORTS, 0) - before.get(ABORTS, 0)),
            "while_running": aborted["finished_requests"],
            "in_the_queue": in_queue,  # the server counts these nowhere
        },
        "gauges": {
            name.removeprefix("sglang:"): {"before": before.get(name), "after": after[name]}
            for name in GAUGES
            if name in after
        },
    }


def _add(sums: dict[str, int], prompt: int, cached: int, output: int, retractions: int) -> None:
    for name, value in zip(COUNTERS, (1, prompt, cached, output, retractions), strict=True):
        sums[name] += value
