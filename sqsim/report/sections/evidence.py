# SPDX-License-Identifier: Apache-2.0
"""Evidence of the page: cost profile, KV capacity, traces and their references."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from sqsim.record.lateness import lateness_note
from sqsim.report.data.measures import counted, number, written
from sqsim.report.data.record_view import RecordView
from sqsim.report.data.sources import Sources
from sqsim.report.html.markup import EVIDENCE, badge, badged, details, escape, missing, section, table
from sqsim.report.sections.ranges import by_term

Run = dict[str, Any]

RECORDINGS = 33
"""Number of schedules in tests/data/sglang-schedules; a test compares the two."""

SCHEDULER = (
    f"SGLang 0.5.23's rules, compared with {RECORDINGS} recorded schedules: no difference (sqsim lockstep)"
)
SESSION_RUNS = 48
"""Number of contended runs with sessions in reports/conformance; a test compares the two."""
SESSIONS = (
    f"our plugin's rules, not stock SGLang's; compared with {SESSION_RUNS} contended runs of the plugin: no "
    "difference (CPU, tiny models; reports/conformance); on a GPU assumed"
)


def _profile(run: Run) -> str:
    if run.get("kind") == "real":
        return f"{badge('measured')}: the server's own"
    profile = run.get("profile")
    if not isinstance(profile, dict):
        return badged(profile or "not available")
    name = profile.get("name") or profile.get("id") or "not available"
    terms = profile.get("evidence")
    kinds: dict[str, list[str]] = {}
    for term, kind in terms.items() if isinstance(terms, dict) else ():
        kinds.setdefault(str(kind), []).append(str(term))
    by = "; ".join(f"{badged(kind)} {escape(', '.join(names))}" for kind, names in kinds.items())
    return f"<code>{escape(name)}</code>{f': {by}' if by else ''}"


def _chosen(run: Run) -> str:
    if run.get("kind") == "real":
        return "a server needs none"
    profile = run.get("profile")
    return escape(profile.get("chosen") or "not stated") if isinstance(profile, dict) else "not stated"


def _capacity(run: Run) -> str:
    capacity = run.get("kv_capacity")
    if not isinstance(capacity, dict):
        return badged("not available" if capacity is None else capacity)
    return (
        f"{escape(written(capacity.get('tokens')))} tokens, {badged(capacity.get('how', 'source not stated'))}"
    )


def _in_place(run: Run) -> str:
    if run.get("kind") == "real":
        return f"{badge('measured')}: in the server's own times"
    cost = (run.get("kernel_costs") or {}).get("in_place")
    if cost is None:
        return "nothing is evicted in place"
    takes = f"{cost['fixed_s'] * 1e6:.3g} us and {cost['per_token_s'] * 1e9:.3g} ns for each token after it"
    return f"{takes}, {badged(cost['evidence'])}: {escape(cost['source'])}"


def _traces(run: Run) -> str:
    return "; ".join(map(_trace, run.get("traces") or [])) or "not available"


def _trace(one: Any) -> str:
    """Name a trace by its file's name, its content's digest, and its path."""
    known = one if isinstance(one, dict) else {"path": one}
    path = str(known.get("path", "not available"))
    name = PurePosixPath(path).name
    text = f"<code>{escape(name)}</code>"
    if known.get("sha256"):
        text += f' <span class="unit">sha256 <span title="{escape(known["sha256"])}">{escape(str(known["sha256"])[:12])}…</span></span>'
    return text if name == path else f'{text} <span class="unit">{escape(path)}</span>'


def _references(run: Run) -> str:
    found = run.get("references")
    if not isinstance(found, dict):
        return badged(found or "not available")
    return ", ".join(
        f"{badged(kind)} for {escape(counted(count, 'task'))} of the trace" for kind, count in found.items()
    )


def _system(run: Run) -> str:
    scenario = run.get("scenario") or {}
    engine = scenario.get("engine") or {}
    return escape(f"{scenario.get('model', 'not available')} on {engine.get('gpu', 'not available')}")


def _kind(run: Run) -> str:
    kind = str(run.get("kind", "not available"))
    return badge("measured") + " on a real server" if kind == "real" else badged(kind)


_FACTS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("Runs", _kind),
    ("Model and GPU", _system),
    ("Step times", _profile),
    ("Why this profile", _chosen),
    ("KV capacity", _capacity),
    ("An eviction in place", _in_place),
    ("Traces", _traces),
    ("References (the last use of each response)", _references),
)


def _rows(records: list[RecordView]) -> list[list[str]]:
    rows = []
    for name, fact in _FACTS:
        values: dict[str, int] = {}
        for record in records:
            text = fact(record.run)
            values[text] = values.get(text, 0) + 1
        cells = [
            f"{text} ({counted(count, 'run')})" if len(values) > 1 else text for text, count in values.items()
        ]
        rows.append([escape(name), "<br>".join(cells)])
    if any("out_of_range" in record.run for record in records):
        extrapolated = '<a href="#provenance">ranges</a>'
        rows.append(["Steps beyond the measured ranges", f"{escape(by_term(records))} ({extrapolated})"])
    return rows


def _decisions(sources: Sources) -> str | None:
    """State the assumed quality of SideQuest's decisions; a record may state that its own are not assumed."""
    found: dict[str, dict[str, set[float]]] = {}
    held = {"policy.recall", "policy.false_rate"}
    for point in (point for panel in sources.panels for point in panel.points if point.policy == "sidequest"):
        known = point.record is not None and not held & set(point.record.run.get("assumed") or ())
        kinds = found.setdefault("calibrated" if known else "assumed", {})
        for label, name in (("recall", "recall"), ("false_rate", "false rate")):
            if (value := number(point.labels.get(label))) is not None:
                kinds.setdefault(name, set()).add(value)
    lines = (
        f"{kind}: "
        + "; ".join(f"{name} {', '.join(f'{v:g}' for v in sorted(values))}" for name, values in kinds.items())
        for kind, kinds in found.items()
        if kinds
    )
    return "<br>".join(map(badged, lines)) or None


def _model_rows(sources: Sources) -> list[list[str]]:
    """List the evidence for those parts of the simulator that the page uses."""
    points = [point for panel in sources.panels for point in panel.points]
    simulated = [point for point in points if point.metrics.get("simulated", True)]
    rows = []
    if simulated:
        rows.append(["Scheduler", badged(SCHEDULER)])
    if any(point.labels.get("cache") == "session" for point in simulated):
        rows.append(["In-place eviction, forks and release of idle sessions", badged(SESSIONS)])
    if (decisions := _decisions(sources)) is not None:
        rows.append(["Decision quality (recall, false rate)", decisions])
    notes = [note for _, _, record in sources.records if (note := lateness_note(record)) is not None]
    if notes:
        rows.append(["Lateness of aux threads", "<br>".join(map(badged, dict.fromkeys(notes)))])
    return rows


def evidence(sources: Sources) -> str:
    """Write the section: facts of the kept records, evidence that panels declare, and the meaning of the marks."""
    records = [record for _, _, record in sources.records]
    rows = [*(_rows(records) if records else []), *_model_rows(sources)]
    facts = table(["", "in the kept runs" if records else ""], rows, "Evidence of the runs", "data keys")
    if not records:
        facts += missing(
            "No source keeps a full record, so profile, capacity and traces are known only where the panels state them.",
            "sqsim run SCENARIO --output-dir DIR",
        )
    synthesised = any("synthesised" in (record.run.get("references") or {}) for record in records)
    warn = (
        f'<p class="warning"><strong>Note.</strong> References are {badge("synthesised")}: the last use of each response was drawn from '
        "a declared mixture, not recorded. Which responses are stale depends on that, and so does every result of a policy that evicts them.</p>"
        if synthesised
        else ""
    )
    declared = [panel for panel in sources.panels if panel.evidence]
    panels = "".join(f"<li>{escape(panel.title)}: {badged(panel.evidence)}</li>" for panel in declared)
    marks = "".join(f"<li>{badge(kind)} {escape(what)}</li>" for kind, what in EVIDENCE.items())
    return section(
        "evidence",
        "On what evidence",
        facts,
        warn,
        f"<p>By panel:</p><ul>{panels}</ul>" if panels else "",
        details("What the marks mean", f"<ul>{marks}</ul>"),
    )
