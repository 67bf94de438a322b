# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a simulation (seconds, simulated steps per second, memory) and of DynoSim on the same requests.

    .venv/bin/python benchmarks/simulator.py                      # all cases
    .venv/bin/python benchmarks/simulator.py requests-1000 frames-24-none
    .venv/bin/python benchmarks/simulator.py --dynamo DIR/bin/python requests-1000 requests-10000

Every case is a process of its own. `s` runs from the traces read to the record on disk, `cpu s` is the processor's time in it
(what a shared machine adds is between the two), `steps/s` the engine's steps that it stands for, `MiB` the peak of resident
memory above the one after the imports. Cases that are ratios are taken in one run: a machine's mood cancels.

DynoSim (`pip install ai-dynamo==1.4.2` into an environment of its own; --dynamo or DYNAMO_PYTHON names its python) replays the
same requests from a Mooncake file: arrivals, prompt and output lengths are those of our trace. Its seconds are those that
it prints of itself, without start and report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

POLICIES = {
    "none": ("radix", {"name": "none"}),
    "none-session": ("session", {"name": "none"}),
    "keep_last": ("radix", {"name": "keep_last", "n": 3, "after_eviction": "reprefill"}),
    "sidequest-reprefill": ("radix", {"name": "sidequest", "k": 4, "after_eviction": "reprefill"}),
    "sidequest": ("session", {"name": "sidequest", "k": 4, "after_eviction": "in_place"}),
    "oracle": ("session", {"name": "oracle", "after_eviction": "in_place"}),
}
RATE, PROMPT, OUTPUT, BLOCK = 4.0, 2000, 200, 64
TARGETS_S = {"requests-1000": 0.06, "requests-10000": 0.59, **{f"frames-24-{name}": 0.3 for name in POLICIES}}
TARGET_MIB = {"stream-100000": 150}


def requests(number: int) -> dict[str, Any]:
    """Make an open load: Poisson arrivals at 4/s, 2,000 tokens in, 200 out, nothing shared."""
    return {"trace": ("requests", number), "load": {"rate_per_s": RATE}, "policy": "none"}


def frames(number: int, policy: str) -> dict[str, Any]:
    """Make a closed load: FRAMES-like tasks, 24 at a time."""
    return {"trace": ("frames", number), "load": {"concurrency": 24}, "policy": policy}


CASES: dict[str, dict[str, Any]] = {
    "requests-1000": requests(1000),
    "requests-10000": requests(10_000),
    **{f"frames-24-{name}": frames(424, name) for name in POLICIES},
    "frames-4000": frames(4000, "none"),
    "frames-40000": frames(40_000, "none"),
    "stream-100000": requests(100_000),
}


# Traces.


def write_trace(kind: str, number: int, folder: Path) -> Path:
    """Write the trace of a case, once."""
    from sqsim.trace.store import write_tasks  # noqa: PLC0415 - the parent process stays small
    from sqsim.trace.synthesis import synthesise  # noqa: PLC0415

    path = folder / f"{kind}-{number}.jsonl.zst"
    if not path.exists():
        made: dict[str, Callable[[], Iterator[Any]]] = {
            "requests": lambda: map(_request, range(number)),
            "frames": lambda: synthesise("frames", number, seed=0),
        }
        write_tasks(path, made[kind]())
    return path


def _request(number: int) -> Any:
    from sqsim.trace.schema import Answer, Carries, Prefix, Question, Source, Task  # noqa: PLC0415

    return Task(
        task_id=f"r{number}",
        source=Source(format="benchmark"),
        carries=Carries(usage="synthesised"),
        prefix=Prefix(id="none", tokens=0),
        question=Question(tokens=PROMPT),
        turns=(),
        answer=Answer(reasoning_tokens=0, text_tokens=OUTPUT),
    )


def write_mooncake(number: int, folder: Path) -> Path:
    """Write the same requests with the same arrivals as Mooncake lines, each with its own block ids."""
    from sqsim.scenario.load import RateLoad  # noqa: PLC0415
    from sqsim.scenario.workload import _at_rate  # noqa: PLC0415

    path, blocks = folder / f"mooncake-{number}.jsonl", -(-PROMPT // BLOCK)
    with path.open("w") as file:
        for index, at_s in enumerate(islice(_at_rate(RateLoad(rate_per_s=RATE), 0), number)):
            ids = list(range(index * blocks, (index + 1) * blocks))
            line = {
                "timestamp": round(at_s * 1e3),
                "input_length": PROMPT,
                "output_length": OUTPUT,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")
    return path


# One case, in a process of its own.


def run_case(name: str, trace: str, out: str) -> dict[str, Any]:
    """Run a case and return its cost."""
    from sqsim.record.files import read_record  # noqa: PLC0415
    from sqsim.scenario.scenario import make_scenario  # noqa: PLC0415
    from sqsim.simulation.simulate import Simulation  # noqa: PLC0415

    imported = _resident_mib()
    case = CASES[name]
    cache, policy = POLICIES[case["policy"]]
    scenario = make_scenario(
        {
            "traces": trace,
            "model": "gpt-oss-20b",
            "engine": {"gpu": "h100-sxm", "cache": cache},
            "load": case["load"],
            "policy": policy,
        }
    )
    simulation = Simulation(scenario)
    wall, cpu = time.perf_counter(), time.process_time()
    simulation.write(out, overwrite=True)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    record = read_record(out)
    steps = sum(record.engine["steps"].to_pylist())
    return {
        "case": name,
        "s": wall,
        "cpu_s": cpu,
        "tasks": record.tasks.num_rows,
        "turns": record.turns.num_rows,
        "steps": steps,
        "rows": record.engine.num_rows,
        "mib": peak - imported,
    }


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def fresh_case(name: str, folder: Path) -> dict[str, Any]:
    """Run `run_case` in a process of its own."""
    kind, number = CASES[name]["trace"]
    trace = write_trace(kind, number, folder)
    out = folder / f"record-{name}"
    command = [sys.executable, __file__, "--case", name, str(trace), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# DynoSim.


def dynamo(python: str, number: int, folder: Path) -> float:
    """Return the seconds that DynoSim reports for its replay of these requests."""
    command = [python, "-m", "dynamo.replay", str(write_mooncake(number, folder))]
    command += ["--trace-block-size", str(BLOCK), "--num-workers", "1", "--replay-mode", "offline"]
    command += ["--extra-engine-args", json.dumps({"block_size": BLOCK})]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    said = re.search(r"Wall Time \(ms\): ([\d,.]+)", done.stdout + done.stderr)
    if said is None:
        raise SystemExit(f"DynoSim said no wall time: {(done.stdout + done.stderr)[-600:]}")
    return float(said[1].replace(",", "")) / 1e3


def report(found: dict[str, Any], repeats: int) -> None:
    target = TARGETS_S.get(found["case"])
    limit = TARGET_MIB.get(found["case"])
    print(
        f"{found['case']:28} {found['s']:9.2f} {found['cpu_s']:9.2f} {found['tasks']:8,} {found['turns']:9,} "
        f"{found['steps'] / found['s']:11,.0f} {1e6 * found['s'] / found['turns']:9.0f} {found['mib']:6.0f}"
        + (f"   target {target} s" if target else "")
        + (f"   target {limit} MiB" if limit else "")
        + (f"   (best of {repeats})" if repeats > 1 else ""),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case; the fastest counts")
    parser.add_argument("--dynamo", default=os.environ.get("DYNAMO_PYTHON"), help="python with ai-dynamo")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--case", nargs=3, metavar=("NAME", "TRACE", "OUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(run_case(*asked.case)))
        return
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; cases are {', '.join(CASES)}")
    figures: dict[str, Any] = {}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'case':28} {'s':>9} {'cpu s':>9} {'tasks':>8} {'turns':>9} {'steps/s':>11} {'us/turn':>9} {'MiB':>6}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in asked.cases or CASES:
            figures[name] = min(
                [fresh_case(name, folder) for _ in range(asked.repeat)], key=lambda run: run["s"]
            )
            report(figures[name], asked.repeat)
        if {"frames-4000", "frames-40000"} <= figures.keys():
            small, large = (
                figures[name]["s"] / figures[name]["tasks"] for name in ("frames-4000", "frames-40000")
            )
            print(f"a task among 40,000 takes {large / small:.2f} times as long as one among 4,000")
        if asked.dynamo:
            compare_with_dynamo(asked.dynamo, figures, folder, asked.repeat)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


def compare_with_dynamo(python: str, figures: dict[str, Any], folder: Path, repeats: int) -> None:
    for name in ("requests-1000", "requests-10000"):
        if name in figures:
            theirs = min(dynamo(python, CASES[name]["trace"][1], folder) for _ in range(repeats))
            print(f"DynoSim {name}: {theirs:.3f} s; ours takes {figures[name]['s'] / theirs:.1f} times as long")
            figures[name]["dynamo_s"] = theirs


if __name__ == "__main__":
    main()
