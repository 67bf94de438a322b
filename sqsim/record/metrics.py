# SPDX-License-Identifier: Apache-2.0
"""A run's metrics, computed from its record alone. `DEFINITIONS` documents every key; SPEC.md, "Metrics", is the contract.

Conventions: flat, JSON-able, seconds and tokens; None where a number is not defined (no such event, no time
passed), never nan. Counts and latencies are of main steps; metrics of aux threads are named `aux_*`.
Percentiles are numpy's `linear` method: the value at rank p (n - 1), interpolated between neighbours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from sqsim.base.plain_text import columns, shown
from sqsim.record.columns import Floats, floats, mean, percentile, ratio, total
from sqsim.record.definitions import DEFINITIONS, PERCENTILES, Metric
from sqsim.record.evidence import HELD_FIXED, evidence_lines, evidence_of
from sqsim.record.schema import COMPLETED, RunRecord, checked_record

Value = float | int | str | None

WINDOW_S = 10.0
"""The window of `output_tok_s_peak`."""


def metrics(record: RunRecord) -> dict[str, Value]:
    """Compute all metrics of a run: the keys of `DEFINITIONS`, and `failed_<reason>` for each reason that occurred."""
    record = checked_record(record, "metrics")
    found: dict[str, Value] = {
        **_tasks(record),
        **_throughput(record),
        **_memory(record),
        **_evictions(record),
        **_aux(record),
        **_latencies(record),
        "pauses": record.run.get("paused", {}).get("times"),
        "paused_s": record.run.get("paused", {}).get("s"),
        "simulated": record.run.get("kind") == "simulated",
        "wall_s": record.timing.get("wall_s"),
    }
    reasons = sorted(found.keys() - DEFINITIONS.keys())
    return {key: found[key] for key in (*DEFINITIONS, *reasons)}


class Metrics(dict[str, Value]):
    """The metrics of one run by name, with units, meanings and the evidence that they rest on."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(metrics(record))
        simulated = bool(self["simulated"])
        lines = evidence_lines([evidence_of(record.run)]) if simulated else ["every number is measured"]
        self.evidence = (*lines, HELD_FIXED)
        """The evidence that the metrics rest on, in sentences."""

    def unit(self, name: str) -> str:
        """Return a metric's unit: `s`, `tokens/s`, `share`; empty for a plain value. KeyError: no such metric."""
        return self._definition(name).unit

    def meaning(self, name: str) -> str:
        """Return a metric's meaning in words. KeyError: no such metric."""
        return self._definition(name).meaning

    def _definition(self, name: str) -> Metric:
        if name.startswith("failed_") and name in self:
            return Metric("tasks", f"tasks that failed: {name.removeprefix('failed_')}")
        return DEFINITIONS[name]

    def __str__(self) -> str:
        rows = [[name, shown(value), self.unit(name)] for name, value in self.items() if value is not None]
        return "\n".join([columns(rows, right={1}), *(f"- {line}" for line in self.evidence)])


def output_tok_s(record: RunRecord) -> float | None:
    """Compute main output over run time, in tokens/s."""
    return ratio(total(record.turns, "output_tokens"), _run_time(record))


def _completed(record: RunRecord) -> npt.NDArray[np.bool_]:
    done: npt.NDArray[np.bool_] = pc.equal(record.tasks["outcome"], COMPLETED).to_numpy()
    return done


def _run_time(record: RunRecord) -> float | None:
    if not record.tasks.num_rows:
        return None
    return float(floats(record.tasks, "end_s").max() - floats(record.tasks, "start_s").min())


def _tasks(record: RunRecord) -> dict[str, Value]:
    done, peak = _completed(record), floats(record.tasks, "peak_tokens")
    outcomes = {row["values"]: row["counts"] for row in pc.value_counts(record.tasks["outcome"]).to_pylist()}
    return {
        "tasks_total": done.size,
        "tasks_completed": int(done.sum()),
        "tasks_failed": int(done.size - done.sum()),
        **{f"failed_{reason}": count for reason, count in outcomes.items() if reason != COMPLETED},
        "peak_tokens_mean": mean(peak),
        "peak_tokens_p50": percentile(peak, 50),
        "peak_tokens_completed_mean": mean(peak[done]),
        "kv_reads_main_tokens": total(record.tasks, "kv_read_tokens_main"),
        "kv_reads_aux_tokens": total(record.tasks, "kv_read_tokens_aux"),
    }


def _throughput(record: RunRecord) -> dict[str, Value]:
    run_time, main, aux = (
        _run_time(record),
        total(record.turns, "output_tokens"),
        total(record.aux, "output_tokens"),
    )
    return {
        "run_time_s": run_time,
        "output_tokens": main,
        "aux_output_tokens": aux,
        "output_tok_s": output_tok_s(record),
        "total_tok_s": ratio(main + aux, run_time),
        "output_tok_s_peak": _peak_rate(record, min(WINDOW_S, run_time)) if run_time else None,
        "prefill_tokens": total(record.turns, "computed_tokens"),
        "cached_tokens": total(record.turns, "cached_tokens"),
        "aux_prefill_tokens": total(record.aux, "prompt_tokens") - total(record.aux, "cached_tokens"),
        "aux_cached_tokens": total(record.aux, "cached_tokens"),
    }


def _peak_rate(record: RunRecord, window_s: float) -> float | None:
    """Find the busiest closed window of main output, in tokens/s.

    The output so far is a curve of jumps (first tokens) and ramps (the others). Its largest rise over a fixed
    width begins or ends at a kink, so trying those windows is exact.
    """
    first, end, tokens = (floats(record.turns, name) for name in ("first_token_s", "end_s", "output_tokens"))
    out = ~np.isnan(first) & (tokens > 0)
    first, end, tokens = first[out], end[out], tokens[out]
    if not first.size:
        return None
    end = np.where(np.isnan(end), first, end)
    ramps = (end > first) & (tokens > 1)
    jump_s, jumps = first, np.where(ramps, 1.0, tokens)
    kinks = np.unique(np.concatenate((first, end)))
    slopes = np.zeros(kinks.size)
    rate = (tokens[ramps] - 1) / (end[ramps] - first[ramps])
    np.add.at(slopes, np.searchsorted(kinks, first[ramps]), rate)
    np.add.at(slopes, np.searchsorted(kinks, end[ramps]), -rate)
    ramped = np.concatenate(([0.0], np.cumsum(np.cumsum(slopes)[:-1] * np.diff(kinks))))
    order = np.argsort(jump_s, kind="stable")
    jump_s, jumped = jump_s[order], np.concatenate(([0.0], np.cumsum(jumps[order])))

    def risen(start_s: Floats, stop_s: Floats) -> float:
        series = np.interp(stop_s, kinks, ramped) - np.interp(start_s, kinks, ramped)
        jump = (
            jumped[np.searchsorted(jump_s, stop_s, "right")] - jumped[np.searchsorted(jump_s, start_s, "left")]
        )
        return float((series + jump).max())

    return max(risen(kinks, kinks + window_s), risen(kinks - window_s, kinks)) / window_s


def _memory(record: RunRecord) -> dict[str, Value]:
    engine, capacity = record.engine, record.run.get("kv_capacity", {}).get("tokens")
    found: dict[str, Value] = {
        "kv_capacity_tokens": capacity,
        "kv_usage_peak": None,
        "kv_usage_mean": None,
        "kv_held_peak": None,
        "retractions": _retractions(record),
        "reclaimed_tokens": total(engine, "reclaimed_tokens") if engine.num_rows else None,
        "released_sessions": total(engine, "released_sessions") if engine.num_rows else None,
    }
    if capacity and engine.num_rows:
        held = capacity - floats(engine, "kv_free")
        found["kv_held_peak"] = float(held.max()) / capacity
        found["kv_usage_peak"] = float((held - floats(engine, "kv_tree_evictable")).max()) / capacity
        found["kv_usage_mean"] = _usage_mean(record, capacity)
    return found


def _retractions(record: RunRecord) -> int | None:
    """Count retractions in the engine table; without one, those of main requests, which every server reports."""
    if record.engine.num_rows:
        return total(record.engine, "retracted")
    return None if record.aux.num_rows else total(record.turns, "retractions")


def _usage_mean(record: RunRecord, capacity: int) -> float | None:
    """Weigh each engine row by its part of the run, from the first arrival to the last task end."""
    if not record.tasks.num_rows:
        return None
    begin, end = floats(record.tasks, "start_s").min(), floats(record.tasks, "end_s").max()
    t0, t1 = (np.clip(floats(record.engine, name), begin, end) for name in ("t0_s", "t1_s"))
    weight = t1 - t0
    return ratio(float(weight @ floats(record.engine, "kv_used_mean")), float(weight.sum()) * capacity)


def _evictions(record: RunRecord) -> dict[str, Value]:
    table = record.evictions
    found: dict[str, Value] = {
        "evicted_tokens": total(table, "tokens"),
        "evictions": table.num_rows,
        "evicted_then_used": None,  # stays None where the evictions were not judged, or cannot be
        "evicted_uses": None,
    }
    if not table["used_later"].null_count:
        # A cursor's first eviction counts all that came later.
        uses = table.group_by(["task", "cursor"]).aggregate([("used_later", "max")])["used_later_max"]
        found["evicted_then_used"] = int(pc.sum(pc.greater(uses, 0), min_count=0).as_py())
        found["evicted_uses"] = int(pc.sum(uses, min_count=0).as_py())
    return found


def _aux(record: RunRecord) -> dict[str, Value]:
    states = record.aux["state"].to_pylist()
    return {
        "aux_spawned": len(states),
        "aux_applied": states.count("applied") + states.count("late"),
        "aux_late": _late(record),
        "aux_cancelled": states.count("cancelled"),
        "aux_malformed": states.count("malformed"),
        "aux_ignored": total(record.aux, "ignored"),
    }


def _late(record: RunRecord) -> int:
    """Count the threads that missed the boundary after their spawn.

    One that was never applied missed it if main went on to the next step.
    """
    rows = zip(*(record.aux[name].to_pylist() for name in ("task", "spawn_turn", "applied_turn")), strict=True)
    late, unapplied = 0, set()
    for task, spawned, applied in rows:
        if applied is None:
            unapplied.add((task, spawned + 1))
        elif applied > spawned + 1:
            late += 1
    if unapplied:
        steps = zip(record.turns["task"].to_pylist(), record.turns["turn"].to_pylist(), strict=True)
        late += len(unapplied.intersection(steps))
    return late


def _latencies(record: RunRecord) -> dict[str, Value]:
    turns, aux = record.turns, record.aux
    first, tokens = floats(turns, "first_token_s"), floats(turns, "output_tokens")
    several = tokens > 1
    tpot = (floats(turns, "end_s") - first)[several] / (tokens[several] - 1)
    lived: npt.NDArray[np.bool_] = pc.not_equal(aux["state"], "cancelled").to_numpy()
    samples = {
        "ttft_s": first - floats(turns, "submit_s"),
        "tpot_s": tpot,
        "task_s": (floats(record.tasks, "end_s") - floats(record.tasks, "start_s"))[_completed(record)],
        "aux_ttft_s": floats(aux, "first_token_s") - floats(aux, "submit_s"),
        "aux_e2e_s": (floats(aux, "end_s") - floats(aux, "submit_s"))[lived],
    }
    # nan: the event did not happen
    return {f"{name}_p{p}": percentile(s[~np.isnan(s)], p) for name, s in samples.items() for p in PERCENTILES}
