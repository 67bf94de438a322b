"""The `sqsim` command: parse, call, print. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 the run failed, 2 the input is wrong.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sqsim import __version__
from sqsim.cli_output import (
    Json,
    Overwrite,
    Quiet,
    print_json,
    print_pairs,
    print_rows,
    progress_bar,
    write_text,
)
from sqsim.cli_trace import app as trace_app
from sqsim.compare import compare
from sqsim.errors import RecordError, SqsimError
from sqsim.lockstep import replay
from sqsim.metrics import metrics
from sqsim.record import check_writable, read_record, write_record
from sqsim.report.page import build_page
from sqsim.scenario import load_scenario
from sqsim.simulate import simulate
from sqsim.study import run_study
from sqsim.support import support

app = typer.Typer(
    name="sqsim",
    help="What would this KV-eviction policy do to my agents on my GPU, and how sure are you?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(trace_app, name="trace")

_SHOWN = [
    "tasks_completed",
    "tasks_failed",
    "run_time_s",
    "output_tok_s",
    "total_tok_s",
    "kv_capacity_tokens",
    "kv_usage_peak",
    "kv_usage_mean",
    "peak_tokens_mean",
    "kv_reads_main_tokens",
    "evictions",
    "evicted_then_used",
    "aux_spawned",
    "aux_applied",
    "aux_late",
    "retractions",
    "ttft_s_p50",
    "ttft_s_p99",
    "tpot_s_p50",
    "tpot_s_p99",
    "task_s_p50",
    "task_s_p90",
]


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)  # noqa: T201 - a command's result
        raise typer.Exit


@app.command("run")
def run_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a key: engine.cache=session.")] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="Write the record here.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one scenario; print its metrics, write its record."""
    if output_dir is not None:
        check_writable(output_dir, overwrite)
    resolved = load_scenario(scenario, set_ or [])
    started = time.perf_counter()
    with progress_bar("tasks", quiet) as progress:
        record = simulate(resolved, progress)
    if output_dir is not None:
        write_record(record, output_dir, overwrite)
    found = {**metrics(record), "wall_s": time.perf_counter() - started}
    if as_json:
        print_json(found)
        return
    profile, capacity = record.run["profile"], record.run["kv_capacity"]
    title = f"{resolved.policy.name} / {resolved.engine.cache}, {resolved.model} on {resolved.engine.gpu}"
    print_pairs(title, [(name, found[name]) for name in _SHOWN if found.get(name) is not None])
    failures = [(name, value) for name, value in found.items() if name.startswith("failed_") and value]
    notes = [
        "simulated; the recorded trajectory is held fixed: an agent that loses a response might act differently",
        f"profile {profile['name']}: {profile['summary']}",
        f"KV capacity {capacity['tokens']} tokens, {capacity['how']}",
    ]
    if record.run["assumed"]:
        notes.append(f"assumed, not calibrated: {', '.join(record.run['assumed'])}")
    if record.run["references"].get("synthesised"):
        notes.append("references are synthesised: which responses are needed later is a guess")
    notes += [
        f"left the measured range in {steps} steps: {name}"
        for name, steps in record.run["out_of_range"].items()
    ]
    notes += [f"{value} tasks failed: {name.removeprefix('failed_')}" for name, value in failures]
    if output_dir is not None:
        notes.append(f"record: {output_dir}")
    print_rows("", ["notes"], [[note] for note in notes])


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
    print_rows("", ["study"], [[str(path)]])


@app.command("compare")
def compare_command(
    records: Annotated[
        list[Path], typer.Argument(help="Two or more record directories; the first is the base.")
    ],
    as_json: Json = False,
) -> None:
    """Put runs side by side: metrics, differences in per cent, accounting turn by turn."""
    if len(records) < 2:
        raise RecordError("compare needs at least two record directories; give the --output-dir of another run")
    found = compare([read_record(path) for path in records])
    if as_json:
        print_json(found.to_json())
        return
    names = [str(path) for path in records]
    for title, columns, rows in found.tables(names):
        print_rows(title, columns, rows)


@app.command("report")
def report_command(
    sources: Annotated[list[Path], typer.Argument(help="Record and study directories.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Make one self-contained HTML page."""
    write_text(output, build_page(sources), overwrite)
    print_rows("", ["report"], [[str(output)]])


@app.command("support")
def support_command(as_json: Json = False) -> None:
    """Which models and GPUs are covered, and by what evidence."""
    rows = support()
    if as_json:
        print_json(rows)
        return
    print_rows("", list(rows[0]), [list(row.values()) for row in rows])


@app.command("lockstep")
def lockstep_command(
    recordings: Annotated[
        list[Path], typer.Argument(help="Directories with server.json, workload.json, steps.jsonl.gz.")
    ],
    as_json: Json = False,
) -> None:
    """Hold the simulated scheduler against recorded schedules of a real SGLang, batch by batch (law 11).

    Exit code 1 when anything differs.
    """
    reports = [(path, replay(path)) for path in recordings]
    if as_json:
        print_json([{"recording": str(path), **report.to_json()} for path, report in reports])
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
                print_rows(str(path), ["difference"], [[str(difference)]])
    if any(report.differences for _, report in reports):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; every error of ours is one line on stderr and an exit code."""
    try:
        app()
    except SqsimError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's error
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)  # noqa: T201 - a command's error
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
