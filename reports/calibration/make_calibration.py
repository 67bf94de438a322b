# SPDX-License-Identifier: Apache-2.0
"""Test whether a profile fitted to some runs of a real SGLang predicts others, on a CPU, with a tiny model.

    python reports/calibration/make_calibration.py [--work out/calibration] [--again | --simulated]

One server; fitting runs of their own tasks, sizes and policies; then one contended scenario, five times. `sqsim calibrate`
fits the first, the simulation predicts the others, `sqsim compare` holds it against their mean and spread. Writes README.md and
calibration.json here, and the fitted profile. `--again`: from the records that --work holds already; `--simulated`: the
simulated side alone, from the profile and the measurements that are here. Times mean something on an otherwise idle
machine only: the load is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sqreal.replay.replay import Replay
from sqreal.server.server import options_of, start
from sqsim.experiments.intervals import intervals
from sqsim.fidelity.calibrate import calibrate
from sqsim.fidelity.recording import SCHEDULE
from sqsim.models.cost.profile import profile_text
from sqsim.record.files import read_record, write_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import Scenario, make_scenario
from sqsim.trace.schema import Answer, Call, Carries, Prefix, Question, Source, Task, Turn
from sqsim.trace.store import write_tasks

HERE = Path(__file__).parent
PROFILE = HERE / "tiny-llama-cpu.yaml"
ENGINE = {
    "gpu": "cpu",
    "kv_capacity": 2048,
    "max_running": 16,
    "context_length": 2048,
    "schedule_conservativeness": 0.05,  # next to nothing is reserved for outputs: some runs retract
    "max_new_tokens": 160,
}
KEEP_LAST: dict[str, Any] = {"name": "keep_last", "n": 2, "after_eviction": "reprefill"}
NONE: dict[str, Any] = {"name": "none"}
FITTED = [("fit-1", 1, 12, NONE), ("fit-2", 2, 6, KEEP_LAST), ("fit-3", 3, 2, NONE)]
"""Name, seed of the tasks, tasks at a time, policy."""
REPEATS = 5
TASKS = 24
SHOWN = (
    "run_time_s",
    "output_tok_s",
    "kv_usage_mean",
    "kv_usage_peak",
    "ttft_s_p50",
    "ttft_s_p90",
    "tpot_s_p50",
    "task_s_p50",
    "retractions",
    "reclaimed_tokens",
)


def tasks(seed: int) -> list[Task]:
    """Make agents of six turns with long outputs and tools that take a tenth of a second."""
    draw = random.Random(f"calibration {seed}")
    carries = Carries(usage="synthesised", timing="synthesised", references="absent")

    def turn(index: int) -> Turn:
        call = Call(
            tool="open",
            call_tokens=draw.randint(4, 12),
            cursor=index,
            response_tokens=draw.randint(10, 120),
            latency_s=draw.uniform(0.02, 0.2),
        )
        return Turn(reasoning_tokens=draw.randint(10, 130), text_tokens=5, calls=(call,))

    return [
        Task(
            task_id=f"t{number:02}",
            source=Source(format="synthetic"),
            carries=carries,
            prefix=Prefix(id="system", tokens=60),
            question=Question(tokens=draw.randint(10, 200)),
            turns=tuple(turn(index) for index in range(6)),
            answer=Answer(reasoning_tokens=0, text_tokens=draw.randint(20, 120)),
        )
        for number in range(TASKS)
    ]


def scenario(work: Path, seed: int, concurrency: int, policy: dict[str, Any], **engine: Any) -> Scenario:
    path = work / f"tasks-{seed}.jsonl"
    if not path.exists():
        write_tasks(path, tasks(seed))
    return make_scenario(
        {
            "traces": str(path.resolve()),
            "model": "tiny-llama",
            "engine": {**ENGINE, **engine},
            "load": {"concurrency": concurrency},
            "policy": policy,
        }
    )


def measure(work: Path) -> None:
    """Measure all runs on one server; write each record with its schedule and the load average after it."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    runs = [*FITTED, *((f"test-{n}", 0, 12, NONE) for n in range(1, REPEATS + 1))]
    options = options_of(scenario(work, 0, 12, NONE), work / "model")
    log = work / "steps.jsonl"
    with start(options, force_tokens=True, step_log=log) as server:
        for name, seed, concurrency, policy in runs:
            replay = Replay(scenario(work, seed, concurrency, policy), server, step_log=log)
            record = replay.run()
            if replay.error is not None:
                raise replay.error
            write_record(record, work / name)
            replay.write_schedule(work / name / SCHEDULE)
            (work / f"{name}.load").write_text(f"{os.getloadavg()[0]:.2f}")
            print(f"{name}: {metrics(record)['run_time_s']:.2f} s, load {os.getloadavg()[0]:.2f}", flush=True)


def fit(work: Path) -> dict[str, Any]:
    """Fit a profile; return it with the measurements of the runs that it did not see."""
    directories = [work / name for name, *_ in FITTED]
    found = calibrate(directories, "tiny-llama-cpu")
    PROFILE.write_text(profile_text(found.profile, "reports/calibration/make_calibration.py"), encoding="utf-8")
    measured = [metrics(read_record(work / f"test-{n}")) for n in range(1, REPEATS + 1)]
    client = found.profile.client
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "sglang": found.profile.version,
        "load_averages": {path.stem: float(path.read_text()) for path in sorted(work.glob("*.load"))},
        "coefficients": found.coefficients,
        "standard_errors": found.standard_errors,
        "client_s": client.model_dump(include={"request_s", "response_s"}) if client else None,
        "held_out": [
            {
                "run": Path(each.run).name,
                "total_error": each.total_error,
                "mean_abs_error": each.mean_abs_error,
                "steps": each.steps,
            }
            for each in found.held_out
        ],
        "metrics": [{"metric": key, "measured": [each[key] for each in measured]} for key in SHOWN],
    }


def predict(found: dict[str, Any], work: Path) -> dict[str, Any]:
    """Put the simulation and its intervals next to the measurements."""
    work.mkdir(parents=True, exist_ok=True)
    sure = intervals(scenario(work, 0, 12, {"name": "none"}, profile=str(PROFILE)))
    rows = []
    for row in found["metrics"]:
        values, band = [float(value) for value in row["measured"]], sure.bands[row["metric"]]
        mean = fmean(values)
        rows.append(
            {
                "metric": row["metric"],
                "measured": values,
                "mean": mean,
                "sd": stdev(values),
                "simulated": band.value,
                "error": band.value - mean,
                "low": band.low,
                "high": band.high,
            }
        )
    return {**found, "metrics": rows}


def held(row: dict[str, Any]) -> int:
    """Count the measured runs that lie in the interval."""
    return sum(row["low"] <= value <= row["high"] for value in row["measured"])


def page(found: dict[str, Any]) -> str:
    rows = []
    for row in found["metrics"]:
        mean, sd = row["mean"], row["sd"]
        percent = f"{100 * row['error'] / mean:+.1f} %" if mean else "-"
        deviations = f"{row['error'] / sd:+.1f}" if sd else "-"
        rows.append(
            f"| {row['metric']} | {mean:.4g} | {sd:.2g} | {row['simulated']:.4g} | {percent} | {deviations} "
            f"| {row['low']:.4g} to {row['high']:.4g} | {held(row)} of {len(row['measured'])} |"
        )
    by = {row["metric"]: row for row in found["metrics"]}
    run, kv = by["run_time_s"], by["kv_usage_mean"]
    allowed = max(0.05 * run["mean"], 2 * run["sd"])
    verdicts = [
        f"run time: {run['error']:+.2f} s, allowed max(5 %, 2 sd) = {allowed:.2f} s: {'within' if abs(run['error']) <= allowed else 'outside'}",
        f"mean KV usage: {100 * kv['error'] / kv['mean']:+.1f} %, allowed 3 %: {'within' if abs(kv['error']) <= 0.03 * kv['mean'] else 'outside'}",
    ]
    inside = sum(held(row) for row in found["metrics"])
    total = sum(len(row["measured"]) for row in found["metrics"])
    verdicts.append(
        f"90 % intervals of the simulation (`--bands`) hold {inside} of {total} measured values: {100 * inside / total:.0f} %"
    )
    loads = ", ".join(f"{value:g}" for value in found["load_averages"].values())
    return "\n".join(
        [
            "# Does a profile fitted to some runs predict others?",
            "",
            "Made by `python reports/calibration/make_calibration.py`; do not edit.",
            f"Measured: real SGLang {found['sglang']} on a CPU ({found['machine']}), tiny-llama, random weights,",
            "forced outputs; 24 tasks, 12 at a time, in 2,048 tokens of KV (queueing, reclaim, retractions), five times. Simulated: the same",
            "scenario under a profile fitted to three runs of other tasks, 12, 6 and 2 at a time. Load average of the machine after each run: "
            + loads
            + ".",
            "",
            *(f"- {each}" for each in verdicts),
            "",
            "| metric | measured mean | sd of 5 | simulated | error | in sd | 90 % interval | holds |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            "Each fitting run, its steps predicted by a fit to the other two: "
            + ", ".join(f"{each['run']} {each['total_error']:+.1%} in sum" for each in found["held_out"])
            + ".",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("out/calibration"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    given = parser.parse_args()
    kept = HERE / "calibration.json"
    if given.simulated:
        found = json.loads(kept.read_text(encoding="utf-8"))
    else:
        if not given.again:
            measure(given.work)
        found = fit(given.work)
    found = predict(found, given.work)
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "README.md").write_text(page(found), encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
