# SPDX-License-Identifier: Apache-2.0
"""Time lines of a few tasks: main steps, tool waits, aux threads and evictions, for the same tasks in every kept run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqsim.report.data.measures import counted, written
from sqsim.report.data.record_view import RecordView, numbers
from sqsim.report.data.sources import Sources
from sqsim.report.html.figure import Figure, Trace, axis, plain, rounded
from sqsim.report.html.markup import Choice, chooser, missing
from sqsim.report.sections.evictions import reason

Row = dict[str, Any]


class _Phase(NamedTuple):
    """Phase of a main step, between two columns of the turns table."""

    name: str
    start: str
    end: str
    colour: str
    pattern: str


_PHASES = (
    _Phase("waits in queue", "submit_s", "admit_s", "#d9534f", "x"),
    _Phase("prefill", "admit_s", "first_token_s", "#e8a33d", ""),
    _Phase("decode", "first_token_s", "end_s", "#274060", ""),
    _Phase("waits for tools", "end_s", "tool_end_s", "#dfe3e8", ""),
)
_AUX_COLOURS = {"applied": "#c1502e", "late": "#e59a7f", "cancelled": "#f0c9ba", "malformed": "#8c2d19"}
_USER, _USER_COLOUR = "waits for the user", "#b5d3c0"
_SHORTEST_S = 1e-6  # a smaller gap is rounding
_TASKS = 4


class _Chosen(NamedTuple):
    task: str
    why: str


def _most(view: RecordView, table: str) -> str | None:
    rows = getattr(view, table)
    if not rows.num_rows:
        return None
    counts = rows.group_by("task").aggregate([("task", "count")])
    best = counts.sort_by([("task_count", "descending"), ("task", "ascending")])
    return str(best["task"][0].as_py())


def choose_tasks(view: RecordView) -> list[_Chosen]:
    """Choose at most four tasks that show different things; quartiles fill up where one task is chosen twice."""
    if not view.tasks.num_rows:
        return []
    length = numbers(view.tasks, "end_s") - numbers(view.tasks, "start_s")
    order = np.argsort(length, kind="stable")
    names = view.tasks["task"].to_pylist()
    retracted = view.turns.filter(pc.greater(view.turns["retractions"], 0))
    wanted = [
        (names[int(order[len(order) // 2])], "median time"),
        (_most(view, "evictions"), "most evictions"),
        (str(retracted["task"][0].as_py()) if retracted.num_rows else None, "was retracted"),
        (names[int(order[-1])], "longest"),
        (names[int(order[len(order) // 4])], "lower quartile of time"),
        (names[int(order[3 * len(order) // 4])], "upper quartile of time"),
    ]
    chosen: dict[str, str] = {}
    for task, why in wanted:
        if task is not None:
            chosen[task] = f"{chosen[task]}, {why}" if task in chosen else why
    return [_Chosen(task, why) for task, why in list(chosen.items())[:_TASKS]]


def _short(task: str) -> str:
    return task if len(task) <= 20 else f"{task[:8]}…{task[-10:]}"


class _Lanes:
    """Lanes of one figure, and the bars on them."""

    def __init__(self, view: RecordView, tasks: list[_Chosen]) -> None:
        self.view = view
        present = set(view.tasks["task"].to_pylist())
        self.tasks = [chosen for chosen in tasks if chosen.task in present]
        labels = {chosen.task: f"{place + 1}. {_short(chosen.task)}" for place, chosen in enumerate(self.tasks)}
        self.main = {task: f"{plain(label)}" for task, label in labels.items()}
        self.aux = {task: f"aux of {place + 1}" for place, task in enumerate(labels)}
        starts = dict(zip(view.tasks["task"].to_pylist(), view.tasks["start_s"].to_pylist(), strict=True))
        self.start = {task: float(starts[task]) for task in labels}

    def rows(self, table: str) -> list[Row]:
        rows = getattr(self.view, table)
        return list(
            rows.filter(
                pc.is_in(rows["task"], value_set=pa.array(list(self.start), type=pa.string()))
            ).to_pylist()
        )

    def bar(
        self, name: str, colour: str, pattern: str, bars: list[tuple[str, str, float, float, str]]
    ) -> Trace:
        """Draw one kind of bar: (task, lane, start, end, hover) each; times in the run's seconds."""
        return {
            "type": "bar", "orientation": "h", "name": name,
            "y": [lane for _, lane, *_ in bars],
            "base": rounded([start - self.start[task] for task, _, start, *_ in bars]),
            "x": rounded([end - start for _, _, start, end, _ in bars]),
            "text": [hover for *_, hover in bars], "textposition": "none", "hoverinfo": "text",
            "marker": {"color": colour, "line": {"width": 0}, "pattern": {"shape": pattern, "fgcolor": "#ffffff", "size": 5, "fillmode": "overlay"}},
        }  # fmt: skip


def _turn_hover(row: Row, phase: _Phase, start: float, end: float) -> str:
    more = {
        "prefill": f"{row['computed_tokens']:,} computed, {row['cached_tokens']:,} cached tokens, {row['prefill_chunks']} chunks",
        "decode": f"{row['output_tokens']:,} tokens; {row['resident_tokens_after']:,} resident after",
        "waits in queue": f"retracted {row['retractions']} times" if row["retractions"] else "",
    }.get(phase.name, "")
    return f"step {row['turn']}: <b>{phase.name}</b> {written(end - start)} s" + (f"<br>{more}" if more else "")


def _user_waits(lanes: _Lanes, turns: list[Row]) -> list[tuple[str, str, float, float, str]]:
    """Draw gaps between the end of a step's waits and the next step: a user who reads and writes."""
    bars = []
    turns = sorted(turns, key=lambda row: (row["task"], row["turn"]))
    for row, following in pairwise(turns):
        start = row["end_s"] if row["tool_end_s"] is None else row["tool_end_s"]
        if row["task"] != following["task"] or start is None or following["submit_s"] - start < _SHORTEST_S:
            continue
        end = following["submit_s"]
        hover = f"after step {row['turn']}: <b>{_USER}</b> {written(end - start)} s"
        bars.append((row["task"], lanes.main[row["task"]], start, end, hover))
    return bars


def _traces(lanes: _Lanes) -> list[Trace]:
    turns, aux, evictions = (lanes.rows(table) for table in ("turns", "aux", "evictions"))
    traces: list[Trace] = []
    for phase in _PHASES:
        bars = [
            (row["task"], lanes.main[row["task"]], start, end, _turn_hover(row, phase, start, end))
            for row in turns
            if (start := row[phase.start]) is not None and (end := row[phase.end]) is not None and end > start
        ]
        if bars:
            traces.append(lanes.bar(phase.name, phase.colour, phase.pattern, bars))
    if waits := _user_waits(lanes, turns):
        traces.append(lanes.bar(_USER, _USER_COLOUR, ".", waits))
    for state, colour in _AUX_COLOURS.items():
        bars = [
            (
                row["task"], lanes.aux[row["task"]], row["submit_s"], row["end_s"],
                (f"<b>aux thread, {state}</b>, spawned before step {row['spawn_turn']}: {written(row['end_s'] - row['submit_s'])} s"
                f"<br>{row['output_tokens']:,} tokens; named cursors {plain(row['named'])}"),
            )
            for row in aux
            if row["state"] == state and row["end_s"] is not None
        ]  # fmt: skip
        if bars:
            traces.append(lanes.bar(f"aux, {state}", colour, "", bars))
    for name, symbol, colour, rows in (
        ("eviction", "line-ns-open", "#009e73", [row for row in evictions if not row["used_later"]]),
        ("eviction, needed later", "x", "#d0021b", [row for row in evictions if row["used_later"]]),
    ):
        if rows:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": name,
                    "x": rounded([row["time_s"] - lanes.start[row["task"]] for row in rows]),
                    "y": [lanes.main[row["task"]] for row in rows],
                    "text": [
                        f"<b>cursor {row['cursor']} evicted</b> before step {row['turn']}: {row['tokens']:,} tokens, by {plain(reason(row['by']))}"
                        for row in rows
                    ],
                    "hoverinfo": "text",
                    "marker": {"symbol": symbol, "size": 24 if symbol.startswith("line") else 10, "color": colour, "line": {"width": 2.5, "color": colour}},
                }
            )  # fmt: skip
    return traces


def _figure(view: RecordView, tasks: list[_Chosen], name: str) -> str:
    lanes = _Lanes(view, tasks)
    if not lanes.tasks:
        return missing(f"{name}: this run has none of the tasks shown for the other runs.")
    with_aux = {row["task"] for row in lanes.rows("aux")}
    order = [
        lane
        for chosen in lanes.tasks
        for lane in [lanes.main[chosen.task], *([lanes.aux[chosen.task]] if chosen.task in with_aux else [])]
    ]
    traces = _traces(lanes)
    ends = [end for end in numbers(view.tasks, "end_s") if math.isfinite(end)]
    layout = {
        "xaxis": axis("time since the task's own arrival (s)", rangemode="tozero"),
        "yaxis": axis(
            "",
            type="category",
            categoryorder="array",
            categoryarray=order[::-1],
            range=[-0.6, len(order) - 0.4],
        ),
        "barmode": "overlay",
        "bargap": 0.35,
        "showlegend": True,
    }
    turns, evictions = len(lanes.rows("turns")), len(lanes.rows("evictions"))
    summary = (
        f"{name}: {counted(len(lanes.tasks), 'task')} with {counted(turns, 'main step')}, {counted(len(lanes.rows('aux')), 'aux thread')} and {counted(evictions, 'eviction')}; "
        f"the run's last task ends at {written(max(ends, default=0.0))} s."
    )
    whose = "; ".join(f"{place + 1} ({chosen.task}): {chosen.why}" for place, chosen in enumerate(lanes.tasks))
    user = any(trace["name"] == _USER for trace in traces)
    whose_time = (
        "grey is the tools' time and green the user's, which no policy changes"
        if user
        else "grey is the tools' time, which no policy changes"
    )
    caption = f"Each task starts at 0. Red is waiting for memory; {whose_time}. Tasks: {whose}."
    return Figure("Time lines", caption, summary, traces, layout, height=150 + 42 * len(order)).html()


def timelines(sources: Sources, start: int) -> str:
    """Draw the same few tasks in each kept record; they are chosen in the record shown first."""
    records = sources.records
    if not records:
        return missing("No source keeps a full record.", "sqsim report RECORD_DIRECTORY... -o page.html")
    choices, chosen_in = [], dict[str, list[_Chosen]]()
    first_panel, _, first = records[min(start, len(records) - 1)]
    chosen_in[first_panel.ident] = choose_tasks(first)
    for panel, point, record in records:
        # Panels may use other traces: each chooses once, so that a task can be followed from run to run.
        tasks = chosen_in.setdefault(panel.ident, choose_tasks(record))
        name = sources.name(panel, point)
        choices.append(Choice(name, _figure(record, tasks, name)))
    return chooser("timeline-record", "Run shown", choices, min(start, len(choices) - 1))
