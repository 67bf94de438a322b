"""What the page is about: the questions that plain records answer, and the page's title."""

from __future__ import annotations

from pathlib import PurePosixPath

from sqsim.report.data.measures import counted, joined
from sqsim.report.data.sources import Sources
from sqsim.report.sections.measured import TITLE as MEASURED_TITLE


def asked(sources: Sources) -> list[str]:
    """The question that plain records answer, from their scenarios; one sentence for each kind of run."""
    questions: dict[str, None] = {}
    panels = sources.panels
    for each in sources.measured:
        questions[f"How far is the simulation of {each.what} from what was measured on a real server?"] = None
    # Two panels with runs to hold against each other are those of what was measured and of what was simulated.
    if len(panels) > (2 if sources.measured else 1):
        questions[
            "How do these runs fare: how fast, and with how much memory? They differ in their traces, tasks, model, GPU or kind of load, "
            f"and stand in {len(panels)} panels: runs of different panels say nothing about each other, and no change is computed between them."
        ] = None
    for panel, point, record in sources.kept if len(panels) == 1 else ():
        names = panel.variants
        policies = f" Compared: {', '.join(names)}." if len(names) > 1 else ""
        scenario = record.run.get("scenario") or {}
        traces = ", ".join(PurePosixPath(str(one.get("path"))).name for one in record.run.get("traces") or [])
        gpu = (scenario.get("engine") or {}).get("gpu", "a GPU")
        load = "under the load as given" if point.concurrency is None else f"{point.concurrency} at a time"
        tasks = record.tasks.num_rows
        questions[
            f"How {'does' if tasks == 1 else 'do'} {counted(tasks, 'task')} of {traces or 'a trace'} fare on {scenario.get('model', 'a model')} and {gpu}, "
            f"{load}: how fast, and with how much memory?{policies}"
        ] = None
    return list(questions) or ["What do these runs show?"]


def title(sources: Sources) -> str:
    """The page's title, where no study gives it one."""
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
    """Whether the page holds a simulation against its measurement and compares nothing else: no panel has two settings."""
    settings = [
        {
            tuple((key, value) for key, value in point.labels.items() if key != "variant")
            for point in panel.points
        }
        for panel in sources.panels
    ]
    return bool(sources.measured) and all(len(each) == 1 for each in settings)
