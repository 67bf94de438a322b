# SPDX-License-Identifier: Apache-2.0
"""Page of a sweep: its points, and the Pareto-best in throughput, memory and evictions needed later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqsim.experiments.points import read_json
from sqsim.report.data.labels import variant_of
from sqsim.report.data.measures import (
    EVICTED_THEN_USED,
    FAILED,
    KV_PEAK,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    TASK_P90,
    TTFT_P99,
    full,
    number,
    written,
)
from sqsim.report.data.palette import Palette
from sqsim.report.html.figure import Figure, Trace, axis, plain
from sqsim.report.html.markup import details, escape, missing, paragraph, section, table, value_cell
from sqsim.report.pages.html_shell import contents, html_shell, listed
from sqsim.report.sections.evidence_list import evidence_list

SCHEMA = "sqsim-sweep/1"
_MEASURES = (OUTPUT_TOK_S, KV_PEAK, EVICTED_THEN_USED, PEAK_TOKENS, TASK_P90, TTFT_P99, FAILED)

Point = dict[str, Any]


def sweep_page(directory: Path) -> str:
    """Build the page of a sweep's directory. RecordError: it holds no finished sweep."""
    sweep = read_json(directory, "sweep.json", SCHEMA)
    keys = [key for each in sweep["axes"] for key in each["keys"]]  # in the order asked for
    points = [{**point, "values": {key: point["values"][key] for key in keys}} for point in sweep["points"]]
    done = [point for point in points if point["metrics"] is not None]
    best = pareto(done)
    axes = "; ".join(
        f"{', '.join(each['keys'])}: {len(each['values'])} value{'s' if len(each['values']) != 1 else ''}"
        for each in sweep["axes"]
    )
    said = [f"{len(done)} of {len(points)} points are done."]
    if best:
        said.append(
            f"Best at once: {len(best)} of them are beaten by no other point in throughput, peak KV usage and "
            "responses evicted and needed later, all three."
        )
    opening = section(
        "asked", "What was asked", paragraph(f"{sweep['scenario']} at every point of a grid. {axes}.")
    )
    answered = section("answer", "The answer", listed("answer", said), _front(best, "Points that none beats"))
    parts = [
        ("pareto", "Throughput, memory and evictions needed later", _figure(done, best)),
        ("points", "Every point", _table(done)),
    ]
    if failed := [point for point in points if point["metrics"] is None]:
        parts.append(("failed", "What failed", _failed(failed)))
    parts += [
        ("evidence", "On what evidence", evidence_list(sweep["evidence"])),
        ("provenance", "Provenance", _provenance(sweep)),
    ]
    links = contents([("answer", "The answer"), *((ident, title) for ident, title, _ in parts)])
    sections = [section(ident, title, content) for ident, title, content in parts]
    title = f"Sweep of {sweep['scenario']}: {len(points)} point{'s' if len(points) != 1 else ''}"
    return html_shell(title, "\n".join([opening, answered, links, *sections]))


def pareto(points: Sequence[Point]) -> list[Point]:
    """Find the Pareto-best points in throughput, peak KV usage and responses evicted then needed."""

    def cost(point: Point) -> tuple[float, float, float] | None:
        found = [number(point["metrics"].get(each.key)) for each in (OUTPUT_TOK_S, KV_PEAK, EVICTED_THEN_USED)]
        speed, memory, used_later = found
        return None if speed is None or memory is None else (-speed, memory, used_later or 0.0)

    costs = [(point, mine) for point in points if (mine := cost(point)) is not None]
    return [
        point
        for point, mine in costs
        if not any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for _, other in costs
        )
    ]


def _values(point: Point) -> str:
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in point["values"].items()
    )


def _variant(point: Point) -> str:
    return variant_of(point["labels"])


def _figure(done: Sequence[Point], best: Sequence[Point]) -> str:
    drawn = [point for point in done if number(point["metrics"].get(OUTPUT_TOK_S.key)) is not None]
    if not drawn:
        return missing("No point has a throughput: no task came to an end, or none was run.")
    variants = list(dict.fromkeys(map(_variant, drawn)))
    palette = Palette(variants)
    traces: list[Trace] = []
    for variant in variants:
        mine, look = [point for point in drawn if _variant(point) == variant], palette.look(variant)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(variant),
                "legendgroup": variant,
                "x": [number(point["metrics"].get(KV_PEAK.key)) for point in mine],
                "y": [number(point["metrics"].get(OUTPUT_TOK_S.key)) for point in mine],
                "text": [_hover(point) for point in mine],
                "hoverinfo": "text",
                "marker": {
                    "color": look.colour,
                    "symbol": look.marker,
                    "size": [15 if point in best else 8 for point in mine],
                    "line": {"width": 1.5, "color": look.colour},
                },
            }
        )
    text = "; ".join(
        f"{_values(point)}: {written(point['metrics'].get(OUTPUT_TOK_S.key))} tok/s at peak KV usage "
        f"{written(point['metrics'].get(KV_PEAK.key))}, {written(point['metrics'].get(EVICTED_THEN_USED.key))} "
        f"evicted then needed{' (beaten by none)' if point in best else ''}"
        for point in drawn
    )
    figure = Figure(
        "Main output throughput against peak KV usage",
        "Up and to the left is better. No other point beats a large mark, counting evictions needed later too.",
        f"{text}.",
        traces,
        {
            "xaxis": axis(KV_PEAK.title, rangemode="tozero"),
            "yaxis": axis(OUTPUT_TOK_S.title, rangemode="tozero"),
        },
        height=460,
    )
    return palette.key(variants) + figure.html()


def _hover(point: Point) -> str:
    numbers = "<br>".join(
        f"{each.name}: {full(point['metrics'].get(each.key))} {each.unit}" for each in _MEASURES
    )
    return f"<b>{plain(_values(point) or _variant(point))}</b><br>{numbers}"


def _front(best: Sequence[Point], label: str) -> str:
    return _rows(best, label) if best else ""


def _table(done: Sequence[Point]) -> str:
    return _rows(done, "Metrics of every point") if done else missing("No point was finished.")


def _rows(points: Sequence[Point], label: str) -> str:
    keys = list(points[0]["values"])
    head = [*keys, "Variant", *(each.title for each in _MEASURES)]
    rows = [
        [
            *(_cell(point["values"][key]) for key in keys),
            escape(_variant(point)),
            *(value_cell(point["metrics"].get(each.key)) for each in _MEASURES),
        ]
        for point in points
    ]
    return table([escape(cell) for cell in head], rows, label, "prose", row_heads=max(1, len(keys)))


def _cell(value: Any) -> str:
    return escape(json.dumps(value)) if isinstance(value, dict | list) else value_cell(value)


def _failed(failed: Sequence[Point]) -> str:
    rows = [[escape(_values(point)), escape(point["error"] or "")] for point in failed]
    return table(["Point", "Why"], rows, "Points that failed", "prose")


def _provenance(sweep: dict[str, Any]) -> str:
    asked = json.dumps({key: sweep[key] for key in ("scenario", "changes", "axes")}, indent=1)
    return details("The grid", f"<pre>{escape(asked)}</pre>")
