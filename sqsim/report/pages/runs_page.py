# SPDX-License-Identifier: Apache-2.0
"""Page of runs and studies, as one self-contained HTML text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sqsim.errors import InputError
from sqsim.report.data import published
from sqsim.report.data.loading import load
from sqsim.report.data.page_title import only_measured, questions_of, title
from sqsim.report.data.palette import Palette
from sqsim.report.data.sources import Panel, Sources
from sqsim.report.html.markup import badged, escape, missing, paragraph, section, unbroken, warning
from sqsim.report.pages.html_shell import contents, html_shell, listed
from sqsim.report.sections.answer import Answer, answer
from sqsim.report.sections.concurrency import curves
from sqsim.report.sections.distributions import distributions
from sqsim.report.sections.evictions import audit
from sqsim.report.sections.evidence import evidence
from sqsim.report.sections.failures import failures
from sqsim.report.sections.glossary import glossary
from sqsim.report.sections.intervals import IDENT as INTERVALS
from sqsim.report.sections.intervals import TITLE as INTERVALS_TITLE
from sqsim.report.sections.intervals import intervals
from sqsim.report.sections.k_sweep import k_sweep
from sqsim.report.sections.measured import IDENT as MEASURED
from sqsim.report.sections.measured import TITLE as MEASURED_TITLE
from sqsim.report.sections.measured import held_against_measured, measured, summary
from sqsim.report.sections.memory import over_time
from sqsim.report.sections.provenance import provenance
from sqsim.report.sections.recall_sweep import recall_sweep
from sqsim.report.sections.side_by_side import compare
from sqsim.report.sections.timelines import timelines

MAX_BYTES = 8_000_000


class _Detail(NamedTuple):
    """Level of detail: pieces of time in the KV figures, rows of an audit table."""

    pieces: int
    audit_rows: int


_DETAILS = (_Detail(500, 400), _Detail(250, 200), _Detail(120, 100), _Detail(60, 50), _Detail(30, 20))


def _note(panel: Panel, said: Sequence[str]) -> str:
    parts = [f"<p>{badged(panel.note)}</p>" if panel.note else ""]
    parts.append(f'<p class="evidence">Evidence: {badged(panel.evidence)}</p>' if panel.evidence else "")
    parts += map(warning, panel.warnings)
    parts.append(listed("found", said))
    return "".join(parts)


def _panel(panel: Panel, sources: Sources, palette: Palette, said: Sequence[str]) -> str:
    others = [other for other in sources.panels if other is not panel]
    with_published = published.applies(panel)
    opened = panel is sources.panels[0]
    match panel.kind:
        case "k_sweep":
            content = k_sweep(panel, others, palette)
        case "recall_sweep":
            content = recall_sweep(panel, others, palette)
        case "concurrency":
            side = f"<h3>Policies side by side</h3>{compare(panel, palette, with_published, opened)}"
            content = curves(panel, palette, with_published) + failures(panel) + side
        case _:
            content = failures(panel) + compare(panel, palette, with_published, opened)
    return section(panel.ident, panel.title, _note(panel, said), content)


def _first_record(sources: Sources) -> int:
    """Choose the record shown first: one with in-place evictions by aux threads, which shows most, else the first."""

    def shows(place: int) -> tuple[bool, bool, bool]:
        _, point, record = sources.records[place]
        evicts = record.evictions.num_rows > 0
        return evicts, record.aux.num_rows > 0, evicts and point.labels.get("after_eviction") == "in_place"

    return max(range(len(sources.records)), key=shows, default=0)


def _absent(sources: Sources) -> str:
    """List what these sources lack for a full page, and how to get it."""
    lines = []
    nothing = all(point.policy == "none" for panel in sources.panels for point in panel.points)
    if not sources.panel("concurrency"):
        lines.append(
            missing(
                "Curves against the number of tasks at a time need several runs: report the directories of several N together.",
                "sqsim run SCENARIO --set load.concurrency=N --output-dir DIR_N",
            )
        )
    if len(sources.variants) < 2:
        lines.append(
            missing(
                "A comparison of policies needs another run of the same scenario: report both directories together.",
                f"sqsim run SCENARIO --set policy.name={'sidequest' if nothing else 'none'} --output-dir DIR",
            )
        )
    asks = any(point.labels.get("k") is not None for panel in sources.panels for point in panel.points)
    for kind, name, values in (
        ("k_sweep", "K sweep", "policy.k: [1, 2, 4, 8, 16]"),
        ("recall_sweep", "recall sweep", "policy.recall: [0.5, 0.7, 0.85, 1.0]"),
    ):
        if asks and not any(panel.kind == kind for panel in sources.panels):
            lines.append(
                missing(
                    f"There is no {name}: it needs a study with a panel of kind {kind} and vary {{{values}}}.",
                    "sqsim study STUDY.yaml --output-dir DIR",
                )
            )
    if any(record.run.get("kind") == "simulated" for *_, record in sources.records) and not intervals(sources):
        lines.append(
            missing(
                "No run here has error bars: each value is one draw, from one set of step times.",
                "sqsim run SCENARIO --bands --output-dir DIR",
            )
        )
    lines += [warning(text) for text in sources.troubles]
    return section("absent", "What this page does not show", *lines) if lines else ""


def _body(sources: Sources, detail: _Detail) -> str:
    palette = Palette(sources.variants)
    start = _first_record(sources)
    incomplete = [sources.name(panel, point) for panel, point, record in sources.records if not record.complete]
    found = Answer(None, None, [], {}) if only_measured(sources) else answer(sources.panels)
    opening = section("asked", "What was asked", *map(paragraph, sources.asked or questions_of(sources)))
    answered = section(
        "answer",
        "The answer",
        f'<p class="about">For “{escape(found.about)}”:</p>' if found.about else "",
        f'<p class="lead">{unbroken(found.first)}</p>' if found.first else "",
        listed("answer", [*summary(sources.measured), *found.lines]),
        paragraph("Accuracy is not predicted here: no outcome model is part of this version."),
        *(warning(f"{name}: the run was not completed; its numbers cover what it did.") for name in incomplete),
        *map(warning, _warned(sources)),
    )
    sections: list[tuple[str, str, str]] = []
    if sources.measured:
        sections.append((MEASURED, MEASURED_TITLE, measured(sources.measured)))
    sections.append(("evidence", "On what evidence", evidence(sources)))
    if sure := intervals(sources):
        sections.append((INTERVALS, INTERVALS_TITLE, section(INTERVALS, INTERVALS_TITLE, sure)))
    sections += [
        (panel.ident, panel.title, _panel(panel, sources, palette, found.left.get(panel.ident, ())))
        for panel in sources.panels
    ]
    for ident, name, content in (
        ("memory", "KV over time", over_time(sources, start)),
        ("timelines", "A few tasks, step by step", timelines(sources, start)),
        ("audit", "Audit of evictions", audit(sources, start, detail.audit_rows)),
        ("distributions", "Distributions", distributions(sources, palette)),
        ("provenance", "Provenance", provenance(sources)),
    ):
        sections.append((ident, name, section(ident, name, content)))
    if absent := _absent(sources):
        sections.append(("absent", "What this page does not show", absent))
    links = contents([("answer", "The answer"), *((ident, title) for ident, title, _ in sections)])
    return "\n".join([opening, glossary(), answered, links, *(content for *_, content in sections)])


def _warned(sources: Sources) -> list[str]:
    """List the panels' warnings, each with its panel where there are several."""
    several = len(sources.panels) > 1
    found = [(panel.title, text) for panel in sources.panels for text in panel.warnings]
    return [f"{title}: {text}" if several else text for title, text in found]


def _page(sources: Sources, detail: _Detail) -> str:
    return html_shell(sources.title or title(sources), _body(sources, detail))


def check_name(path: Path) -> None:
    """Raise an InputError for a name that no page can show."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise InputError(
            f"report: {shown}: the name is not UTF-8, and the page has to show it; rename the directory"
        ) from error


def build_page(sources: Sequence[Path]) -> str:
    """Build an HTML page of at most 8 MB (UTF-8) from record and study directories; it opens without a network.

    Many or long records are shown more coarsely, with every peak kept, until the page fits.
    RecordError where a directory holds neither a record nor a study; InputError where no source is given, or the page
    fits at no level of detail.
    """
    if not sources:
        raise InputError("report: no directory given; give the --output-dir of at least one run or study")
    for path in sources:
        check_name(path)
    held = None
    for detail in _DETAILS:
        found = load(sources, detail.pieces)
        if held is None:
            held = held_against_measured(found)
        found.measured = held
        page = _page(found, detail)
        if len(page.encode()) <= MAX_BYTES:
            return page
    raise InputError(
        f"report: {len(sources)} sources do not fit a page of {MAX_BYTES / 1e6:g} MB; give fewer, or keep fewer records in the study"
    )
