# SPDX-License-Identifier: Apache-2.0
"""`sqsim calibrate`: a cost profile fitted to real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsim.cli.output import (
    Json,
    Overwrite,
    print_json,
    print_line,
    print_rows,
    write_text,
)
from sqsim.models.cost.profile import profile_text


def calibrate_command(
    records: Annotated[
        list[Path],
        typer.Argument(help="Record directories of `sqreal run`, or files of benchmarks/gpu/serve.py."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The profile (YAML) to write.")],
    residuals: Annotated[
        Path | None,
        typer.Option("--residuals", help="Write a page (HTML) that plots every step over its prediction."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fit a cost profile to real runs, and predict each run by a fit to the others."""
    from sqsim.fidelity.calibrate import calibrate  # noqa: PLC0415 - the other commands do without scipy
    from sqsim.report.pages.residuals import residual_page  # noqa: PLC0415 - the same

    found = calibrate(records, output.stem)
    write_text(output, profile_text(found.profile, "`sqsim calibrate`"), overwrite)
    if residuals is not None:
        page = residual_page(f"Residuals of {output.stem}", found.residuals, found.held_out)
        write_text(residuals, page, overwrite)
    if as_json:
        print_json(found.to_json())
        return
    print_rows(
        "",
        ["a second for every", "value", "standard error"],
        [[name, value, found.standard_errors[name]] for name, value in found.coefficients.items()],
    )
    columns = [
        "run, predicted by the others",
        "steps",
        "measured s",
        "error of the sum",
        "mean error of a step",
    ]
    print_rows(
        "",
        columns,
        [
            [each.run, each.steps, each.measured_s, f"{each.total_error:+.1%}", f"{each.mean_abs_error:.1%}"]
            for each in found.held_out
        ],
    )
    print_line(f"- {found.steps} steps; {found.outliers} left out, which took over 8 times their prediction")
    print_line(
        f"- a whole run differs from its prediction by a further {found.spread:.1%} (standard deviation)"
    )
    print_line(f"profile: {output}")
