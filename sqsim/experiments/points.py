# SPDX-License-Identifier: Apache-2.0
"""Points: a directory of finished runs, from which sweeps and plans resume. Each run has a key of its inputs.

    DIR/points/KEY.json     a finished run: its scenario, its metrics, its tasks' time, its evidence;
                            and their sha256, so that a damaged or misplaced file is never taken for a result
    DIR/records/KEY/        its whole record, where records are asked for

The key is the sha256 of the scenario with every default, of the content of its files, of sqsim's own code, and of the
source of a policy that is not part of sqsim. So a finished run never runs twice, and an interrupted sweep or plan
continues where it stopped. The key leaves out code of pages and of the command line: a change there keeps finished points.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqsim.base.code_digest import code_digest
from sqsim.base.directories import check_place
from sqsim.base.strict_json import is_whole, sealed
from sqsim.base.workers import Progress, Workers
from sqsim.errors import Interrupted, RecordError, SqsimError
from sqsim.models.cost.profile import Profile
from sqsim.models.cost.uncertainty import sample_profile
from sqsim.policies.registry import is_built_in, source_digest
from sqsim.record.evidence import evidence_of
from sqsim.record.files import is_record, write_record
from sqsim.record.metrics import metrics
from sqsim.record.time_spent import time_spent
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.files import sha256, written_whole

SCHEMA = "sqsim-point/1"
UNTIMED = "wall_s"
"""The only metric that is not a property of the run."""

_NOT_RUN = ("report", "cli")
"""Rooms whose code no run executes."""

Found = dict[str, Any]
"""The content of a point's file."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A scenario on a cost profile sampled from its stated uncertainty: draw `index` of `seed` (models/cost/uncertainty.py)."""

    scenario: Scenario
    seed: int
    index: int


Item = Scenario | Draw
"""The input of a point: a scenario, or a draw of one."""


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one directory."""

    directory: Path
    records: bool = False

    def make_room(self, overwrite: bool) -> None:
        """Prepare the directory; `overwrite` deletes its points. RecordError: the directory holds something else."""
        check_place(self.directory)
        mine = self.directory / "points"
        if self.directory.exists() and any(self.directory.iterdir()) and not mine.is_dir():
            raise RecordError(
                f"{self.directory}: exists and holds no points of a sweep or plan; choose another --output-dir"
            )
        mine.mkdir(parents=True, exist_ok=True)
        if overwrite:
            for file in mine.glob("*.json"):
                file.unlink()

    def known(self, key: str) -> Found | None:
        """Return a finished point; None where it was not run. RecordError: its file is damaged."""
        file = self._file(key)
        if not file.is_file() or (self.records and not is_record(self.record(key))):
            return None
        try:
            found = json.loads(file.read_bytes())
            if (found["schema"], found["key"]) == (SCHEMA, key) and is_whole(found):
                return dict(found)
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        raise RecordError(f"{file}: damaged; delete it, and the point is run again")

    def record(self, key: str) -> Path:
        """Return the directory of a point's whole record."""
        return self.directory / "records" / key

    def run(
        self, items: Sequence[Item], workers: Workers, progress: Progress | None = None
    ) -> list[Found | SqsimError]:
        """Return each item's point, and run it where it is not known; a run that fails gives its error instead.

        Interrupted: finished points stay.
        """
        keys = [content_key(item) for item in items]
        done: dict[str, Found | SqsimError] = {}
        for key in keys:
            if (found := self.known(key)) is not None:
                done[key] = found
        todo = {key: each for key, each in zip(keys, items, strict=True) if key not in done}
        names = list(todo)
        try:
            for place, result in workers.each(_Work(self), [(key, todo[key]) for key in names], progress):
                done[names[place]] = result
        except KeyboardInterrupt:
            finished = sum(not isinstance(done.get(name), SqsimError | None) for name in names)
            raise Interrupted(
                f"interrupted; {finished} points were finished and stay in {self.directory}: the same command goes on"
            ) from None
        return [done[key] for key in keys]

    def _file(self, key: str) -> Path:
        return self.directory / "points" / f"{key}.json"


@dataclass(frozen=True, slots=True)
class _Work:
    """Runs one point and writes it to the directory. It may be sent to another process."""

    points: Points

    def __call__(self, named: tuple[str, Item]) -> Found:
        key, item = named
        scenario = item.scenario if isinstance(item, Draw) else item
        record = simulate(scenario, profile=_profile(item) if isinstance(item, Draw) else None)
        if self.points.records:
            write_record(record, self.points.record(key), overwrite=True)
        found: Found = sealed(
            {
                "schema": SCHEMA,
                "key": key,
                "scenario": scenario.resolved(),
                "metrics": {name: value for name, value in metrics(record).items() if name != UNTIMED},
                "time_spent": time_spent(record),
                "evidence": evidence_of(record.run),
            }
        )
        write_json(self.points.directory / "points" / f"{key}.json", found)
        return found


def _profile(draw: Draw) -> Profile:
    return sample_profile(Resolved.of(draw.scenario).profile, draw.seed, draw.index)


def content_key(item: Item) -> str:
    """Compute the key of a run: 24 hex digits of the sha256 of its inputs."""
    scenario = item.scenario if isinstance(item, Draw) else item
    files = [*scenario.trace_paths, *([scenario.model_path] if scenario.model_path else [])]
    if scenario.profile.endswith((".yaml", ".yml")):
        files.append(Path(scenario.profile))
    content = {
        "scenario": scenario.resolved(),
        "files": [_sum_of(path) for path in files],
        "code": code_digest("sqsim", without=_NOT_RUN),
        **({} if is_built_in(scenario.policy) else {"policy": source_digest(type(scenario.policy))}),
        "draw": [item.seed, item.index] if isinstance(item, Draw) else None,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _sum_of(path: Path) -> str:
    return sha256(path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that appears whole; the same content gives the same bytes."""
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with written_whole(path) as file:
        file.write(text.encode())


def read_json(directory: Path, name: str, schema: str) -> dict[str, Any]:
    """Read the JSON file of finished work. RecordError: it is missing, damaged, or of another version."""
    file, work = directory / name, name.removesuffix(".json")
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{file}: cannot be read: {error.strerror}; let `sqsim {work}` finish first"
        ) from error
    except ValueError as error:
        raise RecordError(f"{file}: cannot be read as JSON ({error}); run `sqsim {work}` again") from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found != schema:
        raise RecordError(
            f"{file}: schema is {found!r}, this version reads {schema!r}; run `sqsim {work}` again"
        )
    assert isinstance(content, dict)
    return content
