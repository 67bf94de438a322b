# SPDX-License-Identifier: Apache-2.0
"""Sources of a page: study directories (`study.json`) and record directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqsim.comparison.measured import Measured
from sqsim.policies.registry import known
from sqsim.report.data.measures import Value, counted
from sqsim.report.data.record_view import RecordView

Kind = Literal["concurrency", "k_sweep", "recall_sweep", "single"]

SWEPT = {"k_sweep": "k", "recall_sweep": "recall"}
"""Labels that a panel may vary instead of the concurrency."""


@dataclass(frozen=True, eq=False)
class Point:
    """Run of a panel: its labels, its metrics, and its record where one was kept."""

    variant: str
    labels: dict[str, Value]
    metrics: dict[str, Value]
    record: RecordView | None = None

    @property
    def concurrency(self) -> int | None:
        """Number of tasks at a time that the run reached; None for an open or a recorded load."""
        value = self.labels.get("concurrency")
        return value if isinstance(value, int) else None

    @property
    def policy(self) -> str:
        """Name of the policy, in lower case."""
        return str(self.labels.get("policy", self.variant.split(" / ")[0])).lower()

    @property
    def is_oracle(self) -> bool:
        """Whether the policy looks into the future, as no server can."""
        kind = known(self.policy)
        return kind is not None and kind.hindsight


@dataclass(frozen=True, eq=False)
class Panel:
    """Points that answer one question under the same conditions.

    `published` names the paper whose numbers are shown next to it; `model` and `gpu` are those its source states, if
    any. `origin` is its study, None for plain records. `warnings` are sentences.
    """

    ident: str
    kind: Kind
    title: str
    note: str
    evidence: str
    points: tuple[Point, ...]
    published: str | None = None
    model: str | None = None
    gpu: str | None = None
    origin: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def variants(self) -> list[str]:
        """In the order of the source."""
        return list(dict.fromkeys(point.variant for point in self.points))

    @property
    def concurrencies(self) -> list[int]:
        """All concurrencies, ascending."""
        return sorted({point.concurrency for point in self.points if point.concurrency is not None})

    def of(self, variant: str) -> list[Point]:
        """List the points of a variant by concurrency."""
        mine = [point for point in self.points if point.variant == variant]
        return sorted(mine, key=lambda point: point.concurrency or 0)

    def at(self, concurrency: int | None) -> list[Point]:
        """List one point for each variant at this concurrency, in the order of the source."""
        return [point for point in self.points if point.concurrency == concurrency]

    @property
    def swept(self) -> str:
        """Label that the panel varies in addition to the variant."""
        return SWEPT.get(self.kind, "concurrency")

    def name(self, point: Point) -> str:
        """Name a point by its variant and its place in the panel."""
        parts = [point.variant]
        if self.swept != "concurrency" and point.labels.get(self.swept) is not None:
            parts.append(f"{'K' if self.swept == 'k' else self.swept} = {point.labels[self.swept]}")
        if point.concurrency is not None:
            parts.append(f"{counted(point.concurrency, 'task')} at a time")
        return " · ".join(parts)

    @property
    def recorded(self) -> list[Point]:
        """Points whose records were kept."""
        return [point for point in self.points if point.record is not None]

    @property
    def runs(self) -> Iterator[dict[str, Any]]:
        """The run.json of each kept record."""
        return (point.record.run for point in self.points if point.record is not None)

    @property
    def references(self) -> set[str]:
        """Kinds of references that the kept records rest on."""
        return {kind for run in self.runs for kind in run.get("references") or {}}

    @property
    def systems(self) -> set[tuple[str, str]]:
        """Model and GPU of all kept records, and those that the panel itself names."""
        scenarios = [run.get("scenario") or {} for run in self.runs]
        found = {(str(s.get("model")), str((s.get("engine") or {}).get("gpu"))) for s in scenarios}
        return found | ({(self.model, self.gpu)} if self.model is not None and self.gpu is not None else set())


@dataclass
class Sources:
    """Everything that a page shows. `troubles` are sentences on records that were named and not found.

    `measured`: simulated runs compared with the real runs of their experiment, as `sqsim compare` does.
    """

    title: str = ""
    asked: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        """Variants in order of first appearance."""
        return list(dict.fromkeys(variant for panel in self.panels for variant in panel.variants))

    @property
    def records(self) -> list[tuple[Panel, Point, RecordView]]:
        """Kept records, each once."""
        seen: set[Path] = set()
        found = []
        for panel in self.panels:
            for point in panel.points:
                if point.record is not None and point.record.path not in seen:
                    seen.add(point.record.path)
                    found.append((panel, point, point.record))
        return found

    def short(self, panel: Panel, point: Point) -> str:
        """Name a kept record, with its panel's name only where that is needed to tell it from another."""
        name = panel.name(point)
        alike = [1 for other, other_point, _ in self.records if other.name(other_point) == name]
        return name if len(alike) <= 1 else self.name(panel, point)

    def name(self, panel: Panel, point: Point) -> str:
        """Name a kept record: its point, and its panel where several panels keep records."""
        several = len({other.ident for other, *_ in self.records}) > 1
        return f"{panel.name(point)} ({panel.title})" if several else panel.name(point)

    def panel(self, *kinds: Kind) -> list[Panel]:
        """List the panels of these kinds."""
        return [panel for panel in self.panels if panel.kind in kinds]
