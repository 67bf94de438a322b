"""A run's numbers, from its record alone. `DEFINITIONS` documents every key; SPEC.md, "Metrics", is the contract.

Conventions: flat, JSON-able, seconds and tokens; None where a number is not defined (no such event, no time
passed), never nan. Counts and latencies are of main steps; what concerns aux threads is named `aux_*`.
Percentiles are numpy's `linear` method: the value at rank p (n - 1), interpolated between neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sqsim.base.plain_text import columns, shown
from sqsim.record.evidence import HELD_FIXED, evidence_lines, evidence_of
from sqsim.record.schema import COMPLETED, EVICTIONS, RunRecord
from sqsim.trace.references import last_uses, references, uses_after
from sqsim.trace.schema import Task

Value = float | int | str | None
Floats = npt.NDArray[np.float64]

WINDOW_S = 10.0
"""The window of `output_tok_s_peak`."""

_PERCENTILES = (50, 90, 99)


class Metric(NamedTuple):
    """What a metric is measured in and what it means, for tables and pages."""

    unit: str
    meaning: str


def _percentiles_of(name: str, unit: str, meaning: str) -> dict[str, Metric]:
    return {f"{name}_p{p}": Metric(unit, f"{meaning}; percentile {p}") for p in _PERCENTILES}


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
    "evicted_uses": Metric("references", "those references"),
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


def metrics(record: RunRecord) -> dict[str, Value]:
    """All numbers of a run: the keys of `DEFINITIONS`, and `failed_<reason>` for each reason that occurred."""
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
    """The numbers of one run by name, each with its unit and meaning, and the evidence that all of them rest on."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(metrics(record))
        simulated = bool(self["simulated"])
        lines = evidence_lines([evidence_of(record.run)]) if simulated else ["every number is measured"]
        self.evidence = (*lines, HELD_FIXED)
        """What the numbers rest on, in sentences."""

    def unit(self, name: str) -> str:
        """What a number is measured in: `s`, `tokens/s`, `share`; empty for a plain value. KeyError: no such metric."""
        return self._definition(name).unit

    def meaning(self, name: str) -> str:
        """What a number says, in words. KeyError: no such metric."""
        return self._definition(name).meaning

    def _definition(self, name: str) -> Metric:
        if name.startswith("failed_") and name in self:
            return Metric("tasks", f"tasks that failed: {name.removeprefix('failed_')}")
        return DEFINITIONS[name]

    def __str__(self) -> str:
        rows = [[name, shown(value), self.unit(name)] for name, value in self.items() if value is not None]
        return "\n".join([columns(rows, right={1}), *(f"- {line}" for line in self.evidence)])


def output_tok_s(record: RunRecord) -> float | None:
    """Main output over run time, in tokens/s."""
    return _ratio(_total(record.turns, "output_tokens"), _run_time(record))


def floats(table: pa.Table, name: str) -> Floats:
    """A column of a record's table; nan where it is null."""
    values: Floats = table[name].cast(pa.float64()).to_numpy()
    return values


def _total(table: pa.Table, name: str) -> int:
    return int(pc.sum(table[name], min_count=0).as_py())


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: Floats, percent: int) -> float | None:
    return float(np.percentile(values, percent, method="linear")) if values.size else None


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
        "peak_tokens_mean": _mean(peak),
        "peak_tokens_p50": _percentile(peak, 50),
        "peak_tokens_completed_mean": _mean(peak[done]),
        "kv_reads_main_tokens": _total(record.tasks, "kv_read_tokens_main"),
        "kv_reads_aux_tokens": _total(record.tasks, "kv_read_tokens_aux"),
    }


def _throughput(record: RunRecord) -> dict[str, Value]:
    run_time, main, aux = (
        _run_time(record),
        _total(record.turns, "output_tokens"),
        _total(record.aux, "output_tokens"),
    )
    return {
        "run_time_s": run_time,
        "output_tokens": main,
        "aux_output_tokens": aux,
        "output_tok_s": output_tok_s(record),
        "total_tok_s": _ratio(main + aux, run_time),
        "output_tok_s_peak": _peak_rate(record, min(WINDOW_S, run_time)) if run_time else None,
        "prefill_tokens": _total(record.turns, "computed_tokens"),
        "cached_tokens": _total(record.turns, "cached_tokens"),
        "aux_prefill_tokens": _total(record.aux, "prompt_tokens") - _total(record.aux, "cached_tokens"),
        "aux_cached_tokens": _total(record.aux, "cached_tokens"),
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
        "reclaimed_tokens": _total(engine, "reclaimed_tokens") if engine.num_rows else None,
        "released_sessions": _total(engine, "released_sessions") if engine.num_rows else None,
    }
    if capacity and engine.num_rows:
        held = capacity - floats(engine, "kv_free")
        found["kv_held_peak"] = float(held.max()) / capacity
        found["kv_usage_peak"] = float((held - floats(engine, "kv_tree_evictable")).max()) / capacity
        found["kv_usage_mean"] = _usage_mean(record, capacity)
    return found


def _retractions(record: RunRecord) -> int | None:
    """Count them in the engine table; a server without a step log leaves that empty, and tells of main requests only."""
    if record.engine.num_rows:
        return _total(record.engine, "retracted")
    return None if record.aux.num_rows else _total(record.turns, "retractions")


def _usage_mean(record: RunRecord, capacity: int) -> float | None:
    """Weigh each engine row by its part of the run, from the first arrival to the last task end."""
    if not record.tasks.num_rows:
        return None
    begin, end = floats(record.tasks, "start_s").min(), floats(record.tasks, "end_s").max()
    t0, t1 = (np.clip(floats(record.engine, name), begin, end) for name in ("t0_s", "t1_s"))
    weight = t1 - t0
    return _ratio(float(weight @ floats(record.engine, "kv_used_mean")), float(weight.sum()) * capacity)


def _evictions(record: RunRecord) -> dict[str, Value]:
    table = record.evictions
    found: dict[str, Value] = {
        "evicted_tokens": _total(table, "tokens"),
        "evictions": table.num_rows,
        "evicted_then_used": None,  # stays None where nobody has judged the evictions, or nobody can
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
        "aux_ignored": _total(record.aux, "ignored"),
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
    return {
        f"{name}_p{p}": _percentile(s[~np.isnan(s)], p) for name, s in samples.items() for p in _PERCENTILES
    }


class Hindsight:
    """What a task's recording says of an eviction, once the run is over."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def _steps(self) -> dict[int, list[int]]:
        return references(self._task)

    @cached_property
    def _last(self) -> dict[int, int]:
        return last_uses(self._task)

    def judge(self, turn: int, cursor: int) -> tuple[int | None, int | None]:
        """`last_use_turn` and `used_later` of a cursor evicted before main step `turn`; None without references.

        `used_later` is the number of references at main steps from `turn` on: the eviction comes before that step.
        """
        if self._task.carries.references == "absent":
            return None, None
        return self._last[cursor], uses_after(self._steps[cursor], turn)


def judge_evictions(evictions: pa.Table, tasks: Mapping[str, Task]) -> pa.Table:
    """Fill `last_use_turn` and `used_later`. `tasks` maps the record's task names to their traces."""
    known: dict[str, Hindsight] = {}
    judged: list[tuple[int | None, int | None]] = []
    rows: tuple[list[Any], ...] = tuple(evictions[name].to_pylist() for name in ("task", "turn", "cursor"))
    for name, turn, cursor in zip(*rows, strict=True):
        if name not in known:
            known[name] = Hindsight(tasks[name])
        judged.append(known[name].judge(turn, cursor))
    for at, name in enumerate(("last_use_turn", "used_later")):
        position = EVICTIONS.get_field_index(name)
        values = pa.array([each[at] for each in judged], pa.int64())
        evictions = evictions.set_column(position, EVICTIONS.field(position), values)
    return evictions


def regret_tokens(record: RunRecord, oracle: RunRecord) -> float | None:
    """How far a run's resident token-seconds are above the oracle's, over the oracle's.

    A main step holds the context it leaves behind (`resident_tokens_after`) from its submission to the next
    step's; the last one until its task ends. Counted over the tasks that completed in both runs; None
    where there is none, or the oracle held nothing.
    """
    mine, best = _held_token_s(record), _held_token_s(oracle)
    both = mine.keys() & best.keys()
    least = sum(best[task] for task in sorted(both))
    return _ratio(sum(mine[task] for task in sorted(both)) - least, least)


def _held_token_s(record: RunRecord) -> dict[str, float]:
    """Resident token-seconds of each completed task."""
    tasks = record.tasks.filter(pc.equal(record.tasks["outcome"], COMPLETED))
    end = dict(zip(tasks["task"].to_pylist(), tasks["end_s"].to_pylist(), strict=True))
    turns = record.turns.sort_by([("task", "ascending"), ("turn", "ascending")])
    names, start = turns["task"].to_pylist(), turns["submit_s"].to_pylist()
    held = dict.fromkeys(end, 0.0)
    for row, tokens in enumerate(turns["resident_tokens_after"].to_pylist()):
        task = names[row]
        if task in held:
            last = row + 1 == len(names) or names[row + 1] != task
            held[task] += tokens * ((end[task] if last else start[row + 1]) - start[row])
    return held
