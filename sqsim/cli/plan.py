# SPDX-License-Identifier: Apache-2.0
"""`sqsim plan`: find the fewest GPUs that keep an SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sqsim.base.strict_yaml import parse, show
from sqsim.base.workers import Workers
from sqsim.cli.output import (
    Changes,
    Json,
    Overwrite,
    Quiet,
    print_evidence,
    print_json,
    print_line,
    print_rows,
    progress_bar,
    write_text,
)
from sqsim.cli.sweep import ALL_CORES, Cluster, Jobs
from sqsim.errors import InputError
from sqsim.experiments.plan.not_run import of_plan
from sqsim.experiments.plan.plan import Ask, run_plan
from sqsim.experiments.plan.search import Load
from sqsim.experiments.plan.settings import KS
from sqsim.experiments.plan.slo import parse_slo
from sqsim.models.cost.hardware import HARDWARE
from sqsim.report.pages.any_page import any_page

PAGE = "plan.html"


def plan_command(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario file (YAML); its load, policy and replicas are replaced.")
    ],
    slo: Annotated[list[str], typer.Option("--slo", help="A bound on a metric: 'ttft_s_p99<2'; may repeat.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Directory for plan.json, its page and its runs.")
    ],
    agents: Annotated[
        int | None,
        typer.Option("--agents", min=1, max=1_000_000, help="Agents at a time, on all GPUs together."),
    ] = None,
    load: Annotated[float | None, typer.Option("--load", help="Tasks an hour, on all GPUs together.")] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="GPUs to try: h100-sxm,h200-sxm (default: the scenario's).")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="A YAML file with the price an hour of each GPU, such as h100-sxm: 2.5."),
    ] = None,
    ks: Annotated[str, typer.Option("--k", help="Values of SideQuest's K to try, in turns.")] = ",".join(
        map(str, KS)
    ),
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Number of draws for the confidence.")] = 5,
    tasks_per_agent: Annotated[
        float,
        typer.Option(
            "--tasks-per-agent", min=1.0, help="Tasks that each agent of a run does, one after the other."
        ),
    ] = 3.0,
    set_: Changes = None,
    jobs: Jobs = ALL_CORES,
    cluster: Cluster = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the fewest GPUs that keep an SLO, with free settings and with SideQuest; an interrupted plan resumes."""
    ask = Ask(
        scenario,
        tuple(parse_slo(text) for text in slo),
        Load(agents, load),
        gpus=tuple(name.strip() for name in gpus.split(",")) if gpus else (),
        prices=None if prices is None else read_prices(prices),
        changes=tuple(set_ or ()),
        ks=read_ks(ks),
        seeds=seeds,
        tasks_per_agent=tasks_per_agent,
    )
    with progress_bar("runs", quiet) as progress:
        found = run_plan(
            ask, output_dir, overwrite=overwrite, workers=Workers(jobs, cluster), progress=progress
        )
    write_text(output_dir / PAGE, any_page([output_dir]), overwrite=True)
    if as_json:
        print_json(found)
    else:
        _print(found, output_dir)
    if found["answer"] is None:
        raise typer.Exit(1)


def read_ks(text: str) -> tuple[int, ...]:
    """Read values of SideQuest's K from the command line."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise InputError(f"--k {text!r}: give turns of 1 or more, each once, such as --k 1,2,4")
    return found


def read_prices(path: Path) -> dict[str, float]:
    """Read a price table. InputError names file, line and fault."""
    try:
        document = parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give a YAML file of prices") from error
    if not isinstance(document.value, dict) or not document.value:
        raise InputError(f"{path}: prices are a mapping such as `h100-sxm: 2.5`")
    for gpu, price in document.value.items():
        if gpu not in HARDWARE:
            raise InputError(
                f"{document.place((gpu,))}: {show(gpu)}: there is no such GPU; choose some of {', '.join(HARDWARE)}"
            )
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise InputError(f"{document.place((gpu,))}: {gpu}: {show(price)} is no price; 0 or more an hour")
    return {str(gpu): float(price) for gpu, price in document.value.items()}


def _print(found: dict[str, Any], directory: Path) -> None:
    for line in found["sentences"]:
        print_line(line)
    columns = ["setting", "gpu", "GPUs", "on each", "breaks at", "runs out", "cost an hour", "95 % sure with"]
    rows = []
    for each in found["settings"]:
        sure = each["sure"]
        rows.append(
            [
                each["setting"] if each["deployable"] else f"({each['setting']})",
                each["gpu"],
                each["gpus"],
                each["share"],
                each["breaks_at"],
                (each["bottleneck"] or {}).get("name"),
                each["cost_per_h"],
                sure["replicas"] and sure["replicas"] * found["tensor_parallel"] if sure else None,
            ]
        )
    print_rows("", columns, rows)
    for line in of_plan(found["settings"]):
        print_line(f"- {line}")
    print_line(f"- SLO {', '.join(found['slo'])}, of one replica's run; (a bound in brackets is no choice)")
    print_line(f"- intervals from {found['uncertainty']}")
    print_evidence(found["evidence"])
    print_line(f"- {directory / 'plan.json'}; page: {directory / PAGE}")
