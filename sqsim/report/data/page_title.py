# SPDX-License-Identifier: Apache-2.0
"""Title of a page, and the questions that plain records answer."""

from __future__ import annotations

from pathlib import PurePosixPath

from sqsim.report.data.measures import counted, joined
from sqsim.report.data.sources import Sources
from sqsim.report.sections.measured import TITLE as MEASURED_TITLE


def questions_of(sources: Sources) -> list[str]:
    """State the question that plain records answer, one sentence for each kind of run."""
    questions: dict[str, None] = {}
    panels = sources.panels
    for each in sources.measured:
        questions[f"How far is the simulation of {each.what} from the measurement on a real server?"] = None
    # Where runs are compared, two panels are the measured and the simulated ones.
    if len(panels) > (2 if sources.measured else 1):
        questions[
            "How fast are these runs, and how much memory do they use? They differ in their traces, tasks, model, GPU or kind of load, "
            f"so they are shown in {len(panels)} panels: runs of different panels cannot be compared, and no change is computed between them."
        ] = None
    for panel, point, record in sources.records if len(panels) == 1 else ():
        names = panel.variants
        policies = f" Compared: {', '.join(names)}." if len(names) > 1 else ""
        scenario = record.run.get("scenario") or {}
        traces = ", ".join(PurePosixPath(str(one.get("path"))).name for one in record.run.get("traces") or [])
        gpu = (scenario.get("engine") or {}).get("gpu", "a GPU")
        load = "under the given load" if point.concurrency is None else f"{point.concurrency} at a time"
        tasks = record.tasks.num_rows
        questions[
            f"How {'does' if tasks == 1 else 'do'} {counted(tasks, 'task')} of {traces or 'a trace'} run on {scenario.get('model', 'a model')} and {gpu}, "
            f"{load}: how fast, and with how much memory?{policies}"
        ] = None
    return list(questions) or ["What do these runs show?"]


def title(sources: Sources) -> str:
    """Title the page where no study names it."""
    names = sources.variants
    runs = sum(len(panel.points) for panel in sources.panels)
    if not names:
        return "An empty report"
    if only_measured(sources):
        return f"{MEASURED_TITLE}: {joined([each.what for each in sources.measured])}"
    if len(sources.panels) > 1:
        return f"{runs} runs in {len(sources.panels)} panels"
    if len(names) > 1:
        return " and ".join(names) + " compared" if len(names) == 2 else f"{len(names)} variants compared"
    return f"{names[0]}: one run" if runs == 1 else f"{names[0]}: {runs} runs"


def only_measured(sources: Sources) -> bool:
    """Whether the page only compares a simulation with its measurement: no panel has two settings."""
    settings = [
        {
            tuple((key, value) for key, value in point.labels.items() if key != "variant")
            for point in panel.points
        }
        for panel in sources.panels
    ]
    return bool(sources.measured) and all(len(each) == 1 for each in settings)
