"""A study: panels of runs that one page compares. `reports/demo/study.yaml` shows every key.

A panel takes a scenario, some variants (sets of changes with a name) and grids of values, and runs every
combination. Points run side by side on this machine's cores; a run's record depends on its scenario alone,
so the number of workers changes nothing but the time.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import joblib
from pydantic import Field, ValidationError

from sqsim.errors import RecordError, RunError, ScenarioError
from sqsim.metrics import metrics, regret_tokens
from sqsim.record import RunRecord, write_record
from sqsim.scenario import Scenario, load_scenario
from sqsim.scenario_parts import ClosedLoad, NoEviction, Part, SideQuest
from sqsim.simulate import simulate
from sqsim.strict_yaml import dotted, parse

SCHEMA = "sqsim-study/1"

Changes = dict[str, Any]
"""Scenario keys, dotted, and their values: what `--set` takes."""

Progress = Callable[[int, int], None]
"""Points done, of how many."""


class Fill(Part):
    """Choose `engine.kv_capacity` so that one variant, run `at` these values, peaks at `kv_usage_peak`."""

    variant: str = Field(description="the name of a variant")
    at: Changes = Field(description="scenario keys and values")
    kv_usage_peak: float = Field(gt=0, lt=1, description="a share of the KV capacity, above 0 and below 1")


class PanelFile(Part):
    """One panel: scenario x variants x every combination of the values in `vary`."""

    id: str = Field(pattern=r"^[a-z0-9_-]+$", description="letters, digits, - and _")
    kind: Literal["concurrency", "k_sweep", "recall_sweep", "single"] = Field(description="what the page shows")
    title: str = Field(description="a line")
    note: str = Field(default="", description="what to know about it, such as what is assumed")
    evidence: str = Field(default="", description="measured, derived, assumed or published, and what")
    scenario: str = Field(description="a scenario file, relative to the study's file")
    set: Changes = Field(default_factory=dict, description="scenario keys and values for the whole panel")
    variants: list[str] = Field(min_length=1, description="names of variants")
    vary: dict[str, list[Any]] = Field(default_factory=dict, description="scenario keys and lists of values")
    keep: Changes | None = Field(default=None, description="points with these values keep their whole record")
    fill: Fill | None = Field(default=None, description="variant, at, kv_usage_peak")


class StudyFile(Part):
    """The file: what was asked, the variants by name, the panels."""

    title: str = Field(description="a line")
    asked: str = Field(description="a paragraph: what the study was to answer")
    commands: list[str] = Field(default_factory=list, description="how to make it again")
    variants: dict[str, Changes] = Field(
        min_length=1, description="changes to the scenario, by the variant's name"
    )
    panels: list[PanelFile] = Field(min_length=1, description="at least one panel")


@dataclass(frozen=True, slots=True)
class _Point:
    """One run to do."""

    panel: PanelFile
    variant: str
    values: tuple[tuple[str, Any], ...]
    scenario: Scenario
    kept: str | None  # the record's place below the study's directory


@dataclass(frozen=True, slots=True)
class _Done:
    """What is left of a run once its record is written or forgotten; `held` is what regret is computed from."""

    metrics: dict[str, Any]
    held: RunRecord


def run_study(
    file: Path, directory: Path, *, jobs: int, overwrite: bool, progress: Progress | None = None
) -> Path:
    """Run a study and write `study.json` and the kept records to `directory`; the path of study.json.

    ScenarioError and RecordError as for single runs; RunError names the point that failed.
    """
    study = _read(file)
    _make_room(directory, overwrite)
    panels = [_filled(panel, study, file.parent) for panel in study.panels]
    points = [point for panel in panels for point in _points(panel, study, file.parent)]
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        done: list[_Done | None] = [None] * len(points)
        work = (joblib.delayed(_run)(index, point, partial) for index, point in enumerate(points))
        runs = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(work)
        for finished, (index, result) in enumerate(runs, 1):
            done[index] = result
            if progress is not None:
                progress(finished, len(points))
        results = [each for each in done if each is not None]
        content = _content(study, panels, points, results)
        (partial / "study.json").write_text(
            json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
        )
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except OSError as error:
        raise RecordError(f"{directory}: cannot be written: {error.strerror}; free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory / "study.json"


def _read(file: Path) -> StudyFile:
    try:
        document = parse(file.read_bytes(), str(file))
    except OSError as error:
        raise ScenarioError(
            f"{file}: cannot be read: {error.strerror}; give the path of a study's YAML file"
        ) from error
    try:
        return StudyFile.model_validate(document.value)
    except ValidationError as error:
        faults = [(fault["loc"], fault["msg"]) for fault in error.errors(include_url=False)]
        lines = [f"{document.place(loc)}: {dotted(loc)}: {message}" for loc, message in faults]
        raise ScenarioError("\n".join(lines)) from None


def _make_room(directory: Path, overwrite: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / "study.json").is_file():
        raise RecordError(f"{directory}: exists and is not a study; choose another --output-dir")
    if not overwrite:
        raise RecordError(f"{directory}: holds a study; choose another --output-dir, or add --overwrite")


def _scenario(panel: PanelFile, changes: Changes, base: Path) -> Scenario:
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**panel.set, **changes}.items()]
    return load_scenario(base / panel.scenario, overrides)


def _variant(name: str, panel: PanelFile, study: StudyFile) -> Changes:
    try:
        return study.variants[name]
    except KeyError:
        known = ", ".join(study.variants)
        raise ScenarioError(f"panels.{panel.id}: no variant is called {name!r}; there are {known}") from None


def _points(panel: PanelFile, study: StudyFile, base: Path) -> Iterator[_Point]:
    for name in panel.variants:
        for values in itertools.product(*panel.vary.values()):
            chosen = dict(zip(panel.vary, values, strict=True))
            scenario = _scenario(panel, {**_variant(name, panel, study), **chosen}, base)
            kept = None
            if panel.keep is not None and panel.keep.items() <= chosen.items():
                slug = "-".join([panel.id, *name.split(), *(str(value) for value in values)]).replace("/", "-")
                kept = f"records/{slug}"
            yield _Point(panel, name, tuple(chosen.items()), scenario, kept)


def _run(index: int, point: _Point, directory: Path) -> tuple[int, _Done]:
    try:
        record = simulate(point.scenario)
    except AssertionError as error:
        raise RunError(f"{point.panel.id}, {point.variant}, {dict(point.values)}: {error}") from error
    if point.kept is not None:
        write_record(record, directory / point.kept)
    nothing = record.engine.slice(0, 0)
    held = RunRecord(run=record.run, tasks=record.tasks, turns=record.turns, engine=nothing)
    return index, _Done(metrics(record), held)


def _filled(panel: PanelFile, study: StudyFile, base: Path) -> PanelFile:
    """The panel with the capacity that its `fill` asks for: bisection on a peak that falls as capacity grows."""
    if panel.fill is None:
        return panel
    changes = {**_variant(panel.fill.variant, panel, study), **panel.fill.at}

    def peak(capacity: int | None) -> tuple[float, int]:
        more = {} if capacity is None else {"engine.kv_capacity": capacity}
        found = metrics(simulate(_scenario(panel, {**changes, **more}, base)))
        usage, tokens = found["kv_usage_peak"], found["kv_capacity_tokens"]
        assert isinstance(usage, float), "a run that computes has used memory"
        assert isinstance(tokens, int), "a simulated run knows its capacity"
        return usage, tokens

    usage, capacity = peak(None)
    low, high = 1, capacity
    best, error = capacity, abs(usage - panel.fill.kv_usage_peak)
    guess = int(usage * capacity / panel.fill.kv_usage_peak)
    for _ in range(10):
        if error < 5e-4 or not low < guess < high:
            break
        usage, _unused = peak(guess)
        if abs(usage - panel.fill.kv_usage_peak) < error:
            best, error = guess, abs(usage - panel.fill.kv_usage_peak)
        low, high = (guess, high) if usage > panel.fill.kv_usage_peak else (low, guess)
        guess = (max(low, guess // 2) + min(high, guess * 2)) // 2 if low == 1 else (low + high) // 2
    return panel.model_copy(update={"set": {**panel.set, "engine.kv_capacity": best}})


def _content(
    study: StudyFile, panels: list[PanelFile], points: list[_Point], done: list[_Done]
) -> dict[str, Any]:
    oracles = {
        (point.panel.id, point.scenario.engine.cache, _place(point)): result.held
        for point, result in zip(points, done, strict=True)
        if point.scenario.policy.name == "oracle"
    }

    def entry(point: _Point, result: _Done) -> dict[str, Any]:
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
            "labels": _labels(point),
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
                **panel.model_dump(include={"id", "kind", "title", "note", "evidence"}),
                "points": [
                    entry(point, result)
                    for point, result in zip(points, done, strict=True)
                    if point.panel.id == panel.id
                ],
            }
            for panel in panels
        ],
    }


def _place(point: _Point) -> tuple[tuple[str, Any], ...]:
    """Where in its panel a point stands, apart from what only its own policy knows."""
    return tuple((key, value) for key, value in point.values if not key.startswith("policy."))


def _labels(point: _Point) -> dict[str, Any]:
    scenario = point.scenario
    policy, load = scenario.policy, scenario.load
    return {
        "variant": point.variant,
        "policy": policy.name,
        "cache": scenario.engine.cache,
        "after_eviction": None if isinstance(policy, NoEviction) else policy.after_eviction,
        "concurrency": load.concurrency if isinstance(load, ClosedLoad) else None,
        "k": policy.k if isinstance(policy, SideQuest) else None,
        "recall": policy.recall if isinstance(policy, SideQuest) else None,
        "false_rate": policy.false_rate if isinstance(policy, SideQuest) else None,
    }
