# SPDX-License-Identifier: Apache-2.0
"""Page of a directory of runs: its contents, and the few numbers that tell runs apart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sqsim.errors import RecordError
from sqsim.record.files import is_record, read_record
from sqsim.record.metrics import metrics
from sqsim.report.data.labels import labels_of, variant_of
from sqsim.report.data.measures import FAILED, KV_PEAK, OUTPUT_TOK_S, RUN_TIME, TASK_P90, TTFT_P99
from sqsim.report.html.markup import escape, paragraph, section, table, value_cell, warning
from sqsim.report.pages.html_shell import contents, html_shell, listed

_MEASURES = (OUTPUT_TOK_S, RUN_TIME, TASK_P90, TTFT_P99, KV_PEAK, FAILED)
_OTHERS = {"study.json": "study", "sweep.json": "sweep", "plan.json": "plan", "region.json": "region"}


def runs_below(directory: Path) -> list[Path]:
    """Find the records below a directory, by name."""
    return sorted(
        Path(place) for place, _, names in os.walk(directory) if "run.json" in names and is_record(place)
    )


def index_page(directory: Path) -> str:
    """Build the page of all records, studies, sweeps and plans below a directory. RecordError: there is none."""
    runs = runs_below(directory)
    others = sorted(path for name in _OTHERS for path in directory.rglob(name))
    if not runs and not others:
        raise RecordError(
            f"{directory}: holds no run, study, sweep or plan; give the --output-dir of one, or a directory that contains some"
        )
    troubles: list[str] = []
    rows = [row for path in runs if (row := _row(directory, path, troubles)) is not None]
    head = ["Run", "Policy", "Model", "GPU", "Load", "Seed", *(each.title for each in _MEASURES)]
    listing = table([escape(cell) for cell in head], rows, "Runs below this directory") if rows else ""
    found = [
        f"{_OTHERS[path.name]}: {path.parent.relative_to(directory).as_posix()} (page: sqsim report {path.parent} -o FILE)"
        for path in others
    ]
    parts = [
        (
            "runs",
            "Runs",
            (listing or paragraph("There is no single run here.")) + "".join(map(warning, troubles)),
        )
    ]
    if found:
        parts.append(("others", "Studies, sweeps and plans", listed("found", found)))
    answered = section("answer", "What is here", paragraph(f"{len(rows)} runs and {len(found)} others."))
    links = contents([("answer", "What is here"), *((ident, title) for ident, title, _ in parts)])
    sections: Sequence[str] = [section(ident, title, content) for ident, title, content in parts]
    return html_shell(f"Runs in {directory.name or directory}", "\n".join([answered, links, *sections]))


def _row(directory: Path, path: Path, troubles: list[str]) -> list[str] | None:
    name = path.relative_to(directory).as_posix()
    try:
        record = read_record(path, allow_incomplete=True)
    except RecordError as error:
        troubles.append(f"{name}: {error}")
        return None
    scenario, found = record.run["scenario"], metrics(record)
    load = ", ".join(f"{key} {value}" for key, value in scenario["load"].items())
    kind = "" if record.run["kind"] == "simulated" else " (measured)"
    return [
        escape(name),
        escape(variant_of(labels_of(record.run)) + kind),
        escape(scenario["model"]),
        escape(scenario["engine"]["gpu"]),
        escape(load),
        value_cell(scenario["seed"]),
        *(value_cell(found.get(each.key)) for each in _MEASURES),
    ]
