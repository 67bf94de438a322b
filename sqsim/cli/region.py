# SPDX-License-Identifier: Apache-2.0
"""`sqsim region`: find the loads at which SideQuest pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
)
from sqsim.cli.plan import read_ks
from sqsim.cli.sweep import ALL_CORES, Cluster, Jobs
from sqsim.errors import InputError
from sqsim.experiments.grid import parse_axis
from sqsim.experiments.plan.not_run import of_region
from sqsim.experiments.plan.region import run_region
from sqsim.experiments.plan.settings import KS
from sqsim.scenario.labels import evicted_then_used_note


def region_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML); its load and policy are replaced.")],
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Directory for region.json and its runs.")],
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Tasks at a time: 8,16,32 or 8..128*2.")
    ] = "8..64*2",
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="Another key to vary: max_turns=8,16 or traces=a,b; may repeat."),
    ] = None,
    ks: Annotated[str, typer.Option("--k", help="Values of SideQuest's K, in turns.")] = ",".join(map(str, KS)),
    set_: Changes = None,
    jobs: Jobs = ALL_CORES,
    cluster: Cluster = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find where SideQuest pays: its gain over none and over the best free rival, and where aux threads cost more than they save."""
    (concurrencies,) = zip(*parse_axis(f"load.concurrency={concurrency}").values, strict=True)
    if not all(isinstance(each, int) and each > 0 for each in concurrencies):
        raise InputError(f"--concurrency {concurrency!r}: give whole numbers of 1 or more")
    with progress_bar("runs", quiet) as progress:
        found = run_region(
            scenario,
            concurrencies,
            [parse_axis(text) for text in grid or ()],
            output_dir,
            changes=set_ or (),
            ks=read_ks(ks),
            overwrite=overwrite,
            workers=Workers(jobs, cluster),
            progress=progress,
        )
    if as_json:
        print_json(found)
    else:
        _print(found, output_dir)


def _print(found: dict[str, Any], directory: Path) -> None:
    rows = [
        [
            place["concurrency"],
            ", ".join(f"{key}={value}" for key, value in place["values"].items()) or "-",
            (place["best_free"] or "-") + evicted_then_used_note(place["best_free_harm"]),
            best["setting"],
            best["against_none"] * 100,
            None if best["against_free"] is None else best["against_free"] * 100,
            best["evicted_then_used"],
        ]
        for place in found["places"]
        if (best := max(_known(place), key=lambda each: float(each["against_none"]), default=None)) is not None
    ]
    columns = ["at a time", "with", "best free", "best sidequest", "% over none", "% over best free"]
    print_rows("", [*columns, "evicted, needed later"], rows)
    for reason in of_region(found["places"]):
        print_line(f"- {reason}")
    for line in found["crossings"]:
        over = "none" if line["rival"] == "against_none" else "the best free setting"
        where = f"from {line['from']:.3g} at a time on" if line["pays"] == "from" else line["pays"]
        values = ", ".join(f"{key}={value}" for key, value in line["values"].items())
        print_line(f"- {line['setting']}{values and f' with {values}'} pays over {over}: {where}")
    print_evidence(found["evidence"])
    print_line(f"- {directory / 'region.json'}; page: sqsim report {directory} -o region.html")


def _known(place: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in place["sidequest"] if each["against_none"] is not None]
