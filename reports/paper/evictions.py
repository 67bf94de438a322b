# SPDX-License-Identifier: Apache-2.0
"""Derive what -56 to -65 % peak tokens and -53 to -71 % KV reads imply for decisions; write evictions.json and EVICTIONS.md.

    python reports/paper/evictions.py [--jobs 2]    # from the repository's root; about 3 minutes on two idle cores
    python reports/paper/evictions.py --again       # the page alone, from evictions.json

FRAMES-like and BrowseComp-like tasks (synthesised, references too), 24 at a time in a KV pool that never fills, so that
decisions alone decide. One thing varies at a time about a centre, beside the oracle and beside decisions without error.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib

from sqsim.base.workers import end_with
from sqsim.record.metrics import metrics
from sqsim.record.regret import regret_tokens
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from sqsim.trace.synthesis import synthesise

HERE = Path(__file__).parent
FILE, PAGE = HERE / "evictions.json", HERE / "EVICTIONS.md"
WORKLOADS = {"frames": 48, "browsecomp": 24}
"""Profile -> tasks."""
CENTRE = {"k": 4, "recall": 0.85, "false_rate": 0.02, "aux_tokens": 125}
VARIED: dict[str, tuple[float, ...]] = {
    "recall": (0.5, 0.7, 0.85, 1.0),
    "false_rate": (0.0, 0.02, 0.1, 0.2, 0.4),
    "k": (1, 2, 4, 8),
    "aux_tokens": (32, 125, 500),
}
PUBLISHED = {"peak_tokens_mean": (-0.65, -0.56), "kv_reads_main_tokens": (-0.71, -0.53)}
CAPACITY = 4_000_000


def policies() -> list[dict[str, Any]]:
    """Return none, the oracle, no errors, every false rate at full recall, and each value around the centre."""
    found: list[dict[str, Any]] = [{"name": "none"}, {"name": "oracle"}]
    perfect = {"name": "sidequest", **CENTRE, "recall": 1.0, "false_rate": 0.0}
    found += [{**perfect, "k": k} for k in (1, 4)]
    for key, values in VARIED.items():
        found += [{"name": "sidequest", **CENTRE, key: value} for value in values]
    found += [{**perfect, "k": k, "false_rate": rate} for k in (1, 4) for rate in (0.1, 0.2, 0.4)]
    return [policy for at, policy in enumerate(found) if policy not in found[:at]]


def _run(workload: str, policy: dict[str, Any], started_by: int) -> RunRecord:
    end_with(started_by)
    policy = {**policy, "aux_max_new_tokens": 1024} if policy["name"] == "sidequest" else policy
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tasks.jsonl"
        write_tasks(path, synthesise(workload, WORKLOADS[workload]))
        return simulate(
            make_scenario(
                {
                    "traces": str(path),
                    "engine": {"cache": "session", "kv_capacity": CAPACITY},
                    "load": {"concurrency": 24},
                    "policy": policy,
                }
            )
        )


def measure(jobs: int) -> list[dict[str, Any]]:
    """Run every policy on every workload; compare it with `none` and the oracle of that workload."""
    work = [(workload, policy) for workload in WORKLOADS for policy in policies()]
    calls = (joblib.delayed(_run)(workload, policy, os.getpid()) for workload, policy in work)
    records = dict(enumerate(joblib.Parallel(jobs)(calls)))
    rows = []
    for at, (workload, policy) in enumerate(work):
        same = {
            other["name"]: records[place]
            for place, (where, other) in enumerate(work)
            if where == workload and other["name"] != "sidequest"
        }
        found, base = metrics(records[at]), metrics(same["none"])
        row: dict[str, Any] = {"workload": workload, "policy": policy}
        for key in PUBLISHED:
            row[key] = round(float(found[key]) / float(base[key]) - 1, 4)  # type: ignore[arg-type]
        row |= {
            key: found[key]
            for key in ("evictions", "evicted_then_used", "evicted_uses", "aux_late", "aux_spawned")
        }
        row["turns"] = records[at].turns.num_rows
        regret = regret_tokens(records[at], same["oracle"])
        row["regret"] = None if regret is None else round(regret, 4)
        rows.append(row)
    return rows


def within(row: dict[str, Any]) -> bool:
    return all(low <= row[key] <= high for key, (low, high) in PUBLISHED.items())


def _named(policy: dict[str, Any]) -> str:
    if policy["name"] != "sidequest":
        return str(policy["name"])
    return f"recall {policy['recall']:g}, false {policy['false_rate']:g}, K {policy['k']}, aux {policy['aux_tokens']}"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| decisions | peak tokens | KV reads | evicted then needed | needed again a task | late aux | regret |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        count, tasks = max(1, row["evictions"]), WORKLOADS[row["workload"]]
        regret = "-" if row["regret"] is None else f"{100 * row['regret']:+.0f} %"
        late = f"{100 * row['aux_late'] / row['aux_spawned']:.0f} %" if row["aux_spawned"] else "-"
        inside = " **in both**" if within(row) else ""
        lines.append(
            f"| {_named(row['policy'])}{inside} | {100 * row['peak_tokens_mean']:+.0f} % | {100 * row['kv_reads_main_tokens']:+.0f} % "
            f"| {100 * row['evicted_then_used'] / count:.0f} % | {row['evicted_uses'] / tasks:.1f} | {late} | {regret} |"
        )
    return lines


def findings(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for workload in WORKLOADS:
        mine = {json.dumps(row["policy"]): row for row in rows if row["workload"] == workload}
        by_name = {row["policy"]["name"]: row for row in mine.values()}
        oracle = by_name["oracle"]
        perfect = {
            row["policy"]["k"]: row
            for row in mine.values()
            if row["policy"]["name"] == "sidequest"
            and row["policy"]["recall"] == 1.0
            and row["policy"]["false_rate"] == 0.0
        }
        inside = [row for row in mine.values() if within(row)]
        least = min(inside, key=lambda row: row["evicted_uses"], default=None)
        reach = (
            f"Both published ranges are reached from a false rate of {least['policy']['false_rate']:g} on (recall "
            f"{least['policy']['recall']:g}, K {least['policy']['k']}), and then {100 * least['evicted_then_used'] / least['evictions']:.0f} % of the evicted responses are needed again"
            if least is not None and least["policy"]["name"] == "sidequest"
            else "The oracle alone reaches both published ranges"
            if least is not None
            else "Nothing tried reaches both published ranges"
        )
        lines.append(
            f"- **{workload}-like**: the oracle saves {-100 * oracle['peak_tokens_mean']:.0f} % of peak tokens and {-100 * oracle['kv_reads_main_tokens']:.0f} % of KV reads. "
            f"Lag costs {100 * (perfect[1]['regret'] or 0):.0f} % of the oracle's token-seconds at K = 1 and {100 * (perfect[4]['regret'] or 0):.0f} % at K = 4, with no wrong decision at all. {reach}."
        )
    return lines


def page(rows: Sequence[dict[str, Any]]) -> str:
    parts = [
        "# What the published reductions imply for decisions",
        "",
        "Made by `python reports/paper/evictions.py`; do not edit. Simulated, on synthesised tasks: when a response is used last is",
        "drawn from the assumed mixture of traces/README.md, and everything here rests on it. Published (arXiv 2602.22603v1):",
        "peak tokens -56 to -65 %, KV reads -53 to -71 %. *Regret*: resident token-seconds above the oracle's, which evicts each",
        "response right after its last use; below 0 it holds less than is needed. *Needed again*: references to what is gone,",
        "each of which a real agent would have to search again or do without; that price in accuracy is not simulated.",
        "",
        *findings(rows),
    ]
    for workload, number in WORKLOADS.items():
        mine = [row for row in rows if row["workload"] == workload and row["policy"]["name"] != "none"]
        parts += ["", f"## {workload}-like, {number} tasks", "", *table(mine)]
    return "\n".join([*parts, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    if not given.again:
        FILE.write_text(json.dumps(measure(given.jobs), indent=1) + "\n", encoding="utf-8")
    text = page(json.loads(FILE.read_text(encoding="utf-8")))
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
