# SPDX-License-Identifier: Apache-2.0
"""Reader of the hand-made labels in `tests/data/references`: which earlier tool responses each model call of a session uses.

The README there has the protocol and the format. Nothing here reads a session, nor anything of `sqsim`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

ROOT = Path(__file__).parents[3]
LABELS = ROOT / "tests/data/references"

Kind = Literal["edit", "path", "id", "symbol", "output", "other", "none"]
Reason = Literal["call", "shown_again"]
_IN_OTHER: dict[str, Any] = {"identifier": "id"}


@dataclass(frozen=True)
class Use:
    """Use of the response to the session's tool call `call` (0-based, failed ones counted).

    `kinds` are the evidence that a reader sees in the texts, or `none` alone. `restated`: all that is used also stands in a
    later text or call of the model, or in a user's message.
    """

    call: int
    kinds: frozenset[Kind]
    restated: bool


@dataclass(frozen=True)
class Step:
    """Model call number `step` (0-based), for which every response to calls 0 to `seen` - 1 is judged.

    A response is used, or `neutral` (with the reason why it counts neither way), or else not used.
    """

    step: int
    seen: int
    uses: tuple[Use, ...]
    neutral: dict[int, Reason]

    @property
    def unused(self) -> frozenset[int]:
        """Calls whose response the step does not use; neutral ones are left out."""
        return frozenset(range(self.seen)) - {use.call for use in self.uses} - set(self.neutral)


@dataclass(frozen=True)
class Session:
    """Labels of one session: run number `run` (0-based) of a file of format `format` with the hash `sha256`.

    `file` is the path in this repository, or null if only `source` (a public address) has it.
    """

    name: str
    file: str | None
    sha256: str
    format: str
    run: int
    source: str
    licence: str
    steps: tuple[Step, ...]

    @property
    def path(self) -> Path | None:
        """Place of the session's file here, or null."""
        return None if self.file is None else ROOT / self.file


class Agreement(NamedTuple):
    """Cohen's kappa of two labellings, the number of pairs that both judged, and on how many they agree."""

    kappa: float
    pairs: int
    agreed: int


def sessions() -> list[Session]:
    """Read all first labels, in the order of their names."""
    return [read(path) for path in sorted(LABELS.glob("*.json"))]


def second_labels() -> list[Session]:
    """Read the labels of the second pass, which holds a part of each session's steps."""
    return [read(path) for path in sorted((LABELS / "second").glob("*.json"))]


def other_reader(first: Iterable[Session]) -> list[Session]:
    """Read the labels that another reader made of some of the sessions; what the first reader finds neutral he may call used."""
    by_place = {(session.file, session.run): session for session in first}
    return [
        _of_other(by_place[entry["file"], entry["task"]], entry["steps"])
        for line in (LABELS / "other_reader.jsonl").read_text(encoding="utf-8").splitlines()
        for entry in [json.loads(line)]
    ]


def _of_other(session: Session, given: dict[str, list[tuple[int, str]]]) -> Session:
    steps = tuple(
        Step(
            step.step,
            step.seen,
            tuple(
                Use(call, frozenset({_IN_OTHER.get(kind, kind)}), False) for call, kind in given[str(step.step)]
            ),
            {},
        )
        for step in session.steps
    )
    return replace(session, steps=steps)


def read(path: Path) -> Session:
    """Read one file of labels. Raises `ValueError`, which names file and step, for what the format does not allow."""
    data = json.loads(path.read_text(encoding="utf-8"))
    steps = tuple(_step(path.name, entry) for entry in data.pop("steps"))
    if any(later.step <= step.step for step, later in pairwise(steps)):
        raise ValueError(f"{path.name}: steps are out of order, or one of them is there twice")
    return Session(name=path.stem, steps=steps, **data)


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def agreement(first: Iterable[Session], second: Iterable[Session]) -> Agreement:
    """Compare two labellings pair by pair (step, response), over the steps that both have and leaving out what either finds neutral.

    kappa = (agreed - expected) / (1 - expected), both as shares (Cohen, A Coefficient of Agreement for Nominal Scales, 1960).
    """
    by_place = {(session.name, step.step): step for session in first for step in session.steps}
    verdicts = [
        (call in _used(one), call in _used(two))
        for session in second
        for two in session.steps
        if (one := by_place.get((session.name, two.step)))
        for call in range(one.seen)
        if call not in one.neutral and call not in two.neutral
    ]
    if not verdicts:
        raise ValueError("the two labellings have no pair in common")
    agreed = sum(one == two for one, two in verdicts)
    ones, twos = (sum(column) / len(verdicts) for column in zip(*verdicts, strict=True))
    expected = ones * twos + (1 - ones) * (1 - twos)
    share = agreed / len(verdicts)
    return Agreement((share - expected) / (1 - expected) if expected < 1 else 1.0, len(verdicts), agreed)


def _used(step: Step) -> frozenset[int]:
    return frozenset(use.call for use in step.uses)


def _step(name: str, entry: dict[str, Any]) -> Step:
    where = f"{name}, step {entry['step']}"
    restated = set(entry.get("restated", []))
    uses = tuple(
        Use(int(call), frozenset(_known(Kind, kinds, where)), int(call) in restated)
        for call, kinds in entry["uses"].items()
    )
    neutral = {int(call): reason for call, reason in entry.get("neutral", {}).items()}
    _ = list(_known(Reason, neutral.values(), where))
    used = {use.call for use in uses}
    vague = {use.call for use in uses if not use.kinds or ("none" in use.kinds and len(use.kinds) > 1)}
    late = {call for call in used | set(neutral) if not 0 <= call < entry["seen"]}
    for problem, calls in (
        ("is restated and not used", restated - used),
        ("is used and neutral", used & set(neutral)),
        ("is no earlier call", late),
        ("has no kind, or `none` and another", vague),
    ):
        if calls:
            raise ValueError(f"{where}: call {min(calls)} {problem}")
    return Step(entry["step"], entry["seen"], uses, cast("dict[int, Reason]", neutral))


def _known(words: Any, given: Iterable[str], where: str) -> Iterator[Any]:
    for word in given:
        if word not in get_args(words):
            raise ValueError(f"{where}: {word!r} is none of {', '.join(get_args(words))}")
        yield word
