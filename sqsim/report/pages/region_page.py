# SPDX-License-Identifier: Apache-2.0
"""Page of a region: where SideQuest pays, and where its aux threads cost more than they save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqsim.experiments.plan.not_run import of_region
from sqsim.experiments.points import read_json
from sqsim.report.html.figure import Figure, Trace, axis, grid, plain
from sqsim.report.html.markup import details, escape, missing, paragraph, section, table, value_cell
from sqsim.report.pages.html_shell import contents, html_shell, listed
from sqsim.report.sections.evidence_list import evidence_list
from sqsim.scenario.labels import evicted_then_used_note

SCHEMA = "sqsim-region/2"
_RIVALS = {"against_none": "none", "against_free": "the best free setting"}
_WHERE = {
    "always": "at every load tried",
    "never": "at no load tried",
    "not at the most": "at some loads, but not at the highest,",
}


def region_page(directory: Path) -> str:
    """Build the page of a region's directory. RecordError: it holds no finished region."""
    region = read_json(directory, "region.json", SCHEMA)
    opening = section(
        "asked",
        "What was asked",
        paragraph(
            f"Where SideQuest pays for the agents of {region['scenario']['file']}: its main output throughput over that "
            "of policy none, and over that of the best free setting at the same load and K."
        ),
    )
    answered = section("answer", "The answer", listed("answer", _sentences(region)))
    parts = [
        ("maps", "Gain over load and K", _maps(region)),
        ("places", "Every place", _places(region) + listed("refused", of_region(region["places"]))),
    ]
    parts.append(("evidence", "On what evidence", evidence_list(region["evidence"])))
    parts.append(("provenance", "Provenance", _provenance(region)))
    links = contents([("answer", "The answer"), *((ident, title) for ident, title, _ in parts)])
    sections = [section(ident, title, content) for ident, title, content in parts]
    return html_shell("Where SideQuest pays", "\n".join([opening, answered, links, *sections]))


def _with(values: dict[str, Any]) -> str:
    said = ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
    )
    return f" with {said}" if said else ""


def _sentences(region: dict[str, Any]) -> list[str]:
    """Write a sentence for each rival and set of values: which settings pay, from which load on, and which never."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for line in region["crossings"]:
        if line["pays"] == "from":
            where = f"from {line['from']:.3g} tasks at a time on"
        else:
            where = _WHERE[line["pays"]]
        key = json.dumps(line["values"], sort_keys=True), line["rival"]
        groups.setdefault(key, {}).setdefault(where, []).append(line["setting"].removeprefix("sidequest "))
    return [
        f"Over {_RIVALS[rival]}{_with(json.loads(values))}: SideQuest pays "
        + "; ".join(f"{where} with {', '.join(settings)}" for where, settings in found.items())
        + "."
        for (values, rival), found in groups.items()
    ]


def _maps(region: dict[str, Any]) -> str:
    figures = [
        _map(region, values, after, rival).html()
        for values in _distinct(region)
        for after in ("reprefill", "in_place")
        for rival in _RIVALS
        if any(
            entry["after_eviction"] == after and entry[rival] is not None
            for place in region["places"]
            if place["values"] == values
            for entry in place["sidequest"]
        )
    ]
    return grid(figures) if figures else missing("No point has a gain: no run of SideQuest succeeded.")


def _distinct(region: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for place in region["places"]:
        if place["values"] not in found:
            found.append(place["values"])
    return found


def _map(region: dict[str, Any], values: dict[str, Any], after: str, rival: str) -> Figure:
    places = sorted(
        (place for place in region["places"] if place["values"] == values),
        key=lambda place: int(place["concurrency"]),
    )
    gains = {
        (entry["k"], place["concurrency"]): entry[rival]
        for place in places
        for entry in place["sidequest"]
        if entry["after_eviction"] == after
    }
    x, y = [place["concurrency"] for place in places], region["ks"]
    z = [[_percent(gains.get((k, at))) for at in x] for k in y]
    labels = [["" if value is None else f"{value:+.1f}" for value in row] for row in z]
    most = max((abs(value) for row in z for value in row if value is not None), default=1.0)
    traces: list[Trace] = [
        {
            "type": "heatmap",
            "x": [str(at) for at in x],
            "y": [str(k) for k in y],
            "z": z,
            "text": labels,
            "texttemplate": "%{text}",
            "zmid": 0,
            "zmin": -most,
            "zmax": most,
            "colorscale": [[0, "#d55e00"], [0.5, "#ffffff"], [1, "#0072b2"]],
            "colorbar": {"title": {"text": "%"}},
            "hovertemplate": "%{x} at a time, K = %{y}: %{z:.2f} %<extra></extra>",
        }
    ]
    title = f"{after}{_with(values)}: % over {_RIVALS[rival]}"
    text = "; ".join(
        f"K = {k}: " + ", ".join(f"{label} % at {at}" for label, at in zip(row, x, strict=True))
        for k, row in zip(y, labels, strict=True)
    )
    layout = {
        "xaxis": axis("tasks at a time", type="category"),
        "yaxis": axis("K (turns between aux threads)", type="category"),
    }
    caption = "Blue: SideQuest writes more main output. Orange: its aux threads cost more than they save."
    return Figure(plain(title), caption, f"{text}.", traces, layout, height=300)


def _percent(gain: float | None) -> float | None:
    return None if gain is None else 100 * gain


def _places(region: dict[str, Any]) -> str:
    head = ["Setting", "Tasks at a time", "With", "Gain over none (%)", "Best free setting", "Gain over it (%)",
            "Aux output (share of main's)", "Evicted, then needed (responses)"]  # fmt: skip
    rows = [
        [
            escape(entry["setting"]),
            value_cell(place["concurrency"]),
            escape(_with(place["values"]).removeprefix(" with ")),
            value_cell(_percent(entry["against_none"]), signed=True),
            escape((place["best_free"] or "") + evicted_then_used_note(place["best_free_harm"])),
            value_cell(_percent(entry["against_free"]), signed=True),
            value_cell(entry["aux_share"]),
            value_cell(entry["evicted_then_used"]),
        ]
        for place in region["places"]
        for entry in place["sidequest"]
    ]
    return table([escape(cell) for cell in head], rows, "SideQuest at every place", "prose")


def _provenance(region: dict[str, Any]) -> str:
    content = json.dumps(region["scenario"], indent=1, sort_keys=True)
    return details("The scenario", f"<pre>{escape(content)}</pre>")
