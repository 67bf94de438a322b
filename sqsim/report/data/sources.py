"""What a page is built from: study directories (`study.json`) and record directories."""

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
"""What a panel varies, where that is not the concurrency."""


@dataclass(frozen=True, eq=False)
class Point:
    """One run: its labels, its metrics, and its record where that was kept."""

    variant: str
    labels: dict[str, Value]
    metrics: dict[str, Value]
    kept: RecordView | None = None

    @property
    def concurrency(self) -> int | None:
        """Tasks at a time, as many as the run really had; None for an open or a recorded load."""
        value = self.labels.get("concurrency")
        return value if isinstance(value, int) else None

    @property
    def policy(self) -> str:
        """The policy's name, in lower case."""
        return str(self.labels.get("policy", self.variant.split(" / ")[0])).lower()

    @property
    def is_oracle(self) -> bool:
        """Whether it looks into the future, as no server can."""
        kind = known(self.policy)
        return kind is not None and kind.hindsight


@dataclass(frozen=True, eq=False)
class Panel:
    """Points that answer one question under one set of conditions.

    `published` says whose published numbers belong beside it; `model` and `gpu` are what its source says of it,
    if that says it. `origin` is the study it is of, None for plain records. `warnings` are sentences.
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
            parts.append(f"{counted(point.concurrency, 'task')} at a time")
        return " · ".join(parts)

    @property
    def kept(self) -> list[Point]:
        """The points whose records are here."""
        return [point for point in self.points if point.kept is not None]

    @property
    def runs(self) -> Iterator[dict[str, Any]]:
        """What run.json of each kept record says."""
        return (point.kept.run for point in self.points if point.kept is not None)

    @property
    def references(self) -> set[str]:
        """The kinds of references that the kept records rest on."""
        return {kind for run in self.runs for kind in run.get("references") or {}}

    @property
    def systems(self) -> set[tuple[str, str]]:
        """Model and GPU, of all kept records and as the panel itself names them."""
        scenarios = [run.get("scenario") or {} for run in self.runs]
        found = {(str(s.get("model")), str((s.get("engine") or {}).get("gpu"))) for s in scenarios}
        return found | ({(self.model, self.gpu)} if self.model is not None and self.gpu is not None else set())


@dataclass
class Sources:
    """Everything that one page shows. `troubles` are things that were named and not found, in sentences.

    `measured`: simulated runs held against the real runs of their experiment, as `sqsim compare` does.
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
        """All variants in order of first appearance."""
        return list(dict.fromkeys(variant for panel in self.panels for variant in panel.variants))

    @property
    def kept(self) -> list[tuple[Panel, Point, RecordView]]:
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
