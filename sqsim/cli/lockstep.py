# SPDX-License-Identifier: Apache-2.0
"""`sqsim lockstep`: compare the simulated scheduler with recorded schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsim.cli.output import (
    Json,
    print_json,
    print_line,
    print_rows,
)
from sqsim.fidelity.lockstep import replay


def _below(path: Path) -> list[Path]:
    """List the recordings in a directory and in the directories below it."""
    return [log.parent for log in path.rglob("steps.jsonl.gz")]


def lockstep_command(
    recordings: Annotated[list[Path], typer.Argument(help="Recordings, or directories of recordings.")],
    as_json: Json = False,
) -> None:
    """Compare the simulated scheduler with recorded schedules of a real SGLang, batch by batch (law 11).

    Exit code 1 when anything differs.
    """
    found = [recording for path in recordings for recording in (sorted(_below(path)) or [path])]
    reports = [(path, replay(path)) for path in found]
    if as_json:
        print_json([report.to_json() for path, report in reports])
    else:
        columns = ["recording", "rounds", "batches", "evicted leaves", "retractions", "differences"]
        print_rows(
            "",
            columns,
            [
                [
                    str(path),
                    report.rounds,
                    report.batches,
                    report.evicted_leaves,
                    report.retractions,
                    len(report.differences),
                ]
                for path, report in reports
            ],
        )
        for path, report in reports:
            for difference in report.differences[:8]:
                print_line(f"{path}: {difference}")
    if any(report.differences for _, report in reports):
        raise typer.Exit(1)
