# SPDX-License-Identifier: Apache-2.0
"""Page of a plan: the answer, its reasons, its certainty and its evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqsim.experiments.plan.not_run import of_plan
from sqsim.experiments.points import read_json
from sqsim.record.definitions import DEFINITIONS
from sqsim.report.data.measures import full, written
from sqsim.report.data.palette import Look, Palette
from sqsim.report.html.figure import Figure, Trace, axis, grid, line, plain
from sqsim.report.html.markup import details, escape, missing, paragraph, section, table, value_cell
from sqsim.report.pages.html_shell import contents, html_shell, listed
from sqsim.report.sections.evidence_list import evidence_list

SCHEMA = "sqsim-plan/1"

_PARTS = (
    ("queue_s", "waiting for admission", "#d55e00"),
    ("prefill_s", "prefill", "#0072b2"),
    ("decode_s", "decode", "#56b4e9"),
    ("tools_s", "tools", "#b8bec6"),
    ("rest_s", "users, pauses, summaries", "#8a8a8a"),
)

Setting = dict[str, Any]


def plan_page(directory: Path) -> str:
    """Build the page of a plan's directory. RecordError: it holds no finished plan."""
    plan = read_json(directory, "plan.json", SCHEMA)
    chosen = [plan["answer"], plan["best_free"], plan["best_sidequest"]]
    shown = [each for name in dict.fromkeys(chosen) for each in plan["settings"] if name == _name(each)]
    parts = [
        ("settings", "Every setting", _settings(plan) + listed("refused", of_plan(plan["settings"]))),
        ("load", "What load does to the SLO", _curves(plan)),
        ("why", "What runs out first", _why(plan, shown)),
        ("sure", "How sure this is", _sure(plan, shown)),
        ("evidence", "On what evidence", _evidence(plan)),
        ("provenance", "Provenance", _provenance(plan)),
    ]
    asked = plan["asked"]
    carried = (
        f"{asked['agents']} agents at a time"
        if asked["agents"] is not None
        else f"{asked['tasks_per_h']:g} tasks an hour"
    )
    opening = section(
        "asked",
        "What was asked",
        paragraph(
            f"The fewest GPUs that carry {carried} of {plan['scenario']['file']} while every replica keeps "
            f"{' and '.join(plan['slo'])}, and the setting to run them with."
        ),
    )
    answered = section("answer", "The answer", listed("answer", plan["sentences"]))
    links = contents([("answer", "The answer"), *((ident, title) for ident, title, _ in parts)])
    sections = [section(ident, title, content) for ident, title, content in parts]
    return html_shell(
        f"Plan: {carried}, {', '.join(plan['slo'])}", "\n".join([opening, answered, links, *sections])
    )


def _name(setting: Setting) -> str:
    return f"{setting['setting']} on {setting['gpu']}"


def _share_title(plan: dict[str, Any]) -> str:
    return "agents on one replica" if plan["asked"]["agents"] is not None else "tasks an hour on one replica"


def _at_edge(setting: Setting) -> dict[str, Any]:
    """Return the metrics of the run that decides the fewest replicas."""
    found = [run["metrics"] for run in setting["runs"] if run["replicas"] == setting["replicas"]]
    return found[0] if found else {}


def _settings(plan: dict[str, Any]) -> str:
    share = _share_title(plan)
    money = plan["prices"] is not None
    head = ["Setting", "GPU", "GPUs", f"Carries ({share})", f"Breaks at ({share})", "Runs out first",
            *(["Cost (an hour)"] if money else []), "Evicted, then needed (responses)", "To know"]  # fmt: skip
    rows = []
    for each in plan["settings"]:
        used_later = _at_edge(each).get("evicted_then_used")
        rows.append(
            [
                escape(each["setting"]) + ("" if each["deployable"] else " <em>(bound)</em>"),
                escape(each["gpu"]),
                value_cell(each["gpus"]),
                value_cell(each["share"]),
                value_cell(each["breaks_at"]),
                escape((each["bottleneck"] or {}).get("name", "")),
                *([value_cell(each["cost_per_h"])] if money else []),
                value_cell(used_later),
                escape("could not be run; see below" if each["error"] else each["note"]),
            ]
        )
    slo = ", ".join(plan["slo"])
    return table(
        [escape(cell) for cell in head],
        rows,
        f"Fewest GPUs under each setting ({slo})",
        extra_class="prose",
        row_heads=2,
    )


def _curves(plan: dict[str, Any]) -> str:
    ran = [each for each in plan["settings"] if each["runs"]]
    if not ran:
        return missing("No setting could be run.")
    palette = Palette(_name(each) for each in ran)
    figures = []
    for slo in plan["slo"]:
        key = next(name for name in sorted(DEFINITIONS, key=len, reverse=True) if slo.startswith(name))
        bound = float(slo[len(key) :].lstrip("<>="))
        figures.append(_curve(plan, ran, palette, key, bound).html())
    return palette.key(_name(each) for each in ran) + grid(figures)


def _curve(plan: dict[str, Any], ran: Sequence[Setting], palette: Palette, key: str, bound: float) -> Figure:
    unit, share = DEFINITIONS[key].unit, _share_title(plan)
    traces: list[Trace] = []
    ends: list[float] = []
    for each in ran:
        runs = sorted(each["runs"], key=lambda run: float(run["share"]))
        x, y = [run["share"] for run in runs], [run["metrics"].get(key) for run in runs]
        hover = [
            f"<b>{plain(_name(each))}</b><br>{run['share']:g} {share}<br>{key}: {full(run['metrics'].get(key))} {unit}"
            for run in runs
        ]
        traces.append(line(_name(each), palette.look(_name(each)), x, y, hover))
        ends += x
    edge = Look("#1d2733", "circle", "dot")
    span = [min(ends), max(ends)]
    traces.append(line("the bound", edge, span, [bound] * 2, [f"bound: {bound:g} {unit}"] * 2, mode="lines"))
    text = "; ".join(
        f"{_name(each)}: "
        + ", ".join(
            f"{written(run['metrics'].get(key))} at {run['share']:g}"
            for run in sorted(each["runs"], key=lambda run: float(run["share"]))
        )
        for each in ran
    )
    layout = {
        "xaxis": axis(share, type="log"),
        "yaxis": axis(f"{key} ({unit})" if unit else key, rangemode="tozero"),
    }
    caption = "The dotted line is the bound. Where a curve crosses it, a replica carries no more."
    return Figure(f"{key} by load", caption, f"{text}.", traces, layout, height=420)


def _why(plan: dict[str, Any], shown: Sequence[Setting]) -> str:
    bars = [
        (f"{each['setting']}, {run['share']:g}", run["time_spent"])
        for each in shown
        for run in sorted(each["runs"], key=lambda run: float(run["share"]))
        if run["time_spent"] is not None
    ]
    if not bars:
        return missing("No setting keeps the SLO, or no task completed: there is no time to break down.")
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [spent[key] for _, spent in bars],
            "y": [plain(label) for label, _ in bars],
            "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:.4g}} s a task<extra>%{{y}}</extra>",
        }
        for key, name, colour in _PARTS
    ]
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": axis("mean seconds of a task"),
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "margin": {"t": 40},
    }
    text = "; ".join(
        f"{label}: " + ", ".join(f"{name} {written(spent[key])} s" for key, name, _ in _PARTS)
        for label, spent in bars
    )
    figure = Figure(
        f"Where a task's time goes, by setting and {_share_title(plan)}",
        "The part that grows with load is the scarce resource. Tools take as long as in the recording.",
        f"{text}.",
        traces,
        layout,
        height=120 + 26 * len(bars),
    )
    said = [
        f"{_name(each)}: {each['bottleneck']['name']}; {each['bottleneck']['evidence']}"
        for each in shown
        if each["bottleneck"]
    ]
    return listed("found", said) + figure.html()


def _sure(plan: dict[str, Any], shown: Sequence[Setting]) -> str:
    rows = [
        [
            escape(_name(each)),
            value_cell(tried["replicas"] * plan["tensor_parallel"]),
            value_cell(tried["share"]),
            value_cell(tried["kept"]),
            value_cell(tried["draws"]),
            escape(
                "; ".join(
                    f"{slo}: {written(limit)}" for slo, limit in tried["limits"].items() if limit is not None
                )
            ),
            escape("yes" if tried["sure"] else "no"),
        ]
        for each in shown
        if each["sure"]
        for tried in each["sure"]["tried"]
    ]
    how = paragraph(
        f"Intervals are from {plan['uncertainty']}. A number of GPUs is called sure where all draws kept the SLO and the "
        f"next one would with {plan['level']:.0%} (one-sided Student prediction limit). All settings share the same draws."
    )
    if not rows:
        return how + missing("No setting keeps the SLO, so there was nothing to draw.")
    head = ["Setting", "GPUs", f"Load ({_share_title(plan)})", "Draws that kept the SLO", "Draws",
            f"{plan['level']:.0%} of draws stay within", "Sure"]  # fmt: skip
    return how + table(
        [escape(cell) for cell in head], rows, "Draws around the fewest GPUs", "prose", row_heads=2
    )


def _evidence(plan: dict[str, Any]) -> str:
    note = paragraph(
        "Replicas are independent, behind a router with session affinity: one replica is simulated at its share of the load."
    )
    return note + evidence_list(plan["evidence"])


def _provenance(plan: dict[str, Any]) -> str:
    rows = [
        [escape(_name(each)), value_cell(run["share"]), escape(run["key"]), escape(", ".join(run["broken"]))]
        for each in plan["settings"]
        for run in each["runs"]
    ]
    content = json.dumps(plan["scenario"], indent=1, sort_keys=True)
    prices = "" if plan["prices"] is None else paragraph(f"Prices an hour, as given: {plan['prices']}")
    runs = table(
        [
            escape(cell)
            for cell in ("Setting", f"Load ({_share_title(plan)})", "Run (points/KEY.json)", "Broke")
        ],
        rows,
        "Every run",
    )
    return prices + details("The scenario", f"<pre>{escape(content)}</pre>") + details("Every run", runs)
