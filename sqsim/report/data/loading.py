# SPDX-License-Identifier: Apache-2.0
"""Read sources into panels: one for each panel of a study and each group of records that may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqsim.errors import RecordError
from sqsim.record.files import read_record
from sqsim.record.metrics import metrics
from sqsim.report.data import grouping
from sqsim.report.data.concurrency_reached import concurrency_reached
from sqsim.report.data.labels import flat, labels_of, variant_of
from sqsim.report.data.record_view import RecordView, read_record_view
from sqsim.report.data.sources import SWEPT, Kind, Panel, Point, Sources
from sqsim.report.data.study_source import PanelPart, PointPart, read_study

_IN_VARIANT = {"variant", "policy", "cache", "after_eviction", "concurrency", "asked"}
"""Labels that a variant's name or its place in the panel already holds."""


def _told_apart(points: Sequence[Point], named: Iterable[grouping.Named]) -> list[Point]:
    return [
        replace(point, variant=name, labels={**point.labels, "variant": name})
        for point, name in zip(points, grouping.names(list(named)), strict=True)
    ]


def _rest(point: Point) -> dict[str, Any]:
    """List the keys that may tell apart runs with the same scenario."""
    run = {} if point.record is None else point.record.run
    known = {key: run.get(key) for key in ("kind", "status", "profile", "kv_capacity", "versions", "assumed")}
    return {"concurrency asked for": point.labels.get("asked"), **dict(flat(known))}


def _same_runs(points: Sequence[Point], swept: str) -> list[Point]:
    """Drop points that repeat an earlier point's run.

    A study of 48 tasks that asks for 64 and 128 at a time runs all 48 at once in both: that is one run.
    """
    found: list[Point] = []

    def what(point: Point) -> tuple[Any, ...]:
        known = {key: value for key, value in point.metrics.items() if key != "wall_s"}
        return point.variant, point.labels.get(swept), point.concurrency, known

    for point in points:
        twins = [
            other
            for other in found
            if {"asked"} & (other.labels.keys() | point.labels.keys()) and what(other) == what(point)
        ]
        if not twins:
            found.append(point)
        elif twins[0].record is None:
            found[found.index(twins[0])] = point
    return found


class _Loader:
    def __init__(self, pieces: int) -> None:
        self.pieces, self.records, self.sources = pieces, dict[Path, RecordView](), Sources()

    def record(self, path: Path) -> RecordView:
        if path not in self.records:
            self.records[path] = read_record_view(path, self.pieces)
        return self.records[path]

    def _next(self) -> str:
        return f"panel-{len(self.sources.panels)}"

    def study(self, path: Path) -> None:
        study = read_study(path / "study.json")
        mine = self.sources
        mine.title = mine.title or study.title
        mine.asked += [study.asked] if study.asked else []
        mine.commands += study.commands
        for panel in study.panels:
            mine.panels.append(self._panel(path, panel))

    def _panel(self, path: Path, panel: PanelPart) -> Panel:
        swept = SWEPT.get(panel.kind, "concurrency")
        points, warnings = concurrency_reached(
            [self._point(path, panel.title, point) for point in panel.points]
        )
        points = _same_runs(points, swept)
        named = []
        for place, point in enumerate(points):
            facts = {
                f"policy.{key}": value
                for key, value in point.labels.items()
                if key not in _IN_VARIANT | {swept}
                and key.rsplit(".", 1)[-1] not in point.labels.keys() - {key}
            }
            where = (point.labels.get(swept), point.concurrency)
            scenario = {} if point.record is None else dict(flat(point.record.run.get("scenario") or {}))
            rest = {**scenario, **_rest(point)}
            named.append(grouping.Named(point.variant, where, facts, rest, f"run {place + 1}"))
        return Panel(
            ident=self._next(),
            kind=panel.kind,
            title=panel.title,
            note=panel.note,
            evidence=panel.evidence,
            points=tuple(_told_apart(points, named)),
            published=panel.published,
            model=panel.model,
            gpu=panel.gpu,
            origin=path,
            warnings=tuple(warnings),
        )

    def _point(self, study: Path, panel: str, point: PointPart) -> Point:
        record = None
        if point.record is not None:
            try:
                record = self.record(study / point.record)
            except RecordError as error:  # shown on the page: the rest of the study is still worth reading
                self.sources.troubles.append(f"{panel}: record {point.record} cannot be shown: {error}")
        return Point(variant_of(point.labels), dict(point.labels), dict(point.metrics), record)

    def runs(self, paths: Sequence[Path]) -> None:
        groups: dict[grouping.Conditions, list[RecordView]] = {}
        for path in paths:
            record = self.record(path)
            groups.setdefault(grouping.conditions(record.run), []).append(record)
        panels = [self._group(records) for records in groups.values()]
        found = [
            (shared, records[0].run, panel.concurrencies)
            for (shared, records), panel in zip(groups.items(), panels, strict=True)
        ]
        for panel, title in zip(panels, grouping.titles(found), strict=True):
            self.sources.panels.append(replace(panel, ident=self._next(), title=title))

    def _group(self, records: Sequence[RecordView]) -> Panel:
        points, warnings = concurrency_reached([self._run(record) for record in records])
        named = [
            grouping.Named(
                point.variant,
                point.concurrency,
                dict(flat(record.run.get("scenario") or {})),
                _rest(point),
                str(record.path),
            )
            for point, record in zip(points, records, strict=True)
        ]
        points = _told_apart(points, named)
        at_a_time: dict[str, set[int | None]] = {}
        for point in points:
            at_a_time.setdefault(point.variant, set()).add(point.concurrency)
        kind: Kind = "concurrency" if any(len(values) > 1 for values in at_a_time.values()) else "single"
        synthetic = all(grouping.on_synthetic_frames(record.run) for record in records)
        published = "sidequest" if synthetic else None
        return Panel("", kind, "", "", "", tuple(points), published=published, warnings=tuple(warnings))

    def _run(self, record: RecordView) -> Point:
        labels = labels_of(record.run)
        return Point(variant_of(labels), labels, metrics(read_record(record.path, True)), record)


def load(paths: Sequence[Path], pieces: int) -> Sources:
    """Read all sources; records are thinned to `pieces` pieces of time. RecordError names what cannot be read."""
    loader = _Loader(pieces)
    studies = [path for path in dict.fromkeys(paths) if (path / "study.json").is_file()]
    for path in studies:
        loader.study(path)
    if runs := [path for path in dict.fromkeys(paths) if path not in studies]:
        loader.runs(runs)
    loader.sources.paths = list(paths)
    loader.sources.panels = list(_titled_apart(loader.sources.panels))
    return loader.sources


def _titled_apart(panels: Sequence[Panel]) -> Iterator[Panel]:
    """Make panel titles unique: two studies may ask the same."""
    titles = [panel.title for panel in panels]
    for place, panel in enumerate(panels):
        if titles.count(panel.title) == 1:
            yield panel
        elif titles.count(panel.title) == len({other.origin for other in panels if other.title == panel.title}):
            yield replace(panel, title=f"{panel.title} ({panel.origin or 'records'})")
        else:
            yield replace(panel, title=f"{panel.title} (panel {place + 1})")
