# SPDX-License-Identifier: Apache-2.0
"""Write README.md, how far to trust a simulated number, from every measurement in this repository.

python reports/trust/make_trust.py            # from the repository's root
python reports/trust/make_trust.py --check    # exit code 1 if the page differs; writes nothing
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqsim.fidelity.recording import read_recording
from sqsim.fidelity.step_fit import Run, StepFit, fit_steps, predicted_s
from sqsim.fidelity.step_times import StepTime, step_times
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.profile import Term, shipped_profiles
from sqsim.models.cost.uncertainty import relative_spread

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "README.md"
RECORDINGS = ROOT / "tests" / "data" / "sglang-schedules"
sys.path[:0] = [str(ROOT / "reports"), str(ROOT / "reports" / "profiles")]

import check_servers  # noqa: E402 - a script beside the pages it writes
import held_out  # noqa: E402
from committed import write_or_check  # noqa: E402

EDGES = (0.5, 0.8, 0.95)
"""Of KV usage: the bins of pressure."""

KNOWN_LIMITS = (
    "The recorded trajectory is held fixed: an agent that loses a response might act differently. Nothing here speaks of accuracy.",
    "No GPU server was measured by this project. Kernel times are others', one kernel at a time; host work a step is assumed.",
    "The published SGLang server (0.5.4, ShareGPT) is three times slower than its kernels and scheduler explain; vLLM's is not.",
    "TTFT of published servers is predicted 40 to 80 % too low by the formula without a queue; under load nothing holds it better yet.",
    "In-place eviction, forks of a session and the release of idle sessions are our plugin's design; no stock SGLang has them.",
    "recall, false_rate and, where a trace carries none, references are assumed. No interval holds them: vary them.",
    "A batch is not padded to a captured graph size; expert routing is a power law; prefill behind a prefix was never measured.",
    "A real server on a shared machine varies by 5 to 10 % from run to run: a smaller error cannot be told from luck.",
    "One retraction more or less moves a contended run by as much as the spread of its repeats.",
)


class Recorded(NamedTuple):
    """The steps of a recorded run, and the KV usage before each."""

    name: str
    steps: Sequence[StepTime]
    usage: NDArray[np.float64]

    @property
    def fitted(self) -> bool:
        """True if a fit may see it: half of them, by the hash of the name."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 2 == 1

    @property
    def later(self) -> bool:
        """True if it is of the second lot of recordings."""
        return self.name[0] in "XYZ"

    @property
    def seconds(self) -> NDArray[np.float64]:
        return np.array([step.seconds for step in self.steps])


def recorded() -> list[Recorded]:
    """Read tiny llama's runs on torch's own attention with overlap scheduling: the largest group on one kind of server."""
    found = []
    for file in sorted(RECORDINGS.rglob("server.json")):
        server = json.loads(file.read_text())
        arguments = server["launch_args"]
        if arguments["attention_backend"] != "torch_native" or arguments.get("disable_overlap_schedule"):
            continue
        before = {
            event.get("t0", float): 1.0
            - (pool.get("avail", int) + pool.get("evictable", int)) / server["pool_tokens"]
            for event in read_recording(file.parent).events()
            if event.get("ev", str) == "step" and (pool := event.entry("pre"))
        }
        steps = step_times(file.parent, None).steps
        name = str(file.parent.relative_to(RECORDINGS))
        found.append(Recorded(name, steps, np.array([before[step.t0_s] for step in steps])))
    return found


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def recordings() -> list[str]:
    runs, shape = recorded(), geometry("tiny-llama")
    fit: StepFit = fit_steps([Run(run.name, run.steps) for run in runs if run.fitted], shape)
    judged = [run for run in runs if not run.fitted]
    lines = [
        f"{len(runs)} recorded schedules of one kind of server (tiny llama, CPU): a fit to {len(runs) - len(judged)} of them, by the hash of the name,",
        f"predicts the steps of the {len(judged)} others. What the letters stand for: tests/data/sglang-schedules/README.md. L and X5 mix",
        "prefill and decode in a batch; X and Z were recorded later, with chunks of 16 to 128 tokens: a fit to a server at one",
        "time need not hold at another, which `sqsim calibrate` shows by what it states as spread of a run.",
        "",
        "| recording | steps | measured s | error of the sum | mean absolute error of a step |",
        "|---|---:|---:|---:|---:|",
    ]
    for run in judged:
        predicted, seconds = predicted_s(fit, run.steps, shape), run.seconds
        step = np.mean(np.abs(predicted / seconds - 1))
        lines.append(
            f"| {run.name} | {len(seconds)} | {seconds.sum():.2f} | {percent(predicted.sum() / seconds.sum() - 1)} | {100 * step:.1f} % |"
        )
    return [
        *lines,
        f"| spread of a run beyond the covariance, as fitted | | | {100 * fit.spread:.1f} % | |",
        "",
        *by_usage(fit, judged),
    ]


def by_usage(fit: StepFit, judged: Sequence[Recorded]) -> list[str]:
    """Show the errors of sums of steps, by the KV usage before them."""
    groups = {
        "first recordings": [run for run in judged if not run.later],
        "later ones": [run for run in judged if run.later],
    }
    lines = ["The same steps by KV usage before them, error of the sum (measured s):", ""]
    lines += ["| KV usage | " + " | ".join(groups) + " |", "|---|" + "---:|" * len(groups)]
    names = [
        f"below {100 * EDGES[0]:.0f} %",
        *(f"{100 * low:.0f} to {100 * high:.0f} %" for low, high in pairwise(EDGES)),
        f"from {100 * EDGES[-1]:.0f} %",
    ]
    for place, name in enumerate(names):
        cells = []
        for runs in groups.values():
            sums = np.zeros(2)
            for run in runs:
                inside = np.digitize(run.usage, EDGES) == place
                predicted = predicted_s(fit, run.steps, geometry("tiny-llama"))
                sums += predicted[inside].sum(), run.seconds[inside].sum()
            cells.append(f"{percent(sums[0] / sums[1] - 1)} ({sums[1]:.1f})" if sums[1] else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def whole_runs() -> list[str]:
    found = json.loads((ROOT / "reports/calibration/calibration.json").read_text())
    lines = [
        "One contended run on a real SGLang (CPU, tiny llama; [calibration](../calibration/README.md)), five times, against the simulation",
        "under a profile fitted to other runs:",
        "",
        "| metric | measured | spread of the repeats | error | in spreads | its 90 % interval holds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["metrics"]:
        mean, sd = row["mean"], row["sd"]
        spreads = f"{row['error'] / sd:+.1f}" if sd else "-"
        share = f"{100 * sd / mean:.1f} %" if mean else "-"
        inside = sum(row["low"] <= value <= row["high"] for value in row["measured"])
        lines.append(
            f"| {row['metric']} | {mean:.4g} | {share} | {percent(row['error'] / mean) if mean else '-'} | {spreads} | {inside} of {len(row['measured'])} |"
        )
    return lines


def decisions() -> list[str]:
    runs = json.loads((ROOT / "reports/conformance/conformance.json").read_text())
    differing = sum(bool(run["differences"]) for run in runs)
    batches = sum(run.get("batches", 0) for run in runs)
    retractions = sum(run.get("retractions", 0) for run in runs)
    return [
        f"- Of {len(runs)} runs on real SGLang servers ({batches:,} batches, {retractions} retractions) {differing} differ from the simulation",
        "  in any token count, batch, eviction or retraction ([conformance](../conformance/README.md)).",
        "- Of 33 recorded schedules of the real scheduler none differs (`sqsim lockstep tests/data/sglang-schedules`, a test in CI).",
    ]


def kernels() -> list[str]:
    lines = ["| kernel | rows held out | mean absolute error | signed |", "|---|---:|---:|---:|"]
    for kernel in held_out.kernels():
        if "balanced" not in kernel.what and "all rows" not in kernel.what:
            errors = kernel.errors(kernel.by_hash)
            lines.append(
                f"| {kernel.what}, {kernel.gpu} | {errors.size} | {100 * np.abs(errors).mean():.1f} % | {percent(errors.mean())} |"
            )
    return lines


def servers() -> list[str]:
    rows = check_servers.servers()
    fitted = check_servers.factors([row for row in rows if row.fitted])
    judged = [row for row in rows if row.in_range and not row.fitted]
    lines = [
        "| requests at once | rows | roofline: mean, absolute | fitted to other rows: mean, absolute |",
        "|---|---:|---:|---:|",
    ]
    for name, group in check_servers.by(judged, lambda row: row.requests).items():
        cells = []
        for predicted in (check_servers.unfitted, lambda row: float(np.array(row.features) @ fitted)):
            errors = check_servers.errors(group, predicted)
            cells.append(f"{percent(errors.mean())}, {100 * np.abs(errors).mean():.1f} %")
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return lines


def ranges(term: Term) -> str:
    return ", ".join(f"{quantity} {low:g} to {high:g}" for quantity, (low, high) in term.ranges.items()) or "-"


def profiles() -> list[str]:
    """List, for each term, where it was measured and what `--bands` draws for it."""
    found = shipped_profiles()
    labels = [profile.name.removeprefix(f"{profile.model}-") for profile in found]
    lines = [
        "What `--bands` draws of each term: relative standard deviation of a factor, beside the covariance of what was fitted.",
        "",
        f"| term | evidence | measured over | {' | '.join(labels)} |",
        "|---|---|---|" + "---:|" * len(found),
    ]
    for name, term in found[0].terms().items():
        cells = [f"{100 * relative_spread(profile.terms()[name]):.0f} %" for profile in found]
        lines.append(f"| {name} | {term.evidence} | {ranges(term)} | {' | '.join(cells)} |")
    return lines


def section(title: str, lines: Sequence[str]) -> list[Any]:
    return ["", f"## {title}", "", *lines]


def page() -> str:
    return "\n".join(
        [
            "# How far to trust a simulated number",
            "",
            "Made by `python reports/trust/make_trust.py` from every measurement in this repository; do not edit. Errors are signed,",
            "(predicted / measured - 1). `sqsim run --bands` turns what is in doubt of a profile into an interval for every metric.",
            *section("What the scheduler decides", decisions()),
            *section("Whole runs: time and memory", whole_runs()),
            *section("Steps of recorded runs, by run and by KV pressure", recordings()),
            *section(
                "Kernels on rows that no fit saw (published measurements; [more](../profiles/HELD_OUT.md))",
                kernels(),
            ),
            *section(
                "TPOT of whole servers (gpt-oss-120b, published measurements; [more](../profiles/SERVERS.md))",
                servers(),
            ),
            *section("Ranges and doubts of the shipped profiles", profiles()),
            *section("Known limits", [f"- {limit}" for limit in KNOWN_LIMITS]),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
