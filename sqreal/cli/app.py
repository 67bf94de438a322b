# SPDX-License-Identifier: Apache-2.0
"""The `sqreal` command: run `sqsim`'s scenarios on a real SGLang. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 interrupted. A run that fails keeps its measurements:
its record is marked incomplete.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqreal.cli.progress import starting
from sqreal.cli.serve import serve_command
from sqreal.setup.install import require_client
from sqsim.cli.output import (
    Changes,
    Json,
    Overwrite,
    Quiet,
    Version,
    print_json,
    print_line,
    print_rows,
    progress_bar,
    write_text,
)
from sqsim.cli.run import print_run, require_completed
from sqsim.errors import InputError, RunError
from sqsim.fidelity.recording import SCHEDULE
from sqsim.record.files import check_writable, write_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from sqreal.replay.replay import Replay

_SCHEDULE_TOKENS = 20_000_000
"""Most prompt tokens of a schedule, which holds every prompt as text; beyond that it is left out."""

app = typer.Typer(
    name="sqreal",
    help="Run sqsim's scenarios on a real SGLang, to compare with their simulation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class InterruptedRunError(RunError):
    """The user ended the run; its measurements are kept."""

    exit_code = 130


@app.callback()
def _main(
    version: Version = False,
) -> None:
    pass


@app.command("run")
def run_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    set_: Changes = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="Write the record here.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Use this running server instead of starting one.")
    ] = None,
    step_log: Annotated[
        Path | None,
        typer.Option("--step-log", help="With --url: the file that the server's SQREAL_STEP_LOG names."),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale", min=0, help="Multiply the waits for tools, users and arrivals by this; for tests."
        ),
    ] = 1.0,
    await_aux: Annotated[
        bool,
        typer.Option(
            "--await-aux",
            help="Let main steps wait for the aux thread beside them, so that none is late: the accounting must then equal the "
            "simulation's (docs/LAWS.md, law 10); times mean nothing.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one scenario on a server; print its metrics, write its record."""
    if output_dir is not None:
        check_writable(output_dir, overwrite)
    if step_log is not None and url is None:
        raise InputError("--step-log: a server that sqreal starts has its own; give it with --url only")
    resolved = load_scenario(scenario, set_ or [])
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sqreal-") as work:
        run = _measure(resolved, Path(work), url, step_log, time_scale, quiet, await_aux=await_aux)
        if output_dir is not None:
            write_record(run.record, output_dir, overwrite)
            if run.complete:
                _write_schedule(run, output_dir / SCHEDULE)
    kept = (
        f"the measurements up to then are in {output_dir}, marked incomplete"
        if output_dir
        else "nothing was written"
    )
    if run.interrupted:
        raise InterruptedRunError(f"interrupted; {kept}")
    if run.error is not None:
        raise RunError(f"{run.error}\n{kept}") from run.error
    found = {**metrics(run.record), "wall_s": time.perf_counter() - started}
    if as_json:
        print_json(found)
    else:
        print_run(run.record, found, output_dir)
    require_completed(run.record, found)


def _measure(
    scenario: Scenario,
    work: Path,
    url: str | None,
    step_log: Path | None,
    time_scale: float,
    quiet: bool,
    *,
    await_aux: bool,
) -> Replay:
    """Run the scenario; a server started for it has ended when this returns."""
    require_client()
    from sqreal.replay.replay import Replay  # noqa: PLC0415
    from sqreal.server import server as servers  # noqa: PLC0415 - the other commands do without httpx

    with ExitStack() as stack:
        if url is not None:
            server = stack.enter_context(servers.attach(url))
        else:
            options, step_log = servers.options_of(scenario, work), work / "steps.jsonl"
            with starting(quiet) as waiting:
                server = stack.enter_context(
                    servers.start(options, force_tokens=True, step_log=step_log, progress=waiting)
                )
        run = Replay(scenario, server, time_scale=time_scale, step_log=step_log, await_aux=await_aux)
        with progress_bar("tasks", quiet) as progress:
            run.run(progress)
        return run


def _write_schedule(run: Replay, directory: Path) -> None:
    """Add the recorded schedule to a record, whole or not at all."""
    if not run.has_step_log or run.prompt_tokens > _SCHEDULE_TOKENS:
        return
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        run.write_schedule(partial)
        partial.rename(directory)
    except OSError as error:
        raise RunError(
            f"{directory}: cannot be written: {error.strerror}; the record next to it is complete"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """Report what of the real side is installed, what this machine can run, and the command that installs the rest.

    Exit code 1 when something is missing.
    """
    from sqreal.setup.doctor import examine  # noqa: PLC0415

    found = examine()
    if as_json:
        print_json(found.to_json())
    else:
        rows = [[check.name, check.found, check.problem or "fine"] for check in found.checks]
        print_rows("", ["what", "found", "verdict"], rows)
        for what in found.possible:
            print_line(f"- possible here: {what}")
        print_line("- everything is in place" if found.fix is None else f"- to fix it: {found.fix}")
    if not found.ok:
        raise typer.Exit(1)


@app.command("scenario")
def scenario_command(
    url: Annotated[str, typer.Option("--from", help="A running server.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The scenario file to write.")],
    traces: Annotated[
        str | None, typer.Option("--traces", help="The traces that the scenario names, relative to the file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model known to sqsim, or a config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="A GPU that `sqsim support` lists.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a scenario with a running server's own model, capacity, page size and limits."""
    require_client()
    from sqreal.server.scenario_from import TRACES, scenario_text  # noqa: PLC0415
    from sqreal.server.server import attach  # noqa: PLC0415

    with attach(url) as server:
        text = scenario_text(server.info, server.url, traces=traces or TRACES, model=model, gpu=gpu)
    write_text(output, text, overwrite)
    print_line(f"scenario: {output}")


@app.command("tiny-model")
def tiny_model_command(
    name: Annotated[str, typer.Argument(help="tiny-llama, tiny-qwen3 or tiny-gpt-oss.")],
    directory: Annotated[Path, typer.Argument(help="The model's directory.")],
) -> None:
    """Write the config.json of a model small enough for a CPU; its weights are random."""
    from sqreal.setup.tiny_models import write_tiny_model  # noqa: PLC0415

    print_line(f"model: {write_tiny_model(name, directory)}")


app.command("serve")(serve_command)
