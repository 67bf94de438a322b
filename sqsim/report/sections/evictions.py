# SPDX-License-Identifier: Apache-2.0
"""Audit of evictions: each response, its time and reason, and whether it was needed later."""

from __future__ import annotations

from typing import Any

from sqsim.report.data.measures import counted, share, written
from sqsim.report.data.record_view import RecordView
from sqsim.report.data.sources import Sources
from sqsim.report.html.markup import Choice, chooser, escape, missing, table, value_cell

Row = dict[str, Any]

_HEAD = (
    "task", "by", "before step", "time (s)", "cursor", "tokens", "age (turns)", "last use (step)", "used later (times)",
)  # fmt: skip


def reason(by: str) -> str:
    """Put `evictions.by` in words: an aux thread by its index in the task, a policy's rule by its name."""
    if by.startswith("aux:"):
        return f"aux thread {by.removeprefix('aux:')}"
    return "named earlier, had to wait" if by == "waited" else by


def _cells(row: Row) -> list[str]:
    return [
        escape(row["task"]),
        escape(reason(row["by"])),
        *(
            value_cell(row[name])
            for name in ("turn", "time_s", "cursor", "tokens", "age_turns", "last_use_turn", "used_later")
        ),
    ]


def _order(row: Row) -> tuple[Any, ...]:
    return (not row["used_later"], row["time_s"], row["task"], row["cursor"])


def _audit(view: RecordView, name: str, cap: int, ident: str) -> str:
    rows = sorted(view.evictions.to_pylist(), key=_order)
    if not rows:
        return missing(f"{name}: nothing was evicted in this run.")
    wrong = [row for row in rows if row["used_later"]]
    unknown = sum(row["used_later"] is None for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    lead = (
        f"{counted(len(rows), 'eviction')} cleared {counted(tokens, 'token')}; "
        + (f"hindsight is not available for {written(unknown)} of them. " if unknown else "")
        + f"{counted(len(wrong), 'evicted response')} ({share(len(wrong) / len(rows))}; {counted(sum(row['tokens'] for row in wrong), 'token')}) {'was' if len(wrong) == 1 else 'were'} needed later. "
    )
    shown = rows[:cap]
    capped = (
        f"The table lists {written(len(shown))} of them: those needed later first, then by time; the record's evictions.parquet holds all."
        if len(shown) < len(rows)
        else "The table lists all of them: those needed later first, then by time."
    )
    rows_shown = counted(len(shown), "row")
    controls = (
        f'<p class="filter"><label for="{ident}-text">Show rows that contain</label> '
        f'<input id="{ident}-text" type="search" data-filter="{ident}" autocomplete="off"> '
        f'<label><input type="checkbox" data-wrong="{ident}" autocomplete="off"> only those needed later</label> · '
        f'<output data-count="{ident}" aria-live="polite">{rows_shown}</output></p>'
    )
    body = table(_HEAD, [_cells(row) for row in shown], f"Evictions of {name}", "data sortable audit")
    return f'<p>{escape(lead + capped)}</p>{controls}<div id="{ident}">{body}</div>'


def audit(sources: Sources, start: int, cap: int) -> str:
    """Write a table of at most `cap` rows for each kept record, and name the records that evicted nothing."""
    records = sources.records
    if not records:
        return missing("No source keeps a full record.", "sqsim report RECORD_DIRECTORY... -o page.html")
    choices: list[Choice] = []
    chosen, quiet = 0, list[str]()
    for place, (panel, point, record) in enumerate(records):
        name = sources.name(panel, point)
        if not record.evictions.num_rows:
            quiet.append(sources.short(panel, point))
            continue
        if place == start:
            chosen = len(choices)
        choices.append(Choice(name, _audit(record, name, cap, f"audit-{place}")))
    nothing = missing(f"Nothing was evicted in: {'; '.join(quiet)}.") if quiet else ""
    return (chooser("audit-record", "Run shown", choices, chosen) if choices else "") + nothing
