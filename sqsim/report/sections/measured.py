# SPDX-License-Identifier: Apache-2.0
"""Section that compares simulated with measured runs, from `sqsim.comparison`. Nothing is computed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqsim.comparison.experiment import Run
from sqsim.comparison.measured import Measured, Timing
from sqsim.comparison.measured import measured as pair
from sqsim.comparison.noise import RULE
from sqsim.comparison.pressure import Bin, Errors
from sqsim.comparison.verdicts import verdicts
from sqsim.record.definitions import DEFINITIONS
from sqsim.record.files import read_record
from sqsim.report.data.measures import TIMED, counted, joined
from sqsim.report.data.sources import Sources
from sqsim.report.html.figure import grid
from sqsim.report.html.markup import (
    badge,
    details,
    escape,
    paragraph,
    section,
    table,
    unbroken,
    value_cell,
    warning,
)
from sqsim.report.sections.measured_figures import errors_by_pressure, usage_over_seconds, usage_over_the_run

IDENT, TITLE = "measured", "Measured against simulated"

_JUDGED = {True: "yes", False: "no", None: "open"}
_TIMES = ("TTFT", "submission to end", "TPOT")


def held_against_measured(sources: Sources) -> list[Measured]:
    """Pair the page's simulated records with the real ones of their experiment; empty where there are none of one kind.

    InputError: the recorded schedule beside a real record is malformed.
    """
    records = [record for _, _, record in sources.records]
    if len({record.run.get("kind") == "real" for record in records}) < 2:
        return []
    names = [record.path.name or str(record.path) for record in records]
    alike = {name for name in names if names.count(name) > 1}
    return pair(
        [
            Run(
                str(record.path) if name in alike else name,
                read_record(record.path, allow_incomplete=True),
                record.path,
            )
            for name, record in zip(names, records, strict=True)
        ]
    )


def summary(found: Sequence[Measured]) -> list[str]:
    """Summarise for the answer: the verdicts of a single pair, else one line for each pair."""
    if len(found) == 1:
        return list(map(_signed, verdicts(found[0])))
    return [_signed(f"{each.what} ({_names(each)}): {verdicts(each)[2]}") for each in found]


def measured(found: Sequence[Measured]) -> str:
    """Write the section, one part for each pair."""
    lead = paragraph(
        "The same scenario on a real server and simulated, turn by turn and in time. Every error is that of the simulation, with its sign, "
        "in percent of the measured value."
    )
    if not all(account.same for each in found for account in each.accounting):
        lead += paragraph(
            "Where requests compete, their order decides what the cache holds, so real runs of one scenario differ from each other "
            "too: only uncontended runs must account for the same tokens."
        )
    return section(IDENT, TITLE, lead, *(_part(each, said=len(found) == 1) for each in found))


def _names(each: Measured) -> str:
    return f"measured {joined(each.real)}; simulated {each.simulated}"


def _signed(text: str) -> str:
    """Write a minus sign before a number instead of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def _part(each: Measured, said: bool) -> str:
    """Write one pair; `said`: the answer already states its verdicts."""
    says = "" if said else "".join(f"<li>{_verdict(line)}</li>" for line in verdicts(each))
    runs = (
        f'<p class="about">{badge("measured")} {counted(len(each.real), "run")}: {escape(", ".join(each.real))}. '
        f"{badge('simulated')} {escape(each.simulated)}.</p>"
    )
    parts = [f"<h3>{escape(each.what)}</h3>", runs, f'<ul class="found">{says}</ul>' if says else ""]
    parts += map(warning, (*each.unlike, *each.warnings))
    if each.timing is not None:
        parts += _timing(each, each.timing)
    return "".join(parts)


def _verdict(line: str) -> str:
    head, _, rest = _signed(line).partition(": ")
    return f"<strong>{unbroken(head)}:</strong> {unbroken(rest)}"


def _timing(each: Measured, timing: Timing) -> list[str]:
    label = f"{each.what}: errors of the simulation"
    parts = [_numbers(timing, label)]
    if timing.kv is not None:
        parts.append(grid([usage_over_seconds(timing.kv).html(), usage_over_the_run(timing.kv).html()]))
    parts.append(errors_by_pressure(timing.by_pressure).html())
    parts.append(
        details("All numbers of this figure", _bins(timing.by_pressure, f"{each.what}: errors by KV pressure"))
    )
    return parts


def _numbers(timing: Timing, label: str) -> str:
    head = [
        "",
        f"{badge('measured')}<br>mean",
        f"{badge('measured')}<br>standard deviation",
        badge("simulated"),
        "error (%)",
        "error (standard deviations)",
        f"within {escape(RULE)}",
    ]
    rows = [
        [
            _name(key),
            *(value_cell(value) for value in (held.mean, held.sd, held.simulated)),
            *(value_cell(value, signed=True) for value in (held.error_percent, held.error_sd)),
            _JUDGED[held.within],
        ]
        for key, held in timing.metrics.items()
        if held.mean is not None or held.simulated is not None
    ]
    return table(head, rows, f"{label}. Noise floor: {timing.noise_floor}", "data compare errors")


def _name(key: str) -> str:
    measure, known = TIMED[key], DEFINITIONS[key]
    return (
        f'<span title="{escape(f"{key}: {known.meaning}")}">{escape(measure.name)}</span> '
        f'<span class="unit">{escape(measure.unit)}</span>'
    )


def _bins(bins: Sequence[Bin], label: str) -> str:
    head = [
        "measured KV usage at submission",
        *(f"{name}:<br>{what}" for name in _TIMES for what in ("turns", "median (%)", "quartiles (%)")),
    ]
    rows = [
        [escape(one.name), *(cell for errors in (one.ttft, one.e2e, one.tpot) for cell in _cells(errors))]
        for one in bins
    ]
    return table(head, rows, label, "data compare")


def _cells(errors: Errors) -> list[str]:
    if not errors.turns:
        return [value_cell(0), "", ""]
    low, middle, high = (
        value_cell(value, signed=True)
        for value in (errors.p25_percent, errors.median_percent, errors.p75_percent)
    )
    return [value_cell(errors.turns), middle, f"{low} to {high}"]
