"""The `sqsim` command: parse, call, print. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 the run failed, 2 the input is wrong.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsim.cli.compare import print_comparison
from sqsim.cli.output import (
    Json,
    Overwrite,
    Quiet,
    Version,
    keys_to_set,
    print_json,
    print_line,
    print_rows,
    progress_bar,
    run_to_exit,
    write_text,
)
from sqsim.cli.plan import plan_command
from sqsim.cli.region import region_command
from sqsim.cli.run import print_run, require_completed
from sqsim.cli.schema import schema_command
from sqsim.cli.sweep import sweep_command
from sqsim.cli.trace import app as trace_app
from sqsim.comparison.runs import compare
from sqsim.errors import InputError
from sqsim.experiments.intervals import DRAWS, bands, check_draws, write_bands
from sqsim.experiments.study import run_study
from sqsim.fidelity.lockstep import replay
from sqsim.fidelity.support import support
from sqsim.models.cost.profile import profile_text
from sqsim.record.files import check_writable, read_record
from sqsim.record.metrics import metrics
from sqsim.report.pages.any_page import any_page
from sqsim.report.perfetto import perfetto
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate, simulate_to

app = typer.Typer(
    name="sqsim",
    help="What would this KV-eviction policy do to my agents on my GPU, and how sure are you?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(trace_app, name="trace")


@app.callback()
def _main(
    version: Version = False,
) -> None:
    pass


@app.command("run")
def run_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key: engine.cache=session.", autocompletion=keys_to_set),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="Write the record here.")] = None,
    with_bands: Annotated[
        bool, typer.Option("--bands", help="With an interval for every metric: many runs, on all cores.")
    ] = False,
    draws: Annotated[
        int, typer.Option("--draws", help="For --bands: profiles drawn, one less than a multiple of 20.")
    ] = DRAWS,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one scenario; print its metrics, write its record."""
    if output_dir is not None:
        check_writable(output_dir, overwrite)
    resolved = load_scenario(scenario, set_ or [])
    if with_bands:
        check_draws(draws)
    started = time.perf_counter()
    with progress_bar("tasks", quiet) as progress:
        if output_dir is None:
            record = simulate(resolved, progress)
        else:
            simulate_to(resolved, output_dir, overwrite=overwrite, progress=progress)
            record = read_record(output_dir)
    found = {**metrics(record), "wall_s": time.perf_counter() - started}
    sure = None
    if with_bands:
        with progress_bar("runs", quiet) as progress:
            sure = bands(resolved, draws=draws, jobs=os.cpu_count() or 1, progress=progress, value=found)
        if output_dir is not None:
            write_bands(output_dir, sure)
    if as_json:
        print_json(found if sure is None else {**found, "bands": sure.to_json()})
    else:
        print_run(record, found, output_dir, sure)
    require_completed(record, found)


@app.command("study")
def study_command(
    study: Annotated[Path, typer.Argument(help="A study file (YAML): panels of scenarios.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Write study.json and the kept records here.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = os.cpu_count() or 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run every point of a study; `sqsim report` turns it into a page."""
    with progress_bar("runs", quiet) as progress:
        path = run_study(study, output_dir, jobs=jobs, overwrite=overwrite, progress=progress)
    print_line(f"study: {path}")


app.command("sweep")(sweep_command)
app.command("plan")(plan_command)
app.command("region")(region_command)
app.command("schema")(schema_command)


@app.command("compare")
def compare_command(
    records: Annotated[
        list[Path], typer.Argument(help="Two or more record directories; the first is the base.")
    ],
    allow_other_traces: Annotated[
        bool, typer.Option("--allow-other-traces", help="Runs of different traces too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put runs side by side: metrics, differences in per cent, accounting turn by turn.

    Where real and simulated runs of one scenario are among them, these are held against each other: errors with their
    sign, and the spread of repeated real runs as the noise floor.
    """
    found = compare(
        *(read_record(path, allow_incomplete=True) for path in records),
        names=[str(path) for path in records],
        directories=records,
        allow_other_traces=allow_other_traces,
    )
    if as_json:
        print_json(found.to_json())
    else:
        print_comparison(found)


@app.command("report")
def report_command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Directories of runs and studies; or of one plan, one region, one sweep, or one directory above many runs."
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


@app.command("calibrate")
def calibrate_command(
    records: Annotated[
        list[Path], typer.Argument(help="Records of `sqreal run`, or files of benchmarks/gpu/serve.py.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The profile (YAML) to write.")],
    residuals: Annotated[
        Path | None, typer.Option("--residuals", help="A page (HTML) with every step against its prediction.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fit a cost profile to real runs; each run is also predicted by a fit to the others."""
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
    print_line(f"- {found.steps} steps; {found.outliers} left out, which took over 8 times what was predicted")
    print_line(
        f"- a whole run differs from its prediction by a further {found.spread:.1%} (standard deviation)"
    )
    print_line(f"profile: {output}")


@app.command("support")
def support_command(as_json: Json = False) -> None:
    """Which models and GPUs are covered, and by what evidence a prediction would rest."""
    rows = support()
    if as_json:
        print_json(rows)
        return
    columns = ["model", "gpu", "profile", "measured", "not measured", "kv tokens", "also"]
    print_rows("", columns, [_covered(row) for row in rows if not row["model"].startswith("tiny-")])
    print_line("Sources, ranges, fit errors, and the tiny models for tests: --json")


def _covered(row: dict[str, Any]) -> list[Any]:
    kinds: dict[str, list[str]] = {}
    for term, kind in row["evidence"].items():
        kinds.setdefault(kind, []).append(term)
    measured = ", ".join(kinds.pop("measured", []))
    rest = "; ".join(f"{kind}: {', '.join(terms)}" for kind, terms in kinds.items())
    capacity = row["kv_capacity_tokens"] if row["kv_capacity_tokens"] is not None else "does not fit"
    return [
        row["model"],
        row["gpu"],
        row["profile"],
        measured or "-",
        rest,
        capacity,
        ", ".join(row["other_profiles"]),
    ]


def _below(path: Path) -> list[Path]:
    """The recordings in a directory or in the directories below it."""
    return [log.parent for log in path.rglob("steps.jsonl.gz")]


@app.command("lockstep")
def lockstep_command(
    recordings: Annotated[list[Path], typer.Argument(help="Recordings, or directories that hold some.")],
    as_json: Json = False,
) -> None:
    """Hold the simulated scheduler against recorded schedules of a real SGLang, batch by batch (law 11).

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


def main() -> None:
    """Run the command line; every error is one line on stderr and an exit code."""
    run_to_exit(app)
