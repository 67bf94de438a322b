# SPDX-License-Identifier: Apache-2.0
"""Fit the simulation to half of a set of real runs, and predict the other half: other tasks, loads, pool, policies.

    python reports/calibration/halves.py [--work out/halves] [--again]

Two servers with a tiny model on a CPU, one a pool size; four runs on each. `sqsim calibrate` fits the runs of the smaller pool, the
simulation predicts those of the larger one, each with its 90 % interval. Writes HALVES.md and halves.json here. `--again`: from the
records that --work holds already. Times mean something on an otherwise idle machine only: the load is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from make_calibration import HERE, KEEP_LAST, scenario, tasks

from sqreal.replay.replay import Replay
from sqreal.server.server import options_of, start
from sqsim.experiments.intervals import intervals
from sqsim.fidelity.calibrate import calibrate
from sqsim.fidelity.recording import SCHEDULE
from sqsim.models.cost.profile import profile_text
from sqsim.record.files import read_record, write_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import Scenario
from sqsim.trace.schema import Task
from sqsim.trace.store import write_tasks

NONE = {"name": "none"}
KEEP_ONE = {**KEEP_LAST, "n": 1}
SIDEQUEST = {"name": "sidequest", "k": 2, "aux_tokens": 20, "after_eviction": "reprefill"}
LIMITS = {
    "run_time_s": 0.05,
    "output_tok_s": 0.05,
    "kv_usage_mean": 0.05,
    "tpot_s_p50": 0.10,
    "ttft_s_p50": 0.20,
}
"""Metric -> relative error that is allowed; set beforehand."""


class Run(NamedTuple):
    """One run of 24 tasks."""

    seed: int
    at_a_time: int
    pool: int  # KV tokens
    policy: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.policy['name']}-{self.at_a_time}-of-{self.pool}"


FITTED = [Run(1, 12, 2048, NONE), Run(2, 6, 2048, KEEP_LAST), Run(3, 2, 2048, NONE), Run(4, 9, 2048, SIDEQUEST)]
PREDICTED = [
    Run(5, 16, 4096, NONE),
    Run(6, 10, 4096, KEEP_ONE),
    Run(7, 4, 4096, SIDEQUEST),
    Run(8, 8, 4096, NONE),
]


def scenario_of(run: Run, work: Path, **engine: Any) -> Scenario:
    """Return the run's scenario; the next turn needs every response, and no later turn does."""
    path = work / f"tasks-{run.seed}.jsonl"
    if not path.exists():
        write_tasks(path, [_with_uses(task) for task in tasks(run.seed)])
    return scenario(work, run.seed, run.at_a_time, run.policy, kv_capacity=run.pool, **engine)


def _with_uses(task: Task) -> Task:
    turns = [
        turn.model_copy(update={"uses": (index - 1,) if index else ()}) for index, turn in enumerate(task.turns)
    ]
    carries = task.carries.model_copy(update={"references": "synthesised"})
    return task.model_copy(update={"turns": tuple(turns), "carries": carries})


def measure(work: Path) -> None:
    """Measure all runs; the runs of one pool share a server."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for runs in (FITTED, PREDICTED):
        options = options_of(scenario_of(runs[0], work), work / f"model-{runs[0].pool}")
        log = work / f"steps-{runs[0].pool}.jsonl"
        with start(options, force_tokens=True, step_log=log) as server:
            for run in runs:
                replay = Replay(scenario_of(run, work), server, step_log=log)
                record = replay.run()
                if replay.error is not None:
                    raise replay.error
                write_record(record, work / run.name)
                replay.write_schedule(work / run.name / SCHEDULE)
                load = f"{os.getloadavg()[0]:.2f}"
                (work / f"{run.name}.load").write_text(load)
                print(f"{run.name}: {metrics(record)['run_time_s']:.2f} s, load {load}", flush=True)


def judge(work: Path) -> dict[str, Any]:
    """Fit to one half; return the prediction, interval and measurement of the other next to each other."""
    found = calibrate([work / run.name for run in FITTED], "tiny-llama-cpu-half")
    profile = work / "tiny-llama-cpu-half.yaml"
    profile.write_text(profile_text(found.profile, "reports/calibration/halves.py"), encoding="utf-8")
    rows = []
    for run in PREDICTED:
        measured = metrics(read_record(work / run.name))
        sure = intervals(scenario_of(run, work, profile=str(profile)), jobs=os.cpu_count() or 1)
        for metric, allowed in LIMITS.items():
            band, value = sure.bands[metric], float(measured[metric] or 0.0)
            rows.append(
                {
                    "run": run.name,
                    "metric": metric,
                    "measured": value,
                    "simulated": band.value,
                    "error": band.value / value - 1,
                    "allowed": allowed,
                    "low": band.low,
                    "high": band.high,
                }
            )
    loads = {run.name: float((work / f"{run.name}.load").read_text()) for run in (*FITTED, *PREDICTED)}
    held_out = {Path(each.run).name: each.total_error for each in found.held_out}
    return {"sglang": found.profile.version, "load_averages": loads, "held_out": held_out, "rows": rows}


def page(found: dict[str, Any]) -> str:
    """Return the text of HALVES.md."""
    rows = found["rows"]
    inside = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
    kept = sum(abs(row["error"]) <= row["allowed"] for row in rows)
    lines = [
        f"| {row['run']} | {row['metric']} | {row['measured']:.4g} | {row['simulated']:.4g} | {row['error']:+.1%} "
        f"| {row['allowed']:.0%} | {row['low']:.4g} to {row['high']:.4g} "
        f"| {'yes' if row['low'] <= row['measured'] <= row['high'] else 'no'} |"
        for row in rows
    ]
    loads = ", ".join(f"{value:g}" for value in found["load_averages"].values())
    held = ", ".join(f"{name} {error:+.1%}" for name, error in found["held_out"].items())
    return "\n".join(
        [
            "# Fitted to half of the runs, the other half predicted",
            "",
            "Made by `python reports/calibration/halves.py`; do not edit.",
            f"Measured: real SGLang {found['sglang']} on a CPU, tiny-llama, random weights, forced outputs, 24 tasks a run, each run once.",
            f"Fitted: {', '.join(run.name for run in FITTED)} (policy, tasks at a time, KV tokens). Predicted: runs of other tasks,",
            "concurrency, pool and policy. keep_last keeps 2 responses where fitted and 1 where predicted.",
            f"Load average after each run: {loads}.",
            "",
            f"- within what was allowed beforehand: {kept} of {len(rows)}",
            f"- inside the 90 % interval (`--bands`): {inside} of {len(rows)}",
            "",
            "| run | metric | measured | simulated | error | allowed | 90 % interval | holds |",
            "|---|---|---:|---:|---:|---:|---:|---|",
            *lines,
            "",
            f"Each fitting run, its steps predicted by a fit to the other three, in sum: {held}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("out/halves"))
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    if not given.again:
        measure(given.work)
    found = judge(given.work)
    (HERE / "halves.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "HALVES.md").write_text(page(found), encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
