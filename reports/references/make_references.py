# SPDX-License-Identifier: Apache-2.0
"""Compare the finder of references with labels made by hand; write README.md.

python reports/references/make_references.py            # from the repository's root
python reports/references/make_references.py --check    # exit code 1 if the page differs; writes nothing
python reports/references/make_references.py --sessions DIR   # prints the same for the sessions whose files are in DIR, by name
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import NamedTuple, get_args

from sqsim.trace.importing import import_files
from sqsim.trace.references import references
from sqsim.trace.schema import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from committed import write_or_check

from tests.sqsim.trace import reference_labels as labels

PAGE = Path(__file__).parent / "README.md"
Z95 = 1.96
"""Two-sided 95 % quantile of the normal distribution."""


class Place(NamedTuple):
    """Pair of a model call of a session and an earlier tool call, whose response it may use."""

    session: str
    step: int
    call: int


@dataclass
class Scores:
    """Labelled uses, and what the finder finds among the pairs that are judged used or unused.

    `failed` counts the labelled uses of failed calls: these have no cursor, so nothing can evict them, and they are left out.
    """

    steps: int = 0
    pairs: int = 0
    failed: int = 0
    labelled: dict[Place, labels.Use] = field(default_factory=dict)
    found: set[Place] = field(default_factory=set)

    @property
    def right(self) -> int:
        """Number of uses that were found and labelled."""
        return len(self.found & self.labelled.keys())

    @property
    def precision(self) -> float:
        return self.right / len(self.found)

    @property
    def recall(self) -> float:
        return self.right / len(self.labelled)


def scored(sessions: Iterable[tuple[labels.Session, Path]]) -> Scores:
    """Import each labelled session from its file, and collect labelled and found uses."""
    scores = Scores()
    for session, path in sessions:
        if labels.sha256(path) != session.sha256:
            sys.exit(f"error: {path} is not the file that was labelled")
        task = import_files([path]).tasks[session.run]
        if task.steps != len(session.steps):
            sys.exit(
                f"error: {session.name}: {task.steps} steps are imported, and {len(session.steps)} labelled"
            )
        cursors = [call.cursor for turn in task.turns for call in turn.calls]
        found = set(_found(task))
        for step in session.steps:
            uses = {use.call: use for use in step.uses}
            scores.failed += sum(cursors[call] is None for call in uses)
            for call in range(step.seen):
                place = Place(session.name, step.step, call)
                if call in step.neutral or cursors[call] is None:
                    continue
                scores.pairs += 1
                if call in uses:
                    scores.labelled[place] = uses[call]
                if (step.step, cursors[call]) in found:
                    scores.found.add(place)
        scores.steps += len(session.steps)
    return scores


def here() -> list[tuple[labels.Session, Path]]:
    """List the labelled sessions of this repository with their files."""
    return [(session, session.path) for session in labels.sessions() if session.path]


def _found(task: Task) -> Iterator[tuple[int, int]]:
    for cursor, steps in references(task).items():
        for step in steps:
            yield step, cursor


def _share(part: int, whole: int) -> str:
    """Write a share with its 95 % interval by Wilson's formula (Probable inference, 1927)."""
    if not whole:
        return "-"
    share, weight = part / whole, Z95**2 / whole
    middle = (share + weight / 2) / (1 + weight)
    half = sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    return f"{share:.0%} ({max(0, middle - half):.0%} to {min(1, middle + half):.0%})"


def _table(scores: Scores) -> Iterator[str]:
    yield "| what a reader sees | labelled | found | recall |"
    yield "|---|---:|---:|---:|"
    rows: list[tuple[str, set[Place]]] = [
        (f"`{kind}`", {place for place, use in scores.labelled.items() if kind in use.kinds})
        for kind in get_args(labels.Kind)
    ]
    for restated in (False, True):
        places = {place for place, use in scores.labelled.items() if use.restated == restated}
        rows.append((f"all, {'' if restated else 'not '}restated by the model", places))
    for name, places in rows:
        yield f"| {name} | {len(places)} | {len(places & scores.found)} | {_share(len(places & scores.found), len(places))} |"


def _sessions(scores: Scores, names: Iterable[str]) -> Iterator[str]:
    yield "| session | labelled | found | of them labelled |"
    yield "|---|---:|---:|---:|"
    for name in names:
        labelled = {place for place in scores.labelled if place.session == name}
        found = {place for place in scores.found if place.session == name}
        yield f"| {name} | {len(labelled)} | {len(found)} | {len(found & labelled)} |"


def report(sessions: list[tuple[labels.Session, Path]]) -> Iterator[str]:
    """Write the figures for some sessions, line by line."""
    scores = scored(sessions)
    unseen = sum("none" in use.kinds for use in scores.labelled.values())
    yield (
        f"{len(scores.labelled)} labelled uses among {scores.pairs} judged pairs of a model call and an earlier response "
        f"({scores.steps} calls, {len(sessions)} sessions); {len(scores.found)} found, {scores.right} of them labelled. "
        f"{scores.failed} uses of failed calls are left out: these have no cursor."
    )
    yield ""
    yield (
        f"**Precision {_share(scores.right, len(scores.found))}, recall {_share(scores.right, len(scores.labelled))}.** "
        f"No text shows {_share(unseen, len(scores.labelled))} of the uses. The intervals are for 95 % and take uses as independent, "
        "which those of one session are not."
    )
    yield ""
    yield "A use may show several kinds of evidence, and counts for each."
    yield ""
    yield from _table(scores)
    yield ""
    yield from _sessions(scores, [session.name for session, _ in sessions])


def page() -> str:
    every = labels.sessions()
    again = labels.agreement(every, labels.second_labels())
    other = labels.agreement(every, labels.other_reader(every))
    return "\n".join(
        [
            "# References that are found, and those that a reader sees",
            "",
            "Made by `python reports/references/make_references.py`; do not edit. Labels, protocol: [tests/data/references](../../tests/data/references/README.md).",
            "",
            *report(here()),
            "",
            "## The labels",
            "",
            "| agreement on used or unused | pairs | agreed | Cohen's kappa |",
            "|---|---:|---:|---:|",
            f"| with another reader, neither knowing the other's labels | {other.pairs} | {other.agreed} | {other.kappa:.2f} |",
            f"| of the same reader with himself, soon after | {again.pairs} | {again.agreed} | {again.kappa:.2f} |",
            "",
        ]
    )


def elsewhere(folder: Path) -> list[tuple[labels.Session, Path]]:
    """List the labelled sessions whose files, named after their labels, are in a folder; exits with an error if none is."""
    every = [(session, folder / f"{session.name}.jsonl") for session in labels.sessions()]
    if not any(path.is_file() for _, path in every):
        sys.exit(
            f"error: {folder} holds no labelled session; name a file {every[0][1].name} after its labels in tests/data/references"
        )
    return [(session, path) for session, path in every if path.is_file()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sessions"] and len(sys.argv) == 3:
        print("\n".join(report(elsewhere(Path(sys.argv[2])))))
    else:
        sys.exit(write_or_check(PAGE, page()))
