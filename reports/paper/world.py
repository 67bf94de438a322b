# SPDX-License-Identifier: Apache-2.0
"""Unknowns of the published serving run, and the results of a simulated run for given values.

The paper (arXiv 2602.22603v1; gpt-oss-20b, medium effort, one H100, SGLang, FRAMES) prints six serving numbers
(`PUBLISHED`). What it does not print is an unknown with a declared prior (`UNKNOWNS`). A *world* is one value for each;
`show` simulates both of its runs, and `read` gives the six numbers as one of several readings of the paper would have them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from sqsim.models.cost.step_cost import profile
from sqsim.record.columns import floats
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Task
from sqsim.trace.store import write_tasks
from sqsim.trace.synthesis import PROFILES, Lognormal, synthesise

TASKS = 424
AT = {"none": 24, "sidequest": 36}
"""Tasks at a time of the two published runs."""

PUBLISHED = {
    ("none", "tok_s"): 828.0,
    ("none", "run_s"): 2356.0,
    ("none", "usage"): 0.977,
    ("sidequest", "tok_s"): 1523.0,
    ("sidequest", "run_s"): 1489.0,
    ("sidequest", "usage"): 0.450,
}
"""(policy, number) -> published value."""

Cluster = Mapping[str, float | str]


class Unknown(NamedTuple):
    """A prior: log-uniform between two values, uniform if `low` is 0 or `linear`, or one of equally likely choices."""

    low: float
    high: float
    unit: str
    why: str
    choices: tuple[str, ...] = ()
    linear: bool = False

    def value(self, share: float) -> float | str:
        """Return the quantile of the prior."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.linear:
            return self.low + share * (self.high - self.low)
        return float(self.low * (self.high / self.low) ** share)

    def share(self, value: float | str) -> float:
        """Return the share of a value in the prior: the inverse of `value`, for a choice the middle of its share."""
        if self.choices:
            return (self.choices.index(str(value)) + 0.5) / len(self.choices)
        number = float(value)
        if self.linear:
            return (number - self.low) / (self.high - self.low)
        return float(np.log(number / self.low) / np.log(self.high / self.low))


UNKNOWNS = {
    "experts": Unknown(
        0, 0, "", "SGLang runs one or the other by version and flags", ("bf16moe-sglang", "mxfp4moe-vllm")
    ),
    "baseline_cache": Unknown(
        0, 0, "", "whether the uncompressed server pinned its agents' KV between turns", ("radix", "session")
    ),
    "kv_capacity": Unknown(
        150e3, 1.4e6, "tokens", "memory fraction, weight format and sliding-window pool are not stated"
    ),
    "host_s": Unknown(5e-4, 15e-3, "s a step", "host work and small kernels of a step; assumed 1 ms elsewhere"),
    "wait": Unknown(0.1, 3.0, "x 2.9 s a turn", "tools' and agent's own time, in parts of the synthetic waits"),
    "output": Unknown(0.6, 1.4, "x 190 tokens a turn", "read off a figure: not printed"),
    "turns": Unknown(0.6, 1.3, "x 23.5 steps a task", "10-20 by Figure 2, about 24 by the training counts"),
    "response": Unknown(0.4, 1.2, "x some 900 tokens a response", "a view is cut to 1,024 tokens by default"),
    "recall": Unknown(0.5, 1.0, "", "stale responses that an aux thread names", linear=True),
    "false_rate": Unknown(0.0, 0.7, "", "needed responses that it names", linear=True),
    "k": Unknown(0, 0, "turns", "the inference K is not stated; training used 4", ("1", "2", "4", "8")),
}
"""Declared before the first run. Fixed: 125 aux tokens (Figure 7), FRAMES-like tasks of seed 0, one H100."""


class Reading(NamedTuple):
    """A reading of the paper: which rate, over which time, and which KV counts as used."""

    rate: str  # main | all: with aux tokens | peak: the busiest 10 s, main
    usage: str  # used: what nobody could reclaim | held: all but free slots


READINGS = [Reading(rate, usage) for rate, usage in product(("main", "all", "peak"), ("used", "held"))]


def world(point: np.ndarray) -> dict[str, float | str]:
    """Turn a point of the unit cube (one share for each unknown, in order) into a world."""
    return {
        name: unknown.value(float(share))
        for (name, unknown), share in zip(UNKNOWNS.items(), point, strict=True)
    }


def shares(one: Cluster) -> np.ndarray:
    """Turn a world into its point of the unit cube."""
    return np.clip([unknown.share(one[name]) for name, unknown in UNKNOWNS.items()], 0, 1 - 1e-9)


def tasks(one: Cluster, number: int) -> list[Task]:
    """Make FRAMES-like tasks, longer or shorter; task i has the same random draws in every world."""
    frames = PROFILES["frames"]

    shape = replace(
        frames,
        steps=times(frames.steps, float(one["turns"])),
        output=times(frames.output, float(one["output"])),
        tools=tuple(
            tool._replace(response=times(tool.response, float(one["response"]))) for tool in frames.tools
        ),
    )
    wait = float(one["wait"])
    return [_waiting(task, wait) for task in synthesise(shape, number)]


def times(sizes: Lognormal, factor: float) -> Lognormal:
    """Scale a distribution: every value times `factor`; the lower bound stays."""
    return sizes._replace(median=sizes.median * factor, high=max(sizes.low, sizes.high * factor))


def _waiting(task: Task, factor: float) -> Task:
    turns = [
        turn.model_copy(
            update={
                "calls": tuple(
                    call.model_copy(update={"latency_s": round((call.latency_s or 0.0) * factor, 3)})
                    for call in turn.calls
                )
            }
        )
        for turn in task.turns
    ]
    return task.model_copy(update={"turns": tuple(turns)})


def run(one: Cluster, policy: str, at_a_time: int, number: int = TASKS) -> dict[str, float]:
    """Simulate one run of a world. If it has fewer tasks than the paper's, add the rest at the mean rate of those run."""
    cost = profile("gpt-oss-20b", "h100-sxm", f"gpt-oss-20b-h100-sxm-fa3-{one['experts']}")
    cost = cost.model_copy(
        update={"step": cost.step.model_copy(update={"fixed_s": one["host_s"], "per_layer_s": 0.0})}
    )
    keys: dict[str, Any] = {"name": policy}
    if policy == "sidequest":
        keys |= {"k": int(one["k"]), "recall": one["recall"], "false_rate": one["false_rate"]}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tasks.jsonl"
        write_tasks(path, tasks(one, number))
        content = {
            "traces": str(path),
            "engine": {
                "cache": "session" if policy != "none" else one["baseline_cache"],
                "kv_capacity": int(float(one["kv_capacity"])),
            },
            "load": {"concurrency": at_a_time},
            "policy": keys,
        }
        record = simulate(make_scenario(content), profile=cost)
    found = metrics(record)
    took = floats(record.tasks, "end_s") - floats(record.tasks, "start_s")
    run_s = float(found["run_time_s"])  # type: ignore[arg-type]
    whole_s = run_s + (TASKS - number) * float(took.mean()) / at_a_time
    share = TASKS / number
    turns = record.turns
    waits = floats(turns, "tool_end_s") - floats(turns, "end_s")
    kept = (
        *("kv_usage_peak", "kv_held_peak", "kv_usage_mean", "output_tok_s_peak", "tpot_s_p50", "ttft_s_p50"),
        *("peak_tokens_mean", "kv_reads_main_tokens", "prefill_tokens", "reclaimed_tokens", "retractions"),
        *("evicted_then_used", "evictions", "tasks_failed", "aux_late", "aux_spawned"),
    )
    return {
        "run_s": whole_s,
        "main_tok_s": float(found["output_tokens"]) * share / whole_s,  # type: ignore[arg-type]
        "all_tok_s": (float(found["output_tokens"]) + float(found["aux_output_tokens"])) * share / whole_s,  # type: ignore[arg-type]
        "task_s_mean": float(took.mean()),
        "output_tokens_a_task": float(found["output_tokens"]) / number,  # type: ignore[arg-type]
        "steps_a_task": record.turns.num_rows / number,
        "wait_s_a_turn": float(np.nanmean(waits)) if pc.count(turns["tool_end_s"]).as_py() else 0.0,
        **{name: float(found[name]) for name in kept if found[name] is not None},  # type: ignore[arg-type]
    }


def show(one: Cluster, number: int = TASKS) -> dict[str, dict[str, float]]:
    """Simulate both published runs in this world."""
    return {policy: run(one, policy, at_a_time, number) for policy, at_a_time in AT.items()}


def read(shown: Mapping[str, Mapping[str, float]], reading: Reading) -> dict[tuple[str, str], float]:
    """Return the six numbers under one reading."""
    rate = {"main": "main_tok_s", "all": "all_tok_s", "peak": "output_tok_s_peak"}[reading.rate]
    usage = {"used": "kv_usage_peak", "held": "kv_held_peak"}[reading.usage]
    names = {"tok_s": rate, "run_s": "run_s", "usage": usage}
    return {(policy, name): shown[policy][names[name]] for policy, name in PUBLISHED}


def errors(shown: Mapping[str, Mapping[str, float]], reading: Reading) -> dict[tuple[str, str], float]:
    """Return the signed relative errors of the six numbers."""
    found = read(shown, reading)
    return {key: found[key] / value - 1 for key, value in PUBLISHED.items()}


def distance(shown: Mapping[str, Mapping[str, float]], reading: Reading) -> float:
    """Return the largest of the six absolute errors."""
    return max(abs(each) for each in errors(shown, reading).values())
