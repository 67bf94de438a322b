# SPDX-License-Identifier: Apache-2.0
"""Steps outside the cost profile's measured ranges, where step times are extrapolated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqsim.report.data.measures import share
from sqsim.report.data.record_view import RecordView
from sqsim.report.data.sources import Sources
from sqsim.report.html.markup import details, escape, table, value_cell


def _left(record: RecordView) -> Counter[str]:
    """Count steps by the sentence that names the range they left."""
    return Counter({name: int(count) for name, count in (record.run.get("out_of_range") or {}).items()})


def _total(records: Sequence[RecordView]) -> Counter[str]:
    return sum((_left(record) for record in records), Counter())


def _part(count: int, records: Sequence[RecordView]) -> str:
    steps = sum(record.steps for record in records)
    return share(count / steps if steps else None)


def by_term(records: Sequence[RecordView]) -> str:
    """Write `decode attention in 54.9 % of steps`, largest first. A step leaves at most one range of a term."""
    terms: Counter[str] = Counter()
    for name, count in _total(records).items():
        terms[name.split(":")[0]] += count
    return (
        ", ".join(f"{term} in {_part(count, records)} of steps" for term, count in terms.most_common())
        or "none"
    )


def ranges(sources: Sources) -> str:
    """Tabulate all ranges left, the most frequent first, and the same for each run."""
    records = [record for *_, record in sources.records]
    if not records:
        return ""
    total = _total(records)
    if not total:
        return "<p>No kept run left the ranges over which its cost profile was measured.</p>"
    names = [name for name, _ in sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))]
    several = len(records) > 1
    where = "all kept runs" if several else "this run"
    rows = [[escape(name), value_cell(total[name]), _part(total[name], records)] for name in names]
    label = "Steps outside the range over which a term was measured; sizes are rounded up to powers of two"
    text = "<p>Beyond these ranges step times are extrapolated:</p>"
    text += table(
        ["term, and where its measurements end", f"steps, {where}", "share of steps"],
        rows,
        label,
        "data counts",
    )
    if several:
        heads = [escape(sources.short(panel, point)) for panel, point, _ in sources.records]
        own = [
            [
                escape(name),
                *(
                    f'{value_cell(count)}<span class="change">{_part(count, [record])}</span>'
                    if (count := _left(record)[name])
                    else "—"
                    for record in records
                ),
            ]
            for name in names
        ]
        text += details(
            "The same by run",
            table(["what", *heads], own, "Steps outside measured ranges by run", "data counts"),
        )
    return text
