# SPDX-License-Identifier: Apache-2.0
"""Origin of every number: scenario, versions, traces, profile, ranges left, assumptions, commands."""

from __future__ import annotations

import json
from typing import Any

from sqsim.record.definitions import DEFINITIONS
from sqsim.report.data.labels import flat
from sqsim.report.data.sources import Sources
from sqsim.report.html.markup import badge, badged, details, escape, missing, table, value_cell
from sqsim.report.sections.ranges import ranges


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return badged(", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)) or "none"
    return badged(value) if isinstance(value, str) else value_cell(value)


def _runs(sources: Sources) -> str:
    records = sources.records
    # The ranges left have a table of their own.
    runs = {
        sources.short(panel, point): dict(flat({k: v for k, v in record.run.items() if k != "out_of_range"}))
        for panel, point, record in records
    }
    keys = list(dict.fromkeys(key for run in runs.values() for key in run))
    first = next(iter(runs.values()))
    absent = object()
    same = [key for key in keys if all(run.get(key, absent) == first.get(key, absent) for run in runs.values())]
    title = "The same in every kept run" if len(runs) > 1 else "The run"
    parts = [
        details(
            f"{title}: scenario, versions, trace, profile ({len(same)} values)",
            table(["key", "value"], [[escape(key), _text(first[key])] for key in same], title, "data keys"),
            opened=False,
        )
    ]
    if differing := [key for key in keys if key not in same]:
        rows = [
            [escape(key), *(_text(run[key]) if key in run else "—" for run in runs.values())]
            for key in differing
        ]
        label = "What differs from run to run"
        parts.append(
            details(
                f"{label} ({len(differing)} values)",
                table(["key", *map(escape, runs)], rows, label, "data keys"),
            )
        )
    return "".join(parts)


def _assumed(sources: Sources) -> str:
    found: dict[str, set[str]] = {}
    for _, _, record in sources.records:
        values = dict(flat(record.run.get("scenario") or {}))
        for name in record.run.get("assumed") or []:
            found.setdefault(str(name), set()).add(json.dumps(values.get(str(name))))
    if not found:
        return ""
    items = "".join(
        f"<li><code>{escape(name)}</code> = {escape(', '.join(sorted(values)))} {badge('assumed')}</li>"
        for name, values in sorted(found.items())
    )
    return f"<p>Values that no record calibrates:</p><ul>{items}</ul>"


def _commands(sources: Sources) -> str:
    lines = list(sources.commands)
    lines.append(f"sqsim report {' '.join(str(path) for path in sources.paths)} -o page.html")
    return f"<p>To make this page again:</p><pre>{escape(chr(10).join(lines))}</pre>"


def _meanings() -> str:
    rows = [
        [f"<code>{key}</code>", escape(metric.unit), escape(metric.meaning)]
        for key, metric in DEFINITIONS.items()
    ]
    return details(
        "What each metric means", table(["key in the JSON", "unit", "meaning"], rows, "Metrics", "data keys")
    )


def provenance(sources: Sources) -> str:
    """Write all of run.json, common values once, and the commands."""
    body = (
        _runs(sources)
        if sources.records
        else missing("No source keeps a full record, so no scenario can be shown.")
    )
    return _assumed(sources) + ranges(sources) + body + _meanings() + _commands(sources)
