# SPDX-License-Identifier: Apache-2.0
"""Compare the finder of references with labels made by hand; write README.md.

python reports/references/make_references.py            # from the repository's root
python reports/references/make_references.py --check    # exit code 1 if the page differs; writes nothing
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqsim.trace.importing import import_files
from sqsim.trace.references import references
from sqsim.trace.schema import Task

sys.path.insert(0, str(Path(__file__).parents[1]))

from committed import write_or_check

ROOT = Path(__file__).parents[2]
LABELS = ROOT / "tests/data/references/labels.jsonl"
PAGE = Path(__file__).parent / "README.md"
UNSEEN = "none"
"""Kind of a use that no text of the step shows."""


class Use(NamedTuple):
    """A step of a session that needs a response, by the response's cursor."""

    session: str
    step: int
    cursor: int


class Scores(NamedTuple):
    """Labelled uses by kind, those of them that were found, and what was found without a label."""

    sessions: list[str]
    steps: int
    labelled: dict[Use, str]
    found: set[Use]

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


def scored() -> Scores:
    """Import each labelled session, and collect labelled and found uses of the labelled steps."""
    sessions, steps, labelled, found = [], 0, {}, set()
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        label = json.loads(line)
        path = ROOT / label["file"]
        if hashlib.sha256(path.read_bytes()).hexdigest() != label["sha256"]:
            sys.exit(f"error: {path} is not the file that was labelled")
        name = f"{label['file']}, task {label['task']}"
        task = import_files([path]).tasks[label["task"]]
        cursors = [call.cursor for turn in task.turns for call in turn.calls]
        sessions.append(name)
        steps += len(label["steps"])
        for step, uses in label["steps"].items():
            for ordinal, kind in uses:
                cursor = cursors[ordinal]
                if cursor is None:
                    sys.exit(f"error: {name}: call {ordinal} failed, and has no cursor")
                labelled[Use(name, int(step), cursor)] = kind
        found |= {use for use in _found(name, task) if str(use.step) in label["steps"]}
    return Scores(sessions, steps, labelled, found)


def _found(name: str, task: Task) -> Iterator[Use]:
    for cursor, steps in references(task).items():
        for step in steps:
            yield Use(name, step, cursor)


def page() -> str:
    scores = scored()
    kinds = Counter(scores.labelled.values())
    right = Counter(kind for use, kind in scores.labelled.items() if use in scores.found)
    unseen = kinds[UNSEEN] / len(scores.labelled)
    rows = [
        f"| {kind} | {number} | {right[kind]} | {right[kind] / number:.0%} |"
        for kind, number in kinds.most_common()
    ]
    return "\n".join(
        [
            "# References that are found, and those that a reader sees",
            "",
            "Made by `python reports/references/make_references.py`; do not edit. Labels: tests/data/references, made by hand by one reader.",
            "",
            (
                f"{len(scores.labelled)} labelled uses in {scores.steps} model calls of {len(scores.sessions)} sessions; "
                f"{len(scores.found)} uses found there, {scores.right} of them labelled."
            ),
            (
                f"**Precision {scores.precision:.0%}, recall {scores.recall:.0%}.** So few labels leave some 12 points of doubt on either side; "
                "no interval of a run covers it yet."
            ),
            f"{unseen:.0%} of the labelled uses leave no evidence in any text.",
            "",
            "| what a reader sees | labelled | found | recall |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            *[f"- {name}" for name in scores.sessions],
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
