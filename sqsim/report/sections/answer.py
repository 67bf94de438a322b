# SPDX-License-Identifier: Apache-2.0
"""Answer in a few sentences, from the metrics of the first panel that compares variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqsim.report.data import kv_full, published
from sqsim.report.data.measures import (
    AUX_TOKENS,
    COMPLETED,
    KV_PEAK,
    OUTPUT_TOK_S,
    PEAK_TOKENS,
    READS_AUX,
    READS_MAIN,
    RELEASED,
    RETRACTIONS,
    RUN_TIME,
    TASK_P50,
    TPOT_P50,
    TTFT_P50,
    change,
    counted,
    duration,
    joined,
    number,
    percent,
    share,
    written,
)
from sqsim.report.data.sources import Panel, Point
from sqsim.report.sections.evicted_then_used import evicts, needed_later
from sqsim.report.sections.failures import failing
from sqsim.report.sections.first_sentence import first_sentence, interest
from sqsim.report.sections.headline import HEADS, best, elsewhere, headline, where
from sqsim.report.sections.side_by_side import baseline, comparison_concurrency

_MOST = 6
"""Sentences in the answer after the first."""

WORTH = 0.02
"""A smaller share of run time counts as no change: a stated rule, not a confidence bound."""


def _places(points: Sequence[Point], panel: Panel) -> str:
    """Write `from 32 tasks on` if every higher concurrency is included, else `at 8, 16 and 24 tasks`."""
    values = sorted({point.concurrency for point in points if point.concurrency is not None})
    if len(values) > 1 and values == panel.concurrencies[-len(values) :]:
        return f"from {counted(values[0], 'task')} on"
    return f"at {joined([str(value) for value in values])} {'task' if values == [1] else 'tasks'}"


def _cost(point: Point, base: Point | None) -> str | None:
    aux, main = number(point.metrics.get(AUX_TOKENS.key)), number(point.metrics.get("output_tokens"))
    if aux is None or main is None or main == 0:
        return None
    parts = [
        f"its aux threads generate {counted(point.metrics[AUX_TOKENS.key], 'token')}, {share(aux / main)} of main's output"
    ]
    reads_aux, reads = number(point.metrics.get(READS_AUX.key)), number(point.metrics.get(READS_MAIN.key))
    if reads_aux is not None and reads:
        parts.append(f"their KV reads are {share(reads_aux / reads)} of main's")
    if base is not None:
        feels = [
            f"main's median {name} changes from {duration(base.metrics.get(m.key))} to {duration(point.metrics.get(m.key))} ({percent(relative)})"
            for name, m in (("TTFT", TTFT_P50), ("TPOT", TPOT_P50))
            if (relative := change(point.metrics.get(m.key), base.metrics.get(m.key))) is not None
        ]
        parts += feels
    if evicts(point):
        parts.append(needed_later(point))
    return f"What {point.variant} costs{where(point)}: {', '.join(parts)}."


def _gains(panel: Panel, variant: str, base: Point) -> list[tuple[Point, float]]:
    theirs = {point.concurrency: point for point in panel.of(base.variant)}
    return [
        (point, gain)
        for point in panel.of(variant)
        if (other := theirs.get(point.concurrency)) is not None
        and (gain := change(point.metrics.get(RUN_TIME.key), other.metrics.get(RUN_TIME.key))) is not None
    ]


def _worth(panel: Panel, point: Point, base: Point) -> str | None:
    gains = _gains(panel, point.variant, base)
    if not gains:
        return None
    better = [pair for pair in gains if pair[1] <= -WORTH]
    if not better:
        low = min(gains, key=lambda pair: pair[1])
        return (
            f"Is it worth it? Not here: {point.variant} never shortens the run by {share(WORTH)} or more against {base.variant} "
            f"(best {percent(low[1])}{where(low[0])})."
        )
    top = min(better, key=lambda pair: pair[1])
    text = f"Is it worth it? {point.variant} shortens the run against {base.variant}"
    if top[0].concurrency is None or len(gains) == 1:
        text += f" by {share(-top[1])}{where(top[0]) or ' under this load'}"
    else:
        text += f" {_places([pair[0] for pair in better], panel)}, most at {counted(top[0].concurrency, 'task')} ({percent(top[1])})"
    others = [pair for pair in gains if pair not in better and pair[0].concurrency is not None]
    if others:
        least, most = (percent(pick(pair[1] for pair in others)) for pick in (min, max))
        span = least if least == most else f"{least} to {most}"
        text += f"; {_places([pair[0] for pair in others], panel)} it does not ({span})"
    rivals = [
        (variant, gain)
        for variant in panel.variants
        if variant not in (point.variant, base.variant)
        for rival, gain in _gains(panel, variant, base)
        if rival.concurrency == top[0].concurrency and not rival.is_oracle
    ]
    if rivals:
        rivals.sort(key=lambda pair: pair[1])
        text += f". The others{where(top[0])}: {', '.join(f'{name} {percent(gain)}' for name, gain in rivals)}"
    return text + "."


def _against_paper(point: Point, base: Point, panel: Panel) -> str | None:
    oracle = next((one for one in panel.at(point.concurrency) if one.is_oracle), None)
    parts = []
    for name, measure, known in (
        ("mean peak tokens a task", PEAK_TOKENS, published.PEAK_TOKENS),
        ("main's KV reads", READS_MAIN, published.KV_READS),
    ):
        relative = change(point.metrics.get(measure.key), base.metrics.get(measure.key))
        if relative is not None:
            bound = (
                None
                if oracle is None
                else change(oracle.metrics.get(measure.key), base.metrics.get(measure.key))
            )
            most = "" if bound is None else f"; the oracle {percent(bound)}"
            parts.append(f"{name} {percent(relative)} (published {known.change}{most})")
    mine, theirs = best(panel.of(point.variant), OUTPUT_TOK_S), best(panel.of(base.variant), OUTPUT_TOK_S)
    if mine is not None and theirs is not None:
        relative = change(mine.metrics[OUTPUT_TOK_S.key], theirs.metrics[OUTPUT_TOK_S.key])
        parts.append(
            f"best throughput {percent(relative)} (published {published.PUBLISHED['output_tok_s'].change})"
        )
    if not parts:
        return None
    return f"Against the paper, {point.variant}{where(point)} for its SideQuest: {', '.join(parts)}."


def _single(point: Point) -> list[str]:
    m = point.metrics
    total = counted(m.get("tasks_total"), "task")
    text = f"{point.variant}: {written(m.get(COMPLETED.key))} of {total} completed in {written(m.get(RUN_TIME.key))} s"
    feels = f"task time {duration(m.get(TASK_P50.key))}, TTFT {duration(m.get(TTFT_P50.key))}, TPOT {duration(m.get(TPOT_P50.key))}"
    lines = [f"{text}, {written(m.get(OUTPUT_TOK_S.key))} main output tok/s. Medians: {feels}."]
    state = kv_full.is_full(point)
    if state is not None:
        lines.append(
            f"KV {'fills' if state else 'does not fill'}: its peak is {share(number(m.get(KV_PEAK.key)))} of {written(m.get('kv_capacity_tokens'))} tokens; "
            f"requests retracted {written(m.get(RETRACTIONS.key))}, idle sessions released {written(m.get(RELEASED.key))}."
        )
    else:
        lines.append(f"{KV_PEAK.name} is not available.")
    cost = _cost(point, None)
    return [*lines, *([cost] if cost and number(m.get(AUX_TOKENS.key)) else [])]


def _own(panel: Panel) -> list[str | None]:
    """Write all sentences on the panel that is answered, the most important first."""
    if len(panel.points) == 1:
        return list[str | None](_single(panel.points[0]))
    points = panel.at(comparison_concurrency(panel))
    base = baseline(points)
    wanted = best(interest(panel), OUTPUT_TOK_S)
    sidequests = [p for p in interest(panel) if p in points and p.policy == "sidequest"]
    # The variant of the first sentence, where it ran under this load.
    point = next(
        (p for p in sidequests if wanted and p.variant == wanted.variant), next(iter(sidequests), None)
    )
    lines: list[str | None] = [*headline(panel, base)]
    if point is not None:
        lines += [None if base is None else _worth(panel, point, base), _cost(point, base)]
        if base is not None and published.applies(panel):
            lines.append(_against_paper(point, base, panel))
    return lines


class Answer(NamedTuple):
    """Answer of the page. `about` names its panel, where there are several; `first` comes before `lines`.

    `left[ident]` are the sentences that do not fit here and go to a panel's own section.
    """

    about: str | None
    first: str | None
    lines: list[str]
    left: dict[str, list[str]]


def _failed(panels: Sequence[Panel], own: Panel) -> list[str]:
    """Write the failures of all panels as one item; the panel that is answered needs no title."""
    said: dict[str, list[str]] = {}
    for panel in panels:
        if (text := failing(panel)) is not None:
            said.setdefault(text, []).append(panel.title)
    texts = [text if titles == [own.title] else f"{'; '.join(titles)}: {text}" for text, titles in said.items()]
    return [" ".join(texts)] if texts else []


def answer(panels: Sequence[Panel]) -> Answer:
    """Answer in one sentence on concurrency and at most six more, on the first panel that compares variants."""
    panel = next(
        (p for kind in ("concurrency", "single") for p in panels if p.kind == kind and len(p.variants) > 1),
        next((p for p in panels if p.points), None),
    )
    if panel is None:
        return Answer(None, "Nothing was run, so there is nothing to answer.", [], {})
    own = [line for line in _own(panel) if line is not None]
    heads = own[:1] if len(panel.points) == 1 else [line for line in own if line.startswith(HEADS)]
    said = [*heads, *_failed(panels, panel), *(line for line in own if line not in heads)]
    room = _MOST - len(said)
    left: dict[str, list[str]] = {}
    for other in panels:
        if other is panel or other.kind not in ("concurrency", "single") or (text := elsewhere(other)) is None:
            continue
        if room > 0:
            said.append(f"{other.title}: {text[0].lower()}{text[1:]}")
            room -= 1
        else:
            left[other.ident] = [text]
    left[panel.ident] = said[_MOST:]
    first = first_sentence(panel)
    if not said and first is None:
        first = "The metrics that the answer rests on are not available."
    return Answer(panel.title if len(panels) > 1 else None, first, said[:_MOST], left)
