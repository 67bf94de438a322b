# SPDX-License-Identifier: Apache-2.0
"""Find the worlds that explain the published serving run; write explanations.json, from which page.py writes README.md.

    python reports/paper/explain.py [--jobs 2]     # from the repository's root; about 15 minutes on two idle cores

A quasi-random design over the priors of world.py (Sobol, 64 worlds, 96 tasks each), then rounds that a surrogate
(radial basis functions on the logarithms of what the runs showed) proposes, then the nearest worlds with all 424
tasks, and their throughput over the number of tasks at a time. What was run already is read from explanations.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import page
import world as w
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.stats import qmc

from sqsim.base.workers import end_with

HERE = Path(__file__).parent
FILE = HERE / "explanations.json"
DESIGN, COARSE_TASKS, ROUNDS, PROPOSED, FULL = 64, 96, 8, 16, 8
CURVED = 3
BY_HAND: list[dict[str, float | str]] = [
    {
        "k": "4",
        "false_rate": 0.7,
        "output": 0.92,
        "response": 1.13,
        "kv_capacity": 488e3,
        "host_s": 1e-3,
        "turns": 1.05,
        "wait": 0.14,
    },
    {
        "k": "4",
        "false_rate": 0.7,
        "output": 0.85,
        "response": 1.2,
        "kv_capacity": 560e3,
        "host_s": 5e-4,
        "turns": 1.15,
        "wait": 0.14,
    },
    {
        "k": "4",
        "false_rate": 0.7,
        "output": 0.83,
        "response": 1.2,
        "kv_capacity": 550e3,
        "host_s": 5e-4,
        "turns": 1.15,
        "wait": 0.1,
    },
    {
        "k": "4",
        "false_rate": 0.7,
        "output": 0.84,
        "response": 1.2,
        "kv_capacity": 520e3,
        "host_s": 5e-4,
        "turns": 1.1,
        "wait": 0.1,
    },
]
"""Tried after six rounds, in view of what resisted: K = 2 says too many aux tokens, and no round had proposed K = 4."""
AT_A_TIME = (8, 16, 24, 36, 48)

Shares = NDArray[np.float64]
LEARNT = ("run_s", "main_tok_s", "all_tok_s", "output_tok_s_peak", "kv_usage_peak", "kv_held_peak")


class Runs:
    """Results by world and number of tasks, kept in a file so that no world runs twice."""

    def __init__(self, file: Path, jobs: int) -> None:
        self._file, self._jobs = file, jobs
        data = json.loads(file.read_text()) if file.exists() else {"runs": []}
        self.rows: list[dict[str, Any]] = data["runs"]
        self.curves: list[dict[str, Any]] = data.get("curves", [])

    def take(self, points: Iterable[Shares], number: int, stage: str) -> None:
        """Run these worlds, except those run already."""
        known = {(tuple(row["shares"]), row["tasks"]) for row in self.rows}
        shares = [tuple(round(float(x), 4) for x in point) for point in points]
        new = [each for each in dict.fromkeys(shares) if (each, number) not in known]
        calls = (joblib.delayed(_show)(each, number, os.getpid()) for each in new)
        for each, shown in zip(new, joblib.Parallel(self._jobs, return_as="generator")(calls), strict=True):
            self.rows.append({"stage": stage, "tasks": number, "shares": each, "shown": shown})
            if len(self.rows) % 8 == 0:
                self.save()
            print(f"{stage}: {len(self.rows)} worlds", file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        self._file.write_text(json.dumps({"runs": self.rows, "curves": self.curves}) + "\n")

    def of(self, number: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["tasks"] == number]


def _show(shares: Sequence[float], number: int, started_by: int) -> dict[str, dict[str, float]]:
    end_with(started_by)
    shown = w.show(w.world(np.array(shares)), number)
    return {
        policy: {key: float(f"{value:.5g}") for key, value in found.items()} for policy, found in shown.items()
    }


def _curve(shares: Sequence[float], policy: str, at_a_time: int, started_by: int) -> dict[str, float]:
    end_with(started_by)
    found = w.run(w.world(np.array(shares)), policy, at_a_time, COARSE_TASKS)
    return {key: float(f"{found[key]:.5g}") for key in ("main_tok_s", "all_tok_s", "run_s", "kv_usage_peak")}


def nearest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by the distance of their best reading."""
    return sorted(rows, key=lambda row: min(w.distance(row["shown"], each) for each in w.READINGS))


def families(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nearest row of each kernel and K: worlds that explain in different ways."""
    found: dict[tuple[float | str, ...], dict[str, Any]] = {}
    for row in nearest(rows):
        one = w.world(np.array(row["shares"]))
        found.setdefault((one["experts"], one["k"]), row)
    return list(found.values())


def propose(rows: Sequence[dict[str, Any]], number: int, seed: int) -> list[Shares]:
    """Propose the worlds that a surrogate of these runs predicts to be nearest, no two of them neighbours."""
    known = np.array([row["shares"] for row in rows])
    values = np.log(
        [[max(row["shown"][policy][name], 1e-9) for policy in w.AT for name in LEARNT] for row in rows]
    )
    surrogate = RBFInterpolator(_placed(known), values, kernel="linear", smoothing=0.05, neighbors=40)
    best = np.array([row["shares"] for row in nearest(rows)[:12]])
    draw = np.random.default_rng(seed)
    near = np.repeat(best, 600, axis=0) + draw.normal(0, 0.08, (len(best) * 600, known.shape[1]))
    for at, unknown in enumerate(w.UNKNOWNS.values()):
        if unknown.choices:  # a step of a choice is no small one: a quarter of them are drawn anew
            anew = draw.random(len(near)) < 0.25
            near[anew, at] = draw.random(int(anew.sum()))
    wide = qmc.Sobol(known.shape[1], seed=seed).random(2**13)
    points = np.clip(np.concatenate([wide, near]), 0, 1 - 1e-9)
    predicted = np.exp(surrogate(_placed(points)))
    found = np.array([_distance(row) for row in predicted])
    chosen: list[Shares] = []
    for at in np.argsort(found):
        if all(np.linalg.norm(_placed(points[at : at + 1]) - _placed(other[None])) > 0.15 for other in chosen):
            chosen.append(points[at])
        if len(chosen) == number:
            break
    return chosen


def _placed(shares: Shares) -> Shares:
    """Return the surrogate's coordinates of worlds: a choice lies at the middle of its share."""
    placed = shares.copy()
    for at, unknown in enumerate(w.UNKNOWNS.values()):
        if unknown.choices:
            count = len(unknown.choices)
            placed[:, at] = (np.minimum(np.floor(shares[:, at] * count), count - 1) + 0.5) / count
    return placed


def _distance(values: Shares) -> float:
    half = len(LEARNT)
    shown = {
        policy: dict(zip(LEARNT, values[start : start + half], strict=True))
        for policy, start in zip(w.AT, (0, half), strict=True)
    }
    return min(w.distance(shown, reading) for reading in w.READINGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    runs = Runs(FILE, given.jobs)
    runs.take(qmc.Sobol(len(w.UNKNOWNS), seed=0).random(DESIGN), COARSE_TASKS, "design")
    for number in range(ROUNDS):
        if number == 6:
            ours: w.Cluster = {"experts": "bf16moe-sglang", "baseline_cache": "radix", "recall": 1.0}
            runs.take([w.shares({**ours, **one}) for one in BY_HAND], COARSE_TASKS, "by hand")
        if not any(row["stage"] == f"round {number + 1}" for row in runs.rows):
            runs.take(propose(runs.of(COARSE_TASKS), PROPOSED, number), COARSE_TASKS, f"round {number + 1}")
    runs.take([np.array(row["shares"]) for row in nearest(runs.of(COARSE_TASKS))[:FULL]], w.TASKS, "whole")
    curved = [tuple(row["shares"]) for row in families(runs.of(w.TASKS))[:CURVED]]
    kept = [row for row in runs.curves if tuple(row["shares"]) in curved]
    known = {(tuple(row["shares"]), row["policy"], row["at_a_time"]) for row in kept}
    work = [each for each in product(curved, w.AT, AT_A_TIME) if each not in known]
    calls = (joblib.delayed(_curve)(*each, os.getpid()) for each in work)
    new = [
        {"shares": shares, "policy": policy, "at_a_time": at, **found}
        for (shares, policy, at), found in zip(work, joblib.Parallel(given.jobs)(calls), strict=True)
    ]
    runs.curves = kept + new
    runs.save()
    page.main()


if __name__ == "__main__":
    main()
