# SPDX-License-Identifier: Apache-2.0
"""`sqsim compare`: runs side by side, rounded for reading; `--json` prints exact values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sqsim.base.other_words import other_words
from sqsim.cli.output import (
    Json,
    print_json,
    print_line,
    print_rows,
)
from sqsim.comparison.accounting import Accounting
from sqsim.comparison.measured import Measured, Timing
from sqsim.comparison.noise import RULE
from sqsim.comparison.pressure import TIMES, Bin
from sqsim.comparison.runs import Comparison, MetricRow, compare
from sqsim.comparison.verdicts import verdicts
from sqsim.record.files import read_record
from sqsim.record.metrics import Value

_NOT_COMPARED = {"simulated", "wall_s"}
"""Metrics of how a record was made, not of the run."""


def print_comparison(found: Comparison) -> None:
    """Print a comparison as tables and sentences."""
    for number, name in enumerate(found.runs, 1):
        print_line(f"{number}: {name}")
    for text in found.warnings:
        print_line(f"- {text}")
    for text, runs in found.rests_on.items():
        of = ", ".join(str(found.runs.index(run) + 1) for run in runs)
        print_line(f"- {text}" if len(runs) == len(found.runs) else f"- {of}: {text}")
    for run, why in found.timing_refused.items():
        print_line(f"- timing of {run} is not compared: {why}")
    _print_metrics(found)
    for account in found.accounting:
        _print_account(account)
    for each in found.measured:
        _print_measured(each)


def _print_metrics(found: Comparison) -> None:
    numbers = [str(n) for n in range(1, len(found.runs) + 1)]
    columns = [numbers[0], *(text for number in numbers[1:] for text in (number, "change %"))]
    print_rows(
        "metrics",
        ["metric", *columns],
        [[name, *_side_by_side(row)] for name, row in found.metrics.items() if name not in _NOT_COMPARED],
    )
    if found.differing:
        print_rows(
            "what differs", ["key", *numbers], [[key, *map(str, row)] for key, row in found.differing.items()]
        )
    missing = [[run, len(tasks), ", ".join(tasks[:5])] for run, tasks in found.missing_tasks.items() if tasks]
    if missing:
        print_rows("tasks that a run lacks", ["run", "tasks", "such as"], missing)


def _side_by_side(row: MetricRow) -> list[Value]:
    first, *others = zip(row.values, row.change_percent, strict=True)
    return [first[0], *(cell for pair in others for cell in pair)]


def _print_account(account: Accounting) -> None:
    print_line(f"token accounting of {account.run} against {account.base}")
    print_rows(
        "",
        ["table", "in both", "differ", "in one only", "differing columns"],
        [
            [
                *(name, table.rows, table.rows_differing, table.rows_in_one),
                ", ".join(f"{column} in {count}" for column, count in table.by_column.items() if count),
            ]
            for name, table in account.tables.items()
        ],
    )


def _print_measured(found: Measured) -> None:
    print_line(f"measured against simulated: {found.what}")
    print_line(f"  measured: {', '.join(found.real)}")
    print_line(f"  simulated: {found.simulated}")
    for text in (*verdicts(found), *found.unlike):
        print_line(f"- {text}")
    if found.timing is not None:
        _print_timing(found.timing)


def _print_timing(timing: Timing) -> None:
    rows = [
        [key, held.mean, held.sd, held.simulated, held.error_percent, held.error_sd, _judged(held.within)]
        for key, held in timing.metrics.items()
        if held.mean is not None or held.simulated is not None
    ]
    print_rows(
        f"timing; noise floor {timing.noise_floor}",
        ["metric", "measured, mean", "sd", "simulated", "error %", "error in sd", f"within {RULE}"],
        rows,
    )
    if timing.kv is not None:
        kv = timing.kv
        pairs = [("simulated against measured", kv.mean), ("measured among themselves", kv.between_measured)]
        print_rows(
            "KV usage curves: mean absolute distance, in % of capacity",
            ["", "over normalised time", "over seconds"],
            [[name, each.normalised, each.absolute] for name, each in pairs if each is not None],
        )
    print_rows(
        "errors by KV pressure: usage measured at a turn's submission; signed, in % of measured",
        ["usage", *(text for name in TIMES for text in (f"{name}: turns", "median", "p25", "p75"))],
        [[one.name, *_errors(one)] for one in timing.by_pressure],
    )


def _judged(within: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[within]


def _errors(one: Bin) -> Sequence[Value]:
    return [
        value
        for errors in (one.ttft, one.e2e, one.tpot)
        for value in (errors.turns, errors.median_percent, errors.p25_percent, errors.p75_percent)
    ]


def compare_command(
    records: Annotated[
        list[Path], typer.Argument(help="Two or more record directories; the first is the base.")
    ],
    allow_other_traces: Annotated[
        bool, typer.Option("--allow-other-traces", help="Compare runs of different traces too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put runs side by side: metrics, changes in percent, token accounting turn by turn.

    Real and simulated runs of one scenario are also compared with each other: signed errors, and the spread of repeated
    real runs as the noise floor.
    """
    found_records = [read_record(path, allow_incomplete=True) for path in records]
    with other_words({"pass allow_other_traces=True": "add --allow-other-traces"}):
        found = compare(
            *found_records,
            names=_own_names(records),
            directories=records,
            allow_other_traces=allow_other_traces,
        )
    if as_json:
        print_json(found.to_json())
    else:
        print_comparison(found)


def _own_names(directories: Sequence[Path]) -> list[str]:
    """Name runs by their directories; a directory that is given again gets a number."""
    names: list[str] = []
    for each in map(str, directories):
        times = sum(name == each or name.startswith(f"{each} (") for name in names)
        names.append(f"{each} ({times + 1})" if times else each)
    return names
