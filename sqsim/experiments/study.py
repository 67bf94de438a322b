# SPDX-License-Identifier: Apache-2.0
"""A study: panels of runs that one page compares. `reports/demo/study.yaml` shows every key.

A panel takes a scenario, variants (named sets of changes) and lists of values, and runs every combination. Points run in
parallel on this machine's cores; a run's record depends on its scenario alone, so the number of workers changes only the
time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqsim.base.directories import check_place, whole_directory
from sqsim.base.strict_yaml import KeyPath, show
from sqsim.base.workers import Progress, Workers
from sqsim.errors import InputError, RecordError, RunError, SqsimError
from sqsim.experiments.points import content_key
from sqsim.experiments.study_file import PanelFile, Point, Study, StudyFile
from sqsim.record.files import write_record
from sqsim.record.metrics import metrics
from sqsim.record.regret import regret_tokens
from sqsim.record.schema import RunRecord
from sqsim.scenario.labels import labels
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.simulate import simulate

SCHEMA = "sqsim-study/1"

_FILL_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class _Done:
    """The result kept of a run after its record is written or dropped; regret is computed from `held`."""

    metrics: dict[str, Any]
    held: RunRecord


def run_study(
    file: Path, directory: Path, *, jobs: int, overwrite: bool, progress: Progress | None = None
) -> Path:
    """Run a study, write `study.json` and the kept records to `directory`, and return the path of study.json.

    ScenarioError, RecordError and RunError as for single runs; an error of a point's run names the point.
    """
    _make_room(directory, overwrite)
    study = Study(file)
    study.points(study.panels)  # faults of any point are reported before the first run
    with whole_directory(directory, overwrite) as fresh:
        filled = _fill(study, jobs)
        points = study.points(filled)
        content = _content(study.file, filled, points, _run_points(points, fresh, jobs, progress))
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
        (fresh / "study.json").write_text(text)
    return directory / "study.json"


def _make_room(directory: Path, overwrite: bool) -> None:
    check_place(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return
    if not (directory / "study.json").is_file():
        raise RecordError(f"{directory}: exists and is not a study; choose another --output-dir")
    if not overwrite:
        raise RecordError(f"{directory}: holds a study; choose another --output-dir, or add --overwrite")


def _fill(study: Study, jobs: int) -> list[PanelFile]:
    """Give each panel the capacity that its `fill` asks for."""
    panels = list(study.panels)
    asked = [index for index, panel in enumerate(panels) if panel.fill is not None]
    for place, result in Workers(jobs).each(_filled, [(study, panels[index]) for index in asked]):
        if isinstance(result, SqsimError):
            raise result
        panels[asked[place]] = result
    return panels


def _run_points(points: list[Point], directory: Path, jobs: int, progress: Progress | None) -> list[_Done]:
    """Run each point; points of several panels that ask for the same run share it."""
    shared: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        shared.setdefault(content_key(point.scenario), []).append(index)
    groups = list(shared.values())
    runs = [[points[index] for index in group] for group in groups]
    done: dict[int, _Done] = {}
    for place, result in Workers(jobs).each(partial(_run, directory), runs, progress):
        if isinstance(result, SqsimError):
            raise _named(runs[place][0], result) from result
        done |= dict.fromkeys(groups[place], result)
    return [done[index] for index in range(len(points))]


def _filled(asked: tuple[Study, PanelFile]) -> PanelFile:
    """Find the capacity that a panel asks for, by bisection on a peak that falls as capacity grows."""
    study, panel = asked
    assert panel.fill is not None, "only panels with a fill are given"
    index = study.index[panel.id]
    at = [(key, value, ("panels", index, "fill", "at", key)) for key, value in panel.fill.at.items()]
    changes = [*study.variant(panel.fill.variant), *at]
    path: KeyPath = ("panels", index, "fill", "kv_usage_peak")

    def peak(capacity: int | None) -> tuple[float, int]:
        more = [] if capacity is None else [("engine.kv_capacity", capacity, path)]
        found = metrics(simulate(study.scenario(panel, [*changes, *more])))
        usage, tokens = found["kv_usage_peak"], found["kv_capacity_tokens"]
        assert isinstance(tokens, int), "a simulated run knows its capacity"
        return usage if isinstance(usage, float) else 0.0, tokens

    wanted = panel.fill.kv_usage_peak
    usage, capacity = peak(None)
    page = study.scenario(panel, changes).engine.page_size
    low, high = page, capacity
    best, error = capacity, abs(usage - wanted)
    guess = int(usage * capacity / wanted)
    for _ in range(10):
        if error < 5e-4 or not low < guess < high:
            break
        usage, _unused = peak(guess)
        if abs(usage - wanted) < error:
            best, error = guess, abs(usage - wanted)
        low, high = (guess, high) if usage > wanted else (low, guess)
        guess = (max(low, guess // 2) + min(high, guess * 2)) // 2 if low == page else (low + high) // 2
    if error > _FILL_TOLERANCE:
        raise study.wrong(
            path,
            f"no capacity was found at which {panel.fill.variant} peaks at {wanted}; "
            f"the nearest is {best} tokens, {error:.3f} off; ask for another peak, or a higher load in fill.at",
        )
    return panel.model_copy(update={"set": {**panel.set, "engine.kv_capacity": best}})


def _run(directory: Path, points: list[Point]) -> _Done:
    """Run the one scenario of these points."""
    record = simulate(points[0].scenario)
    for point in points:
        if point.kept is not None:
            write_record(record, directory / point.kept)
    nothing = record.engine.slice(0, 0)
    held = RunRecord(run=record.run, tasks=record.tasks, turns=record.turns, engine=nothing)
    return _Done(metrics(record), held)


def _named(point: Point, error: SqsimError) -> SqsimError:
    """Add the point's name to an error of its run."""
    values = ", ".join(f"{key} {show(value)}" for key, value in point.values)
    where = f"panel {point.panel.id}, {point.variant}{values and f', {values}'}"
    kind = InputError if isinstance(error, InputError) else RunError
    return kind(f"{error} (in {where})")


def _content(
    study: StudyFile, panels: list[PanelFile], points: list[Point], done: list[_Done]
) -> dict[str, Any]:
    oracles = {
        (point.panel.id, point.scenario.engine.cache, _place(point)): result.held
        for point, result in zip(points, done, strict=True)
        if point.scenario.policy.hindsight
    }

    def entry(point: Point, result: _Done) -> dict[str, Any]:
        oracle = next(
            (
                held
                for (panel, _, place), held in oracles.items()
                if (panel, place) == (point.panel.id, _place(point))
            ),
            None,
        )
        regret = None if oracle is None else regret_tokens(result.held, oracle)
        return {
            "labels": {**dict(point.values), "variant": point.variant, **labels(point.scenario)},
            "metrics": {**result.metrics, "regret_tokens": regret},
            "record": point.kept,
        }

    return {
        "schema": SCHEMA,
        "title": study.title,
        "asked": study.asked,
        "commands": study.commands,
        "panels": [
            {
                **panel.model_dump(include={"id", "kind", "title", "note", "evidence", "published"}),
                **_system([point.scenario for point in points if point.panel.id == panel.id]),
                "points": [
                    entry(point, result)
                    for point, result in zip(points, done, strict=True)
                    if point.panel.id == panel.id
                ],
            }
            for panel in panels
        ],
    }


def _place(point: Point) -> tuple[tuple[str, Any], ...]:
    """Return the values that place a point in its panel, without keys of its policy."""
    return tuple((key, value) for key, value in point.values if not key.startswith("policy."))


def _system(scenarios: list[Scenario]) -> dict[str, str | None]:
    """Return model and GPU of a panel; None where its points do not share one."""
    models, gpus = {each.model for each in scenarios}, {each.engine.gpu for each in scenarios}
    return {
        "model": models.pop() if len(models) == 1 else None,
        "gpu": gpus.pop() if len(gpus) == 1 else None,
    }
