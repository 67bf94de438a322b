# SPDX-License-Identifier: Apache-2.0
"""`sqsim sweep`: run a scenario at every point of a grid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sqsim.base.workers import Workers
from sqsim.cli.output import (
    Changes,
    Json,
    Quiet,
    print_evidence,
    print_json,
    print_line,
    print_rows,
    progress_bar,
)
from sqsim.experiments.grid import parse_axis, written
from sqsim.experiments.sweep import Sweep, read_sweep, run_sweep

_SHOWN = ("output_tok_s", "run_time_s", "kv_usage_peak", "task_s_p90", "ttft_s_p99", "evicted_then_used")

ALL_CORES = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", help="Run on Ray: `local`, or a cluster's address (needs sqsim\\[cluster])."),
]


def sweep_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Directory for the points; finished points are not run again.")
    ],
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid", help="A key and its values: load.concurrency=8,16 or =8..64+8 or =8..256*2; may repeat."
        ),
    ],
    set_: Changes = None,
    records: Annotated[
        bool, typer.Option("--records", help="Keep each point's whole record, not only its metrics.")
    ] = False,
    jobs: Jobs = ALL_CORES,
    cluster: Cluster = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Run finished points again.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario at every point of a grid; a finished point never runs twice.

    If a point fails, the others still run, and the exit code is 1.
    """
    axes = [parse_axis(text) for text in grid]
    with progress_bar("points", quiet) as progress:
        found = run_sweep(
            scenario,
            axes,
            output_dir,
            changes=set_ or [],
            records=records,
            overwrite=overwrite,
            workers=Workers(jobs, cluster),
            progress=progress,
        )
    if as_json:
        print_json(read_sweep(output_dir))
    else:
        _print(found, output_dir)
    if found.failed:
        raise typer.Exit(1)


def _print(found: Sweep, directory: Path) -> None:
    keys = list(found.points[0].values)
    done = [point for point in found.points if point.metrics is not None]
    rows = [
        [*(written(point.values[key]) for key in keys), *((point.metrics or {}).get(name) for name in _SHOWN)]
        for point in done
    ]
    print_rows("", [*keys, *_SHOWN], rows)
    for point in found.failed:
        at = ", ".join(f"{key}={written(value)}" for key, value in point.values.items())
        print_line(f"- failed: {at}: {point.error}")
    print_evidence([point.evidence for point in done if point.evidence is not None])
    print_line(f"- {len(done)} of {len(found.points)} points done, {found.resumed} of them before")
    print_line(
        f"- {directory / 'sweep.parquet'}, sweep.csv and sweep.json; page: sqsim report {directory} -o sweep.html"
    )
