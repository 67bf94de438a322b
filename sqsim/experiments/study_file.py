# SPDX-License-Identifier: Apache-2.0
"""A study's file: its keys, its checks, and the runs that it asks for.

`reports/demo/study.yaml` shows every key. Every fault is a ScenarioError, one line a fault, with file and line.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from sqsim.base.part import Part
from sqsim.base.strict_yaml import KeyPath, dotted, parse, show
from sqsim.errors import ScenarioError
from sqsim.scenario.scenario import Scenario, load_scenario

Changes = dict[str, Any]
"""Dotted scenario keys and their values, as `--set` takes them."""

Change = tuple[str, Any, KeyPath]
"""A key, its value, and its place in the study."""

_NAME_LETTERS = 100


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
    published: Literal["sidequest"] | None = Field(
        default=None, description="sidequest: the paper's serving results are shown next to this panel's"
    )
    scenario: str = Field(description="a scenario file, relative to the study's file")
    set: Changes = Field(default_factory=dict, description="scenario keys and values for the whole panel")
    variants: list[str] = Field(min_length=1, description="names of variants")
    vary: dict[str, list[Any]] = Field(default_factory=dict, description="scenario keys and lists of values")
    keep: Changes | None = Field(default=None, description="points with these values keep their whole record")
    fill: Fill | None = Field(default=None, description="variant, at, kv_usage_peak")


class StudyFile(Part):
    """The keys of the file: the question, the variants by name, the panels."""

    title: str = Field(description="a line")
    asked: str = Field(description="a paragraph: what the study was to answer")
    commands: list[str] = Field(default_factory=list, description="how to make it again")
    variants: dict[str, Changes] = Field(
        min_length=1, description="changes to the scenario, by the variant's name"
    )
    panels: list[PanelFile] = Field(min_length=1, description="at least one panel")


@dataclass(frozen=True, slots=True)
class Point:
    """One run that the study asks for."""

    panel: PanelFile
    variant: str
    values: tuple[tuple[str, Any], ...]
    scenario: Scenario
    kept: str | None  # the record's path below the study's directory; None: not kept


class Study:
    """A study's file with the places of its values. ScenarioError names each fault and its place."""

    def __init__(self, path: Path) -> None:
        try:
            self._document = parse(path.read_bytes(), str(path))
        except OSError as error:
            raise ScenarioError(
                f"{path}: cannot be read: {error.strerror}; give the path of a study's YAML file"
            ) from error
        if not isinstance(self._document.value, dict):
            raise ScenarioError(f"{path}: a study is a mapping with {', '.join(StudyFile.model_fields)}")
        try:
            self.file = StudyFile.model_validate(self._document.value)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            raise ScenarioError("\n".join(self._explain(fault) for fault in faults)) from None
        self._base = path.parent
        self.index: dict[str, int] = {}
        self._check()

    @property
    def panels(self) -> list[PanelFile]:
        return self.file.panels

    def wrong(self, path: KeyPath, problem: str) -> ScenarioError:
        return ScenarioError(f"{self._document.place(path)}: {dotted(path)}: {problem}")

    def _explain(self, fault: ErrorDetails) -> str:
        loc = fault["loc"]
        model: type[Part] = PanelFile if loc[0] == "panels" and len(loc) > 2 else StudyFile
        if "fill" in loc[2:-1]:
            model = Fill
        named = [part for part in loc if part in model.model_fields]
        if fault["type"] == "extra_forbidden":
            problem = f"unknown key; allowed here: {', '.join(model.model_fields)}"
        elif fault["type"] == "missing":
            problem = f"missing; add it: {model.model_fields[str(loc[-1])].description}"
        else:
            message = fault["msg"].removeprefix("Input ")
            allowed = f"; allowed: {model.model_fields[str(named[-1])].description}" if named else ""
            problem = f"{show(fault['input'])} {message}{allowed}"
        return str(self.wrong(loc, problem))

    def _check(self) -> None:
        """Check what the file's schema cannot express."""
        for index, panel in enumerate(self.panels):
            here: KeyPath = ("panels", index)
            if panel.id in self.index:
                raise self.wrong((*here, "id"), f"{panel.id!r} is the id of an earlier panel; choose another")
            self.index[panel.id] = index
            fill = [] if panel.fill is None else [panel.fill.variant]
            for name in (*panel.variants, *fill):
                if name not in self.file.variants:
                    known = ", ".join(self.file.variants)
                    raise self.wrong((*here, "variants"), f"no variant is called {name!r}; there are {known}")
            self._once((*here, "variants"), panel.variants)
            for key, values in panel.vary.items():
                if not values:
                    raise self.wrong((*here, "vary", key), "the list is empty; give at least one value")
                self._once((*here, "vary", key), values)
            for key, value in (panel.keep or {}).items():
                if value not in panel.vary.get(key, []):
                    varied = ", ".join(f"{key}: {values}" for key, values in panel.vary.items()) or "nothing"
                    raise self.wrong((*here, "keep", key), f"{show(value)} is not varied; varied are {varied}")

    def _once(self, path: KeyPath, values: list[Any]) -> None:
        twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
        if twice is not None:
            raise self.wrong(path, f"{show(twice)} is named twice; name it once")

    def scenario(self, panel: PanelFile, changes: list[Change]) -> Scenario:
        """Load the panel's scenario with changes, each with its path in the study."""
        index = self.index[panel.id]
        own = [(key, value, ("panels", index, "set", key)) for key, value in panel.set.items()]
        last = {key: (value, path) for key, value, path in [*own, *changes]}
        return load_scenario(
            self._base / panel.scenario,
            [f"{key}={json.dumps(value)}" for key, (value, _) in last.items()],
            [f"{self._document.place(path)}: {dotted(path)}" for _, path in last.values()],
        )

    def variant(self, name: str) -> list[Change]:
        return [(key, value, ("variants", name, key)) for key, value in self.file.variants[name].items()]

    def points(self, panels: Sequence[PanelFile]) -> list[Point]:
        """List the panels' runs: each variant at every combination of values."""
        kept: set[str] = set()
        found: list[Point] = []
        for panel in panels:
            where: KeyPath = ("panels", self.index[panel.id], "vary")
            for name, values in itertools.product(panel.variants, itertools.product(*panel.vary.values())):
                chosen = dict(zip(panel.vary, values, strict=True))
                varied = [(key, value, (*where, key)) for key, value in chosen.items()]
                scenario = self.scenario(panel, [*self.variant(name), *varied])
                place = None
                if panel.keep is not None and panel.keep.items() <= chosen.items():
                    place = _place_of(kept, [panel.id, *name.split(), *(str(value) for value in values)])
                found.append(Point(panel, name, tuple(chosen.items()), scenario, place))
        return found


def _place_of(taken: set[str], words: list[str]) -> str:
    """Choose a record's path below the study's directory: a short name, with a number where the name is taken."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(words))[:_NAME_LETTERS]
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    free = next(each for each in names if each not in taken)
    taken.add(free)
    return f"records/{free}"
