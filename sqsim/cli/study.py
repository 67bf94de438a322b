# SPDX-License-Identifier: Apache-2.0
"""`sqsim study`: run every point of a study's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sqsim.cli.output import (
    Overwrite,
    Quiet,
    print_line,
    progress_bar,
)
from sqsim.experiments.study import run_study


def study_command(
    study: Annotated[Path, typer.Argument(help="A study file (YAML): panels of scenarios.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Directory for study.json and the kept records.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = os.cpu_count() or 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run every point of a study; `sqsim report` turns it into a page."""
    with progress_bar("runs", quiet) as progress:
        path = run_study(study, output_dir, jobs=jobs, overwrite=overwrite, progress=progress)
    print_line(f"study: {path}")
