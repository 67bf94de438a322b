# SPDX-License-Identifier: Apache-2.0
"""Group records that may be compared, and name the groups and their runs.

Two runs can be compared only on the same tasks, model, GPU and kind of load. Runs that differ in anything else share
a panel, and the difference becomes part of their names. Measured and simulated runs get separate panels; the section
of measured.py states how far they are apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from sqsim.report.data.measures import counted

Run = Mapping[str, Any]

_LOADS = {
    "concurrency": "a number of tasks at a time",
    "rate_per_s": "arrivals at a rate",
    "as_recorded": "arrivals as recorded",
}
_SYNTHETIC_FRAMES = "sqsim synth frames"
_SPLIT = {"traces", "tasks", "resample", "model", "engine.gpu", "load.concurrency", "load.as_recorded"}
"""Scenario keys that split panels, are equal within a panel, or are an axis."""
_NAMED = {"policy.name", "policy.after_eviction", "engine.cache"}
"""Scenario keys that every variant's name holds already."""


class Conditions(NamedTuple):
    """Conditions that all runs of a panel share. `traces` are their sha256, or their paths where that is unknown."""

    traces: tuple[str, ...]
    tasks: str
    resample: bool
    model: str
    gpu: str
    load: str
    kind: str  # measured or simulated


def conditions(run: Run) -> Conditions:
    """Read the conditions of a run from its run.json."""
    scenario = run.get("scenario") or {}
    traces = {str(one.get("sha256") or one.get("path")) for one in run.get("traces") or []}
    load = scenario.get("load") or {}
    return Conditions(
        traces=tuple(sorted(traces)),
        tasks=str(scenario.get("tasks", "all")),
        resample=bool(scenario.get("resample", False)),
        model=str(scenario.get("model", "a model")),
        gpu=str((scenario.get("engine") or {}).get("gpu", "a GPU")),
        load=next((key for key in _LOADS if key in load), "load not stated"),
        kind="measured" if run.get("kind") == "real" else "simulated",
    )


def _title(shared: Conditions, run: Run, at_a_time: Sequence[int]) -> str:
    names = ", ".join(PurePosixPath(str(one.get("path"))).name for one in run.get("traces") or []) or "a trace"
    if shared.tasks == "all":
        tasks = f"All tasks of {names}"
    elif shared.resample:
        tasks = f"{counted(_number(shared.tasks), 'task')} drawn from {names}"
    else:
        tasks = f"{counted(_number(shared.tasks), 'task')} of {names}"
    if shared.load == "concurrency" and at_a_time:
        low, high = min(at_a_time), max(at_a_time)
        load = f"{low} at a time" if low == high else f"{low} to {high} at a time"
    else:
        load = _LOADS.get(shared.load, shared.load)
    return f"{tasks} · {shared.model} on {shared.gpu} · {load}"


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def titles(groups: Sequence[tuple[Conditions, Run, Sequence[int]]]) -> list[str]:
    """Title each group, given as its conditions, one of its runs, and its concurrencies.

    Traces of one name are told apart by their content's digest. On a page with measured and simulated runs, each title
    states which of the two the group is.
    """
    both = len({shared.kind for shared, *_ in groups}) > 1
    plain = [_title(*group) + (f" · {group[0].kind}" if both else "") for group in groups]
    exact = [
        f"{title} · traces {', '.join(one[:12] for one in shared.traces)}" if plain.count(title) > 1 else title
        for title, (shared, _, _) in zip(plain, groups, strict=True)
    ]
    return [f"{title} · {place + 1}" if exact.count(title) > 1 else title for place, title in enumerate(exact)]


def on_synthetic_frames(run: Run) -> bool:
    """Whether all traces were made by the generator of FRAMES-like tasks."""
    traces = run.get("traces") or []
    return bool(traces) and all(str(one.get("source", "")).startswith(_SYNTHETIC_FRAMES) for one in traces)


class Named(NamedTuple):
    """Run to be named: its variant, its place in the panel, and the keys that may tell it from another.

    `own` is used only for runs that no other key tells apart.
    """

    variant: str
    place: Hashable
    facts: Mapping[str, Any]
    rest: Mapping[str, Any]
    own: str


def _differing(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = sorted({key for one in facts for key in one})
    return [key for key in keys if len({str(one.get(key)) for one in facts}) > 1]


def _written(key: str, facts: Mapping[str, Any]) -> str:
    name = key
    for part in ("policy.", "engine.", "load."):
        name = name.removeprefix(part)
    return f"{name} = {facts.get(key, 'unset')}"


def names(runs: Sequence[Named]) -> list[str]:
    """Name each run uniquely, by its variant and every key in which it differs from the others.

    A policy's own keys are compared within the variant, all others (seed, capacity, profile...) among all runs. Two
    runs with the same name and place also get their other known keys and, as a last resort, their own name.
    """
    common = [{k: v for k, v in run.facts.items() if not k.startswith("policy.")} for run in runs]
    among_all = [key for key in _differing(common) if key not in _SPLIT | _NAMED]
    parts: list[list[str]] = []
    for run in runs:
        alike = [other.facts for other in runs if other.variant == run.variant]
        within = [key for key in _differing(alike) if key not in _SPLIT | _NAMED and key not in among_all]
        parts.append([_written(key, run.facts) for key in [*within, *among_all]])

    for alike_runs in _alike(runs, parts):
        keys = _differing([runs[number].rest for number in alike_runs])
        for number in alike_runs:
            parts[number] += [_written(key, runs[number].rest) for key in keys]
    for alike_runs in _alike(runs, parts):
        for number in alike_runs:
            parts[number].append(runs[number].own)
    return [
        f"{run.variant} ({', '.join(one)})" if one else run.variant
        for run, one in zip(runs, parts, strict=True)
    ]


def _alike(runs: Sequence[Named], parts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Find the runs, by number, that would share a name at one place."""
    groups: dict[Hashable, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault((run.variant, tuple(parts[number]), run.place), []).append(number)
    return [group for group in groups.values() if len(group) > 1]
