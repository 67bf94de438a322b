# SPDX-License-Identifier: Apache-2.0
"""The hand-made labels of references fit their sessions: hashes, ordinals by an independent count, enough of them, two passes agree."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.sqsim.trace import reference_labels as labels
from tests.sqsim.trace.session_calls import calls_of_steps

SESSIONS = labels.sessions()
HERE = [session for session in SESSIONS if session.path]
ELSEWHERE = [session for session in SESSIONS if not session.path]


def names(sessions: list[labels.Session]) -> list[str]:
    return [session.name for session in sessions]


def fits(session: labels.Session, path: Path) -> None:
    assert labels.sha256(path) == session.sha256
    calls = calls_of_steps(path, session.format, session.run)
    assert [step.step for step in session.steps] == list(range(len(calls)))  # every model call is judged
    assert [step.seen for step in session.steps] == [sum(calls[:n]) for n in range(len(calls))]


@pytest.mark.parametrize("session", HERE, ids=names(HERE))
def test_labels_fit_the_session(session):
    assert session.path
    fits(session, session.path)


@pytest.mark.parametrize("session", ELSEWHERE, ids=names(ELSEWHERE))
def test_labels_fit_a_session_that_only_its_publisher_has(session):
    folder = os.environ.get("SQSIM_SESSIONS")
    if not folder:
        pytest.skip(f"SQSIM_SESSIONS names no folder with {session.name}.jsonl, from {session.source}")
    fits(session, Path(folder) / f"{session.name}.jsonl")


def test_there_are_enough_labels():
    def uses(sessions: list[labels.Session]) -> int:
        return sum(len(step.uses) for session in sessions for step in session.steps)

    unused = sum(len(step.unused) for session in HERE for step in session.steps)
    assert uses(SESSIONS) >= 300
    assert uses(HERE) + unused >= 300


def test_every_kind_of_evidence_is_there():
    kinds = Counter(
        kind for session in SESSIONS for step in session.steps for use in step.uses for kind in use.kinds
    )
    assert min(kinds[kind] for kind in ("edit", "path", "id", "symbol", "output", "other", "none")) >= 10


def test_a_session_says_where_it_is_public():
    for session in SESSIONS:
        assert session.source.startswith("https://github.com/")
        assert session.licence in {"Apache-2.0", "MIT"}


def written(path: Path, steps: list[dict[str, object]]) -> Path:
    head = {"file": None, "sha256": "", "format": "codex", "run": 0, "source": "", "licence": "MIT"}
    path.write_text(json.dumps({**head, "steps": steps}))
    return path


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"uses": {"2": ["path"]}}, "call 2 is no earlier call"),
        ({"uses": {"1": ["path"]}, "neutral": {"1": "call"}}, "call 1 is used and neutral"),
        ({"uses": {"1": ["path"]}, "restated": [0]}, "call 0 is restated and not used"),
        ({"uses": {"1": []}}, "call 1 has no kind"),
        ({"uses": {"1": ["none", "path"]}}, "call 1 has no kind, or `none` and another"),
        ({"uses": {"1": ["paths"]}}, "'paths' is none of edit, path"),
        ({"uses": {}, "neutral": {"1": "no"}}, "'no' is none of call, shown_again"),
    ],
)
def test_a_wrong_label_is_named(tmp_path, step, problem):
    path = written(tmp_path / "one.json", [{"step": 3, "seen": 2, **step}])
    with pytest.raises(ValueError, match=f"one.json, step 3: .*{problem}"):
        labels.read(path)


def test_a_step_is_labelled_once(tmp_path):
    step: dict[str, object] = {"step": 0, "seen": 0, "uses": {}}
    with pytest.raises(ValueError, match=r"one\.json: steps are out of order, or one of them is there twice"):
        labels.read(written(tmp_path / "one.json", [step, step]))


def test_what_is_neither_used_nor_neutral_is_unused(tmp_path):
    entry = {"step": 4, "seen": 4, "uses": {"3": ["id"]}, "neutral": {"0": "shown_again"}}
    (step,) = labels.read(written(tmp_path / "one.json", [entry])).steps
    assert step.unused == {1, 2}


def test_kappa_is_that_of_a_table_counted_by_hand(tmp_path):
    """Both say used 1, both unused 2, only the first 1: agreed 3/4, expected 1/2 * 1/4 + 1/2 * 3/4, kappa 1/2."""
    one = labels.read(
        written(tmp_path / "a.json", [{"step": 1, "seen": 4, "uses": {"0": ["id"], "1": ["id"]}}])
    )
    two = labels.read(written(tmp_path / "a.json", [{"step": 1, "seen": 4, "uses": {"0": ["path"]}}]))
    assert labels.agreement([one], [two]) == (pytest.approx(0.5), 4, 3)


def test_agreement_counts_only_steps_that_both_have(tmp_path):
    one = labels.read(written(tmp_path / "a.json", [{"step": 1, "seen": 1, "uses": {}}]))
    two = labels.read(written(tmp_path / "a.json", [{"step": 2, "seen": 1, "uses": {}}]))
    with pytest.raises(ValueError, match="no pair in common"):
        labels.agreement([one], [two])


def test_the_second_pass_has_15_percent_of_the_steps_and_agrees():
    steps = sum(len(session.steps) for session in SESSIONS)
    second = labels.second_labels()
    assert sum(len(session.steps) for session in second) >= 0.15 * steps
    assert labels.agreement(SESSIONS, second).kappa > 0.9


def test_another_reader_agrees():
    """Kappa above 0.8 is "almost perfect" in the words of Landis and Koch (1977)."""
    other = labels.other_reader(SESSIONS)
    assert sum(len(session.steps) for session in other) == 69
    assert sum(len(step.uses) for session in other for step in session.steps) == 69
    assert labels.agreement(SESSIONS, other).kappa > 0.8


def test_the_readme_counts_what_is_there():
    steps = [step for session in SESSIONS for step in session.steps]
    uses, unused = sum(len(step.uses) for step in steps), sum(len(step.unused) for step in steps)
    neutral = sum(len(step.neutral) for step in steps)
    counted = f"{uses:,} uses, {unused:,} unused and {neutral:,} neutral responses"
    assert counted in (labels.LABELS / "README.md").read_text()
