# SPDX-License-Identifier: Apache-2.0
"""`sqsim trace`: import, export, anonymise, synth, stats, validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsim.cli.output import Json, Overwrite, Quiet, print_json, print_pairs, print_rows, progress_bar
from sqsim.trace.anonymise import anonymised
from sqsim.trace.exports import EXPORTERS, check_place, export, exporter
from sqsim.trace.files import check_free
from sqsim.trace.importing import Import
from sqsim.trace.statistics import statistics
from sqsim.trace.store import read_tasks, write_tasks
from sqsim.trace.synthesis import synthesise

app = typer.Typer(
    help="Recorded agent runs: import, export, anonymise, synth, stats, validate.", no_args_is_help=True
)

Output = Annotated[
    Path, typer.Option("-o", "--output", help="The file to write; a name that ends in .zst is compressed.")
]
BlockTokens = Annotated[
    int | None,
    typer.Option(
        "--block-tokens", help="Tokens that a hash id stands for; the format's own, or what the file shows."
    ),
]
File = Annotated[Path, typer.Argument(help="An sqtrace file, or any file that `import` reads.")]


@app.command("import")
def import_command(
    paths: Annotated[list[Path], typer.Argument(help="Recorded runs: files, or directories of them.")],
    output: Output,
    format_: Annotated[str, typer.Option("--format", help="auto, or the name of a format.")] = "auto",
    references: Annotated[
        str, typer.Option(help="synthesise (make up references that are not recorded), or none.")
    ] = "synthesise",
    timing: Annotated[
        str, typer.Option(help="synthesise (make up tool latencies that are not recorded), or none.")
    ] = "synthesise",
    tokens: Annotated[
        str,
        typer.Option(
            help="recorded, model (texts are counted again as o200k cuts them), or scale=X (all times X)."
        ),
    ] = "recorded",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all synthesised values.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a file that cannot be read, instead of skipping it.")
    ] = False,
    block_tokens: BlockTokens = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn recorded runs of another format into sqtrace/1, and report what data they carry."""
    check_free(output, overwrite)
    with progress_bar("files", quiet) as progress:
        made = Import(
            paths,
            format_,
            progress=progress,
            references=references,
            timing=timing,
            tokens=tokens,
            seed=seed,
            strict=strict,
            block_tokens=block_tokens,
        )
        number = write_tasks(output, made)
    report = made.report
    if as_json:
        print_json(
            {
                "tasks": number,
                "output": str(output),
                "evidence": [each._asdict() for each in report.evidence],
                "carries": report.carries,
                "usage": report.usage,
                "references": report.references,
                "warnings": report.warnings,
                "left_out": [each._asdict() for each in report.left_out],
            }
        )
        return
    print_rows("", ["file", "read as"], [[each.path, each.text] for each in report.evidence])
    kinds = [
        [kind, ", ".join(f"{how} ({tasks} tasks)" for how, tasks in by.items())]
        for kind, by in report.carries.items()
    ]
    if report.usage is not None:
        kinds.append(["token counts", report.usage])
    if report.references:
        found = ", ".join(f"{kind} {number}" for kind, number in report.references.items())
        kinds.append(["references by evidence", found])
    print_rows("", ["what", "how it came by it"], kinds)
    if report.left_out:
        print_rows("", ["left out", "why"], [[each.path, each.reason] for each in report.left_out])
    if report.warnings:
        print_rows("", ["warning", "times"], [[text, times] for text, times in report.warnings.items()])
    print_pairs("", [("tasks", number), ("written to", str(output))])


@app.command("export")
def export_command(
    file: File,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The file to write (.zst: compressed); for weka_trace, the directory."
        ),
    ],
    to: Annotated[str, typer.Option("--to", help=f"The format: {', '.join(EXPORTERS)}.")] = "mooncake",
    block_tokens: BlockTokens = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a trace in another tool's format, and name what the format cannot say."""
    check_place(output, exporter(to, block_tokens), overwrite)
    written = export(read_tasks(file), output, to, block_tokens, overwrite=overwrite)
    if as_json:
        print_json({**written._asdict(), "output": str(output)})
        return
    print_pairs("", [("tasks", written.tasks), ("lines", written.lines), ("written to", str(output))])
    for title, counts in (("what the format cannot say", written.lost), ("assumed", written.assumed)):
        if counts:
            print_rows("", [title, "times"], [[text, times] for text, times in counts.items()])


@app.command("anonymise")
def anonymise_command(file: File, output: Output, overwrite: Overwrite = False) -> None:
    """Write a trace without texts and names: structure, token counts, times and references stay."""
    check_free(output, overwrite)
    number = write_tasks(output, anonymised(read_tasks(file)))
    print_pairs("", [("tasks", number), ("written to", str(output))])


@app.command("synth")
def synth_command(
    output: Output,
    profile: Annotated[str, typer.Option(help="The kind of agent: frames, browsecomp or coding.")] = "frames",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 424,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    scale: Annotated[float, typer.Option(min=1e-6, help="Factor for every token count.")] = 1.0,
    overwrite: Overwrite = False,
) -> None:
    """Make a synthetic trace; traces/README.md states the data that it is modelled on."""
    check_free(output, overwrite)
    made = synthesise(profile, tasks, seed, scale)
    number = write_tasks(output, made)
    print_pairs("", [("tasks", number), ("written to", str(output))])


@app.command("stats")
def stats_command(file: File, as_json: Json = False) -> None:
    """Print a trace's sizes, latencies and references, and the tokens that an oracle could save."""
    found = statistics(read_tasks(file))
    if as_json:
        print_json(found)
        return
    print_pairs(str(file), list(found.items()))


@app.command("validate")
def validate_command(file: File, as_json: Json = False) -> None:
    """Read a trace to its end, and report the first fault with file, line and field."""
    number = sum(1 for _ in read_tasks(file))
    if as_json:
        print_json({"file": str(file), "tasks": number, "valid": True})
        return
    print_pairs("", [("file", str(file)), ("tasks", number), ("valid", "yes")])
