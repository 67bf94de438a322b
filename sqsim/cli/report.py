# SPDX-License-Identifier: Apache-2.0
"""`sqsim report`: make one HTML page of runs, a study, a plan, a region or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsim.cli.output import (
    Overwrite,
    print_line,
    write_text,
)
from sqsim.errors import InputError
from sqsim.record.files import read_record
from sqsim.report.pages.any_page import any_page
from sqsim.report.perfetto import perfetto


def report_command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Directories of runs and studies; or one directory of a plan, of a region, of a sweep, or above many runs."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")],
    as_perfetto: Annotated[
        bool, typer.Option("--perfetto", help="Write one run's timeline (Chrome trace JSON) instead.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make one self-contained HTML page."""
    if as_perfetto and len(sources) != 1:
        raise InputError(f"report --perfetto: {len(sources)} directories given; give that of one run")
    text = perfetto(read_record(sources[0], allow_incomplete=True)) if as_perfetto else any_page(sources)
    write_text(output, text, overwrite)
    print_line(f"report: {output}")
