# SPDX-License-Identifier: Apache-2.0
"""Name and unit of each metric on the page, and the format of numbers.

Keys are those of `sqsim.record.metrics` (SPEC.md, "Metrics"). Text is rounded for reading; the exact value is
always stored with it (`<data value=...>` in tables, see markup.py), so that the page can be checked against the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

Value = bool | int | float | str | None

NOT_AVAILABLE = "not available"


class Measure(NamedTuple):
    """Metric as the page shows it."""

    key: str
    name: str
    unit: str = ""

    @property
    def title(self) -> str:
        """Name and unit, for an axis or a row."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


class Group(NamedTuple):
    """Measures under one heading of the side-by-side table."""

    title: str
    measures: tuple[Measure, ...]
    optional: bool = False  # left out where no run has a value other than 0


OUTPUT_TOK_S = Measure("output_tok_s", "Main output throughput", "tok/s")
TOTAL_TOK_S = Measure("total_tok_s", "Output throughput, main + aux", "tok/s")
RUN_TIME = Measure("run_time_s", "Run time, all tasks", "s")
TASK_P50 = Measure("task_s_p50", "Task time, median", "s")
TASK_P90 = Measure("task_s_p90", "Task time, p90", "s")
TASK_P99 = Measure("task_s_p99", "Task time, p99", "s")
KV_PEAK = Measure("kv_usage_peak", "KV usage, peak", "share of capacity")
KV_MEAN = Measure("kv_usage_mean", "KV usage, mean", "share of capacity")
PEAK_TOKENS = Measure("peak_tokens_mean", "Peak tokens a task, mean", "tokens")
READS_MAIN = Measure("kv_reads_main_tokens", "KV reads, main decode", "tokens")
READS_AUX = Measure("kv_reads_aux_tokens", "KV reads, aux decode", "tokens")
TTFT_P50 = Measure("ttft_s_p50", "Main TTFT, median", "s")
TTFT_P90 = Measure("ttft_s_p90", "Main TTFT, p90", "s")
TTFT_P99 = Measure("ttft_s_p99", "Main TTFT, p99", "s")
TPOT_P50 = Measure("tpot_s_p50", "Main TPOT, median", "s/token")
TPOT_P90 = Measure("tpot_s_p90", "Main TPOT, p90", "s/token")
TPOT_P99 = Measure("tpot_s_p99", "Main TPOT, p99", "s/token")
AUX_TOKENS = Measure("aux_output_tokens", "Aux output", "tokens")
AUX_LATE = Measure("aux_late", "Aux threads late", "threads")
EVICTIONS = Measure("evictions", "Responses evicted", "responses")
EVICTED_THEN_USED = Measure("evicted_then_used", "Evicted, then needed", "responses")
RETRACTIONS = Measure("retractions", "Retractions", "requests")
RELEASED = Measure("released_sessions", "Idle sessions released", "sessions")
COMPLETED = Measure("tasks_completed", "Tasks completed", "tasks")
FAILED = Measure("tasks_failed", "Tasks failed", "tasks")

GROUPS = (
    Group("Throughput and time", (OUTPUT_TOK_S, TOTAL_TOK_S, RUN_TIME, TASK_P50, TASK_P90)),
    Group(
        "Memory",
        (
            KV_PEAK,
            KV_MEAN,
            PEAK_TOKENS,
            Measure("peak_tokens_completed_mean", "Peak tokens, completed tasks", "tokens"),
            READS_MAIN,
            READS_AUX,
        ),
    ),
    Group(
        "Evictions",
        (
            EVICTIONS,
            Measure("evicted_tokens", "Tokens evicted", "tokens"),
            EVICTED_THEN_USED,
            Measure("evicted_uses", "References to evicted responses", "references"),
            Measure(
                "regret_tokens",
                "Regret: resident token-seconds above the oracle's",
                "share of the oracle's; below 0 it holds less than is needed",
            ),
        ),
        optional=True,
    ),
    Group(
        "Aux threads",
        (
            Measure("aux_spawned", "Spawned", "threads"),
            Measure("aux_applied", "Applied", "threads"),
            AUX_LATE,
            Measure("aux_cancelled", "Cancelled by the end of their task", "threads"),
            Measure("aux_malformed", "Malformed", "threads"),
            AUX_TOKENS,
            Measure("aux_e2e_s_p50", "Start to end, median", "s"),
        ),
        optional=True,
    ),
    Group("What main feels", (TTFT_P50, TTFT_P90, TPOT_P50, TPOT_P90)),
    Group(
        "Pressure",
        (
            RETRACTIONS,
            RELEASED,
            Measure("reclaimed_tokens", "Reclaimed from the tree", "tokens"),
            Measure("prefill_tokens", "Prefilled (computed)", "tokens"),
            Measure("cached_tokens", "Reused from cache", "tokens"),
            COMPLETED,
            FAILED,
        ),
    ),
)

AUX_TIMES = tuple(
    Measure(f"{key}_p{percent}", f"{name}, {'median' if percent == 50 else f'p{percent}'}", "s")
    for key, name in (("aux_ttft_s", "Aux TTFT"), ("aux_e2e_s", "Aux, start to end"))
    for percent in (50, 90, 99)
)
TIMED = {
    measure.key: measure
    for measure in (
        *(RUN_TIME, OUTPUT_TOK_S, TOTAL_TOK_S, TTFT_P50, TTFT_P90, TTFT_P99, TPOT_P50, TPOT_P90, TPOT_P99),
        *(TASK_P50, TASK_P90, TASK_P99, *AUX_TIMES, KV_MEAN, KV_PEAK, RETRACTIONS),
    )
}
"""Metrics compared with measurements, by key; a test compares the list with `sqsim.comparison`."""


def number(value: Value) -> float | None:
    """Return the value as a finite number, or None where there is none to draw."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def exact(value: Value) -> str:
    """Write the value as in the JSON."""
    return json.dumps(value)


def full(value: Value) -> str:
    """Write the value with every digit and thousands separators, for hovers."""
    if number(value) is None or isinstance(value, (bool, str)) or value is None:
        return written(value)
    return f"{value:,}".replace("-", "−")


def written(value: Value) -> str:
    """Round the value for reading: whole numbers in full up to 100 million, else four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    as_number = number(value)
    if as_number is None:
        return NOT_AVAILABLE
    size = abs(as_number)
    if size >= 1e8:
        text = f"{as_number / 1e6:,.0f} M"
    elif as_number.is_integer() or size >= 1000:
        text = f"{as_number:,.0f}"
    elif size >= 1:
        text = f"{as_number:.{3 - int(math.log10(size))}f}"
    elif size == 0:
        text = "0"
    else:
        text = f"{as_number:.{min(9, 3 - math.floor(math.log10(size)))}f}"
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def counted(value: Value, one: str, many: str = "") -> str:
    """Write a number with its noun: `1 task`, `24 tasks`."""
    return f"{written(value)} {one if number(value) == 1 else many or f'{one}s'}"


def joined(parts: Sequence[str]) -> str:
    """Join items as `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent(change: float | None) -> str:
    """Write a relative change, signed, in percent: 0.839 -> `+83.9 %`."""
    if change is None:
        return "—"
    points = round(100 * change, 1)
    if points == 0:
        return "±0 %"
    text = f"{points:+,.0f}" if abs(points) >= 1000 else f"{points:+,.1f}"
    return text.replace("-", "−") + " %"


def share(part: float | None) -> str:
    """Write a part of a whole without a sign: 0.335 -> `33.5 %`; a value that would round to 0 is `under 0.1 %`."""
    if part is None:
        return "—"
    return "under 0.1 %" if 0 < part < 0.0005 else f"{100 * part:,.1f} %" if part else "0 %"


def duration(value: Value) -> str:
    """Write a time for reading: `79.14 ms` below a second, else `1.721 s`."""
    seconds = number(value)
    if seconds is None:
        return NOT_AVAILABLE
    return f"{written(seconds)} s" if abs(seconds) >= 1 else f"{written(1000 * seconds)} ms"


def change(value: Value, base: Value) -> float | None:
    """Compute the relative change of a metric from a baseline; None where either is missing or the baseline is 0."""
    here, there = number(value), number(base)
    if here is None or there is None or there == 0:
        return None
    return here / there - 1
