# SPDX-License-Identifier: Apache-2.0
"""Verdicts of a comparison of measured and simulated runs, in sentences for the command line and the page."""

from __future__ import annotations

from collections.abc import Sequence

from sqsim.comparison.accounting import Accounting
from sqsim.comparison.measured import LockStep, Measured, Timing
from sqsim.comparison.noise import RULE

_NOUNS = {"turns": "turns", "aux": "aux threads", "evictions": "evictions"}
_HEAD = {
    "run_time_s": "run time",
    "output_tok_s": "throughput",
    "ttft_s_p50": "median TTFT",
    "tpot_s_p50": "median TPOT",
}


def verdicts(found: Measured) -> list[str]:
    """Write the verdicts on accounting, lock-step and timing, one or two sentences for each."""
    lines = [accounting_verdict(found), lockstep_verdict(found)]
    if found.timing is None:
        return [*lines, f"Timing is not compared: {found.timing_refused}."]
    return [*lines, timing_verdict(found.timing), kv_verdict(found.timing)]


def accounting_verdict(found: Measured) -> str:
    """State how the simulation's accounts differ from the real runs', and how the real runs differ among themselves."""
    accounts = found.accounting
    if not any(table.rows or table.rows_in_one for each in accounts for table in each.tables.values()):
        return "Token accounting: nothing to compare, as no turn was run."
    if all(each.same for each in accounts):
        return f"Token accounting: the same in {_rows(accounts)}."
    parts = [text for name, noun in _NOUNS.items() if (text := _differing(accounts, name, noun))]
    by_last_token = [each.by_last_token for each in accounts]
    text = f"Token accounting: {', '.join(parts)}"
    if max(by_last_token):
        text += f"; {_span(by_last_token)} turns by the last token of an answer only (RULES.md, rule 27)"
    if found.turns_differing_among_real:
        text += f"; real runs among themselves differ in {_span(found.turns_differing_among_real)} turns"
    return f"{text}."


def _rows(accounts: list[Accounting]) -> str:
    counts = {name: sum(each.tables[name].rows for each in accounts) for name in _NOUNS}
    shown = [f"{count:,} {_NOUNS[name]}" for name, count in counts.items() if count or name == "turns"]
    return ", ".join(shown) + (f" of {len(accounts)} real runs" if len(accounts) > 1 else "")


def _differing(accounts: list[Accounting], name: str, noun: str) -> str | None:
    tables = [each.tables[name] for each in accounts]
    if all(table.same for table in tables):
        return None
    columns = [column for column in tables[0].by_column if any(table.by_column[column] for table in tables)]
    text = f"{_span([table.rows_differing for table in tables])} of {_span([table.rows for table in tables])} {noun} differ"
    text += f" ({', '.join(columns)})" if columns else ""
    alone = [table.rows_in_one for table in tables]
    return f"{text} and {_span(alone)} are in one run only" if max(alone) else text


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def lockstep_verdict(found: Measured) -> str:
    """State whether the scheduler repeats the recorded schedules."""
    without = (
        f"{', '.join(found.without_schedule)} {'has' if len(found.without_schedule) == 1 else 'have'} no schedule/ in the record's directory"
        if found.without_schedule
        else ""
    )
    if not found.lockstep:
        return f"Lock-step: not checked, {without} (sqreal run writes it where the server has a step log)."
    batches, retractions = (
        sum(getattr(each, name) for each in found.lockstep) for name in ("batches", "retractions")
    )
    if found.holds_in_lockstep:
        text = f"Lock-step: no difference in {batches:,} recorded batches with {retractions:,} retractions"
    else:
        text = "; ".join(_apart(each) for each in found.lockstep if each.differing)
        text = f"Lock-step: {text}"
    return f"{text}; {without}." if without else f"{text}."


def _apart(one: LockStep) -> str:
    where = f", compared up to line {one.stopped_at:,}" if one.stopped_at is not None else ""
    return f"{one.run} differs in {one.differing:,} fields{where}, the first: {one.differences[0]}"


def timing_verdict(timing: Timing) -> str:
    """State the most important errors, and how many numbers keep the rule."""
    parts = [
        f"{name} {held.error_percent:+.1f} %"
        for key, name in _HEAD.items()
        if (held := timing.metrics[key]).error_percent is not None
    ]
    judged = [
        held.within for held in timing.metrics.values() if held.mean is not None and held.simulated is not None
    ]
    said = ", ".join(parts) or "no time is known in all runs"
    rest = f"{judged.count(True)} of {len(judged)} numbers within {RULE}"
    if judged.count(None):
        rest += f", {judged.count(None)} open"
    return f"Timing, simulated against measured: {said}; {rest}. Noise floor: {timing.noise_floor}."


def kv_verdict(timing: Timing) -> str:
    """State the distance between the curves of KV usage."""
    if timing.kv is None:
        return "KV usage: not known in every run, so the curves are not compared."
    mean, floor = timing.metrics["kv_usage_mean"], timing.kv.between_measured
    error = "" if mean.error_percent is None else f"mean {mean.error_percent:+.1f} % against measured, and "
    between = "" if floor is None else f"; measured runs among themselves {floor.normalised:.1f} %"
    return (
        f"KV usage: {error}curves {timing.kv.mean.normalised:.1f} % of capacity apart on average over normalised time, "
        f"{timing.kv.mean.absolute:.1f} % over seconds{between}."
    )
