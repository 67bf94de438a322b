# SPDX-License-Identifier: Apache-2.0
"""Compare published measurements of whole servers with the cost model; write SERVERS.md.

    python reports/profiles/check_servers.py            # from the repository's root
    python reports/profiles/check_servers.py --check    # exit code 1 if the page differs; writes nothing

gpt-oss-120b on vLLM: TTFT and TPOT by concurrency, against a hand formula, no simulation: a decode step at the stated
concurrency and half the output, plus every other request's prefill spread over the output. First with the roofline
as it ships (its assumed constants were chosen in view of these rows, so that is no test), then with six factors
fitted to half of the rows and judged on the other half.

gpt-oss-20b on one H100: throughput of three engines, against a simulation of the same load.
"""

from __future__ import annotations

import csv
import hashlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.hardware import hardware
from sqsim.models.cost.step_cost import CostModel, Curve, StepWork, profile
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Answer, Carries, Prefix, Question, Source, Task
from sqsim.trace.store import write_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))

from committed import write_or_check

HERE = Path(__file__).parent
PAGE = HERE / "SERVERS.md"
MODEL = "gpt-oss-120b"
VERSION = "0.18.0"
WINDOW = geometry(MODEL).window or 0
LIMIT = 0.08
"""Mean absolute relative error of TPOT on the half that was not fitted, in range; set beforehand."""

Vector = NDArray[np.float64]
FACTORS = ("a step", "experts", "dense", "decode attention", "prefill of others", "a request")


class Server(NamedTuple):
    """One row: a server, its load, its measurements, and the roofline's prediction for it."""

    line: str
    gpu: str
    tensor_parallel: int
    version: str
    requests: int
    prompt: int
    output: int
    tpot_s: float
    ttft_s: float
    cost: CostModel

    @property
    def queues(self) -> bool:
        """True if requests wait: more than the server runs at once, where a formula without a queue does not apply."""
        return self.ttft_s > 5.0

    @property
    def in_range(self) -> bool:
        return not self.queues and self.version == VERSION

    @property
    def fitted(self) -> bool:
        """True if a fit may see it."""
        return self.in_range and int(hashlib.sha256(self.line.encode()).hexdigest(), 16) % 2 == 1

    @property
    def prefill_s(self) -> float:
        alone, nothing = (self.cost.step_s(StepWork(rows, 0, 0, 0)) for rows in (((self.prompt, 0),), ()))
        return alone - nothing

    @property
    def step_s(self) -> float:
        """Return the seconds of a decode step of all requests, each halfway through its output."""
        context = self.requests * (self.prompt + self.output // 2)
        return self.cost.step_s(StepWork((), self.requests, context, self.requests * WINDOW))

    @property
    def features(self) -> list[float]:
        """Return the terms that `FACTORS` multiply; their sum is a TPOT."""
        shape, terms = geometry(MODEL), self.cost.profile
        context = self.requests * (self.prompt + self.output // 2)
        slopes = self.cost.decode_affine(self.requests)
        assert terms.moe is not None
        dense = shape.layers * Curve(terms.dense.points)(self.requests) + Curve(terms.lm_head.points)(
            self.requests
        )
        return [
            1.0,
            shape.layers * Curve(terms.moe.points)(self.requests) / self.tensor_parallel,
            dense / self.tensor_parallel,
            slopes.per_context_token_s * context + slopes.per_window_token_s * self.requests * WINDOW,
            (self.requests - 1) * self.prefill_s / self.output,
            float(self.requests),
        ]


def servers() -> list[Server]:
    lines = (HERE / "data" / "gpt_oss_120b_end_to_end.csv").read_text(encoding="utf-8").splitlines()
    found = []
    for line, row in zip(lines[1:], csv.DictReader(lines), strict=True):
        gpu, parallel = row["system"].replace("_", "-"), int(float(row["tp_size"]))
        cost = CostModel(
            profile(MODEL, gpu, "roofline"), geometry(MODEL), hardware(gpu), tensor_parallel=parallel
        )
        requests, prompt, output = (int(row[name]) for name in ("concurrency", "isl", "osl"))
        tpot_s, ttft_s = (float(row[name]) * 1e-3 for name in ("silicon_tpot_ms", "silicon_ttft_ms"))
        version = row["backend_version"]
        found.append(Server(line, gpu, parallel, version, requests, prompt, output, tpot_s, ttft_s, cost))
    return found


def factors(rows: Sequence[Server]) -> Vector:
    """Fit non-negative factors that minimise squared relative errors of TPOT."""
    relative = np.array([row.features for row in rows]) / np.array([row.tpot_s for row in rows])[:, None]
    return nnls(relative, np.ones(len(rows)))[0]


def errors(rows: Sequence[Server], predicted: Callable[[Server], float]) -> Vector:
    """Return the signed relative errors of TPOT."""
    return np.array([predicted(row) / row.tpot_s - 1 for row in rows])


def unfitted(row: Server) -> float:
    """Return the roofline's TPOT."""
    return row.step_s + (row.requests - 1) * row.prefill_s / row.output


def said(found: Vector) -> str:
    if not found.size:
        return "- | -"
    return f"{100 * found.mean():+.1f} % | {100 * np.abs(found).mean():.1f} %"


def table(
    title: str, groups: dict[str, list[Server]], predicted: Sequence[Callable[[Server], float]]
) -> list[str]:
    lines = []
    for name, rows in groups.items():
        cells = " | ".join(said(errors(rows, each)) for each in predicted)
        lines.append(f"| {title} {name} | {len(rows)} | {cells} |")
    return lines


def by(rows: Sequence[Server], key: Callable[[Server], object]) -> dict[str, list[Server]]:
    keys = sorted({key(row) for row in rows}, key=lambda each: (len(str(each)), str(each)))
    return {str(each): [row for row in rows if key(row) == each] for each in keys}


def whole_servers() -> list[str]:
    rows = servers()
    fitted = factors([row for row in rows if row.fitted])
    judged = [row for row in rows if row.in_range and not row.fitted]

    def with_factors(row: Server) -> float:
        return float(np.array(row.features) @ fitted)

    def first_token(row: Server) -> float:
        return float(fitted[FACTORS.index("prefill of others")]) * row.prefill_s + with_factors(row) / 2

    ttft = {
        name: np.array([first_token(row) / row.ttft_s - 1 for row in group])
        for name, group in by(judged, lambda row: row.requests).items()
    }
    elsewhere = [row for row in rows if not row.in_range and not row.queues]
    queued = [row for row in rows if row.queues]
    head = "| | rows | roofline: mean | absolute | fitted: mean | absolute |"
    return [
        f"## gpt-oss-120b, vLLM {VERSION}: TPOT",
        "",
        f"In range: {sum(row.in_range for row in rows)} rows of this version on which requests do not queue;",
        f"{sum(row.fitted for row in rows)} of them (by the hash of the CSV line) were fitted to, the errors are those",
        "on the others. Signed errors are (predicted / measured - 1). Factors: "
        + ", ".join(
            f"{name} {value * 1e3:.2f} ms" if name in ("a step", "a request") else f"{name} {value:.2f}"
            for name, value in zip(FACTORS, fitted, strict=True)
        )
        + ".",
        "",
        head,
        "|---|---:|---:|---:|---:|---:|",
        *table("all", {"": judged}, (unfitted, with_factors)),
        *table("requests:", by(judged, lambda row: row.requests), (unfitted, with_factors)),
        *table("", by(judged, lambda row: f"{row.gpu} x {row.tensor_parallel}"), (unfitted, with_factors)),
        *table(
            "prompt + output:", by(judged, lambda row: f"{row.prompt} + {row.output}"), (unfitted, with_factors)
        ),
        *table("another or unstated version", {"": elsewhere}, (unfitted, with_factors)),
        *table("outside: requests queue", {"": queued}, (unfitted, with_factors)),
        "",
        "Where 512 requests queue (TTFT of 20 s and more) fewer are run at once than asked for, and the formula has no queue.",
        "",
        "TTFT on the same rows as it is: one prefill with the fitted factor and half a decode step, no queue. What is missing",
        "grows with the load: requests that start together wait for each other's prefill.",
        "",
        "| requests | mean error of TTFT | mean absolute |",
        "|---|---:|---:|",
        *(f"| {name} | {said(found)} |" for name, found in ttft.items()),
    ]


def one_prompt(prompt: int, output: int, requests: int, directory: Path) -> Path:
    """Make requests of one prompt length that share nothing but a system prompt of one token."""
    carries = Carries(usage="synthesised", timing="absent", references="absent")
    path = directory / f"{prompt}-{output}-{requests}.jsonl"
    write_tasks(
        path,
        [
            Task(
                task_id=f"t{number}",
                source=Source(format="synthetic"),
                carries=carries,
                prefix=Prefix(id="none", tokens=1),
                question=Question(tokens=prompt - 1),
                turns=(),
                answer=Answer(reasoning_tokens=0, text_tokens=output),
            )
            for number in range(requests)
        ],
    )
    return path


def throughput() -> list[str]:
    lines = [
        "## gpt-oss-20b, one H100: throughput",
        "",
        "All requests at once; of the ShareGPT runs only the totals are published, so every request has the mean lengths.",
        "The simulation is of SGLang 0.5.23; a row of another engine shows what that engine does otherwise.",
        "",
        "| engine | prompts | lengths | measured s | measured tok/s | bfloat16 experts, simulated s | error | MXFP4 experts, simulated s | error |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as directory:
        for row in csv.DictReader((HERE / "data" / "gpt_oss_20b_h100_servers.csv").open(encoding="utf-8")):
            requests = int(row["num_prompts"])
            prompt, output = (int(row[f"{way}_tokens_total"]) // requests for way in ("input", "output"))
            path = one_prompt(prompt, output, requests, Path(directory))
            cells = []
            for label in ("bf16moe-sglang", "mxfp4moe-vllm"):
                scenario = make_scenario(
                    {
                        "traces": str(path),
                        "engine": {"profile": f"gpt-oss-20b-h100-sxm-fa3-{label}", "max_new_tokens": output},
                        "load": {"concurrency": requests},
                    }
                )
                run_s = metrics(simulate(scenario))["run_time_s"]
                assert isinstance(run_s, float)
                cells.append(f"{run_s:.1f} | {100 * (run_s / float(row['duration_s']) - 1):+.0f} %")
            rate = row["output_tok_s"] or f"{row['total_tok_s']} in and out"
            lines.append(
                f"| {row['engine']} {row['version']} | {requests} | {prompt} + {output} | {row['duration_s']} | {rate} | {' | '.join(cells)} |"
            )
    return lines


def page() -> str:
    return "\n".join(
        [
            "# Whole servers that others measured",
            "",
            "Made by `python reports/profiles/check_servers.py`; do not edit. Measured by their publishers (aiconfigurator-core 0.12.0,",
            "Apache-2.0; gpustack performance lab, Apache-2.0), not by this project; predictions derived or simulated.",
            "",
            *whole_servers(),
            "",
            *throughput(),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
