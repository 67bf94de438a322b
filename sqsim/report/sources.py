"""What a page is built from: study directories (`study.json`) and record directories."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sqsim.errors import RecordError
from sqsim.metrics import metrics
from sqsim.record import read_record
from sqsim.report.kept import Kept, keep
from sqsim.report.labels import labels_of, told_apart, variant_of
from sqsim.report.measures import Value

STUDY_SCHEMA = "sqsim-study/1"

Kind = Literal["concurrency", "k_sweep", "recall_sweep", "single"]

SWEPT = {"k_sweep": "k", "recall_sweep": "recall"}
"""What a panel varies, where that is not the concurrency."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _PointFile(_Part):
    labels: dict[str, Value]
    metrics: dict[str, Value]
    record: str | None = None


class _PanelFile(_Part):
    id: str
    kind: Kind
    title: str
    note: str = ""
    evidence: str = ""
    points: tuple[_PointFile, ...] = ()


class _StudyFile(_Part):
    schema_: Literal["sqsim-study/1"]
    title: str
    asked: str = ""
    commands: tuple[str, ...] = ()
    panels: tuple[_PanelFile, ...] = ()


@dataclass(frozen=True, eq=False)
class Point:
    """One run: its labels, its metrics, and its record where that was kept."""

    variant: str
    labels: dict[str, Value]
    metrics: dict[str, Value]
    kept: Kept | None = None

    @property
    def concurrency(self) -> int | None:
        """Tasks at a time; None for an open or a recorded load."""
        value = self.labels.get("concurrency")
        return value if isinstance(value, int) else None

    @property
    def policy(self) -> str:
        """The policy's name, in lower case."""
        return str(self.labels.get("policy", self.variant.split(" / ")[0])).lower()

    @property
    def is_oracle(self) -> bool:
        """Whether it looks into the future, as no server can."""
        return self.policy == "oracle"


@dataclass(frozen=True, eq=False)
class Panel:
    """Points that answer one question under one set of conditions."""

    ident: str
    kind: Kind
    title: str
    note: str
    evidence: str
    points: tuple[Point, ...]

    @property
    def variants(self) -> list[str]:
        """In the order of the source."""
        return list(dict.fromkeys(point.variant for point in self.points))

    @property
    def concurrencies(self) -> list[int]:
        """All numbers of tasks at a time, ascending."""
        return sorted({point.concurrency for point in self.points if point.concurrency is not None})

    def of(self, variant: str) -> list[Point]:
        """The points of a variant by concurrency."""
        mine = [point for point in self.points if point.variant == variant]
        return sorted(mine, key=lambda point: point.concurrency or 0)

    def at(self, concurrency: int | None) -> list[Point]:
        """One point a variant at this concurrency, in the order of the source."""
        return [point for point in self.points if point.concurrency == concurrency]

    @property
    def swept(self) -> str:
        """The label that the panel varies beside the variant."""
        return SWEPT.get(self.kind, "concurrency")

    def name(self, point: Point) -> str:
        """A point's variant and where in the panel it stands."""
        parts = [point.variant]
        if self.swept != "concurrency" and point.labels.get(self.swept) is not None:
            parts.append(f"{'K' if self.swept == 'k' else self.swept} = {point.labels[self.swept]}")
        if point.concurrency is not None:
            parts.append(f"{point.concurrency} tasks at a time")
        return " · ".join(parts)

    @property
    def kept(self) -> list[Point]:
        """The points whose records are here."""
        return [point for point in self.points if point.kept is not None]

    @property
    def references(self) -> set[str]:
        """The kinds of references that the kept records rest on."""
        return {
            kind
            for point in self.kept
            if point.kept is not None
            for kind in point.kept.run.get("references") or {}
        }


@dataclass
class Sources:
    """Everything that one page shows. `troubles` are things that were named and not found, in sentences."""

    title: str = ""
    asked: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        """All variants in order of first appearance."""
        return list(dict.fromkeys(variant for panel in self.panels for variant in panel.variants))

    @property
    def kept(self) -> list[tuple[Panel, Point, Kept]]:
        """All kept records, each once."""
        seen: set[Path] = set()
        found = []
        for panel in self.panels:
            for point in panel.points:
                if point.kept is not None and point.kept.path not in seen:
                    seen.add(point.kept.path)
                    found.append((panel, point, point.kept))
        return found

    def short(self, panel: Panel, point: Point) -> str:
        """A kept record's name without its panel's, unless that is needed to tell it from another."""
        name = panel.name(point)
        alike = [1 for other, other_point, _ in self.kept if other.name(other_point) == name]
        return name if len(alike) <= 1 else self.name(panel, point)

    def name(self, panel: Panel, point: Point) -> str:
        """A kept record's name: the point's, and the panel's where several panels keep records."""
        several = len({kept_panel.ident for kept_panel, *_ in self.kept}) > 1
        return f"{panel.name(point)} ({panel.title})" if several else panel.name(point)

    def panel(self, *kinds: Kind) -> list[Panel]:
        """The panels of these kinds."""
        return [panel for panel in self.panels if panel.kind in kinds]


def _unique(panel: str, points: Iterable[Point], kind: Kind, troubles: list[str]) -> tuple[Point, ...]:
    swept = SWEPT.get(kind, "concurrency")
    kept: dict[tuple[str, Value, Value], Point] = {}
    repeated = 0
    for point in points:
        key = (point.variant, point.labels.get(swept), point.concurrency)
        repeated += key in kept
        kept.setdefault(key, point)
    if repeated:
        troubles.append(
            f"{panel}: {repeated} points repeat a variant at the same place; the first of each is shown."
        )
    return tuple(kept.values())


class _Loader:
    def __init__(self, pieces: int) -> None:
        self.pieces, self.records, self.sources = pieces, dict[Path, Kept](), Sources()

    def record(self, path: Path) -> Kept:
        if path not in self.records:
            self.records[path] = keep(path, self.pieces)
        return self.records[path]

    def study(self, path: Path) -> None:
        file = path / "study.json"
        try:
            content = json.loads(file.read_bytes())
            schema = content.pop("schema", None) if isinstance(content, dict) else None
            if schema != STUDY_SCHEMA:
                raise RecordError(f"{file}: schema is {schema!r}, this version reads {STUDY_SCHEMA!r}")
            study = _StudyFile.model_validate({"schema_": schema, **content})
        except (OSError, ValueError) as error:
            reason = (
                "; ".join(
                    f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
                    for one in error.errors(include_url=False)[:3]
                )
                if isinstance(error, ValidationError)
                else str(error)
            )
            raise RecordError(f"{file}: cannot be read as a study ({reason}); run the study again") from error
        mine = self.sources
        mine.title = mine.title or study.title
        mine.asked += [study.asked] if study.asked else []
        mine.commands += study.commands
        for panel in study.panels:
            points = [self.point(path, panel.title, point) for point in panel.points]
            mine.panels.append(
                Panel(
                    ident=f"panel-{len(mine.panels)}",
                    kind=panel.kind,
                    title=panel.title,
                    note=panel.note,
                    evidence=panel.evidence,
                    points=_unique(panel.title, points, panel.kind, mine.troubles),
                )
            )

    def point(self, study: Path, panel: str, point: _PointFile) -> Point:
        kept = None
        if point.record is not None:
            try:
                kept = self.record(study / point.record)
            except RecordError as error:  # shown on the page: the rest of the study is still worth reading
                self.sources.troubles.append(
                    f"{panel}: the record {point.record} is named and cannot be shown: {error}"
                )
        return Point(variant_of(point.labels), dict(point.labels), dict(point.metrics), kept)

    def runs(self, paths: Sequence[Path]) -> None:
        records = [self.record(path) for path in paths]
        labelled = [labels_of(kept.run) for kept in records]
        places = [(variant_of(labels), labels.get("concurrency")) for labels in labelled]
        for place in {place for place in places if places.count(place) > 1}:
            alike = [number for number, other in enumerate(places) if other == place]
            names = told_apart([(paths[number], records[number].run) for number in alike])
            for number, name in zip(alike, names, strict=True):
                labelled[number]["variant"] = f"{place[0]} ({name})"
        points = [
            Point(variant_of(labels), labels, metrics(read_record(path, True)), kept)
            for path, labels, kept in zip(paths, labelled, records, strict=True)
        ]
        several = any(
            len({point.concurrency for point in points if point.variant == variant}) > 1
            for variant in {point.variant for point in points}
        )
        kind: Kind = "concurrency" if several else "single"
        title = "The run" if len(points) == 1 else "The runs"
        unique = _unique(title, points, kind, self.sources.troubles)
        self.sources.panels.append(Panel(f"panel-{len(self.sources.panels)}", kind, title, "", "", unique))


def load(paths: Sequence[Path], pieces: int) -> Sources:
    """Read all sources; records are thinned to `pieces` pieces of time. RecordError names what cannot be read."""
    loader = _Loader(pieces)
    studies = [path for path in paths if (path / "study.json").is_file()]
    for path in studies:
        loader.study(path)
    if runs := [path for path in dict.fromkeys(paths) if path not in studies]:
        loader.runs(runs)
    loader.sources.paths = list(paths)
    return loader.sources
