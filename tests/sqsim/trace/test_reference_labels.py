# SPDX-License-Identifier: Apache-2.0
"""Labels of references made by hand, and the page that holds the finder against them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[3] / "reports" / "references"


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(REPORT))
    return importlib.import_module("make_references")


def test_the_page_is_what_its_command_writes(made):
    assert made.page() == made.PAGE.read_text()


def test_the_finder_is_no_worse_than_it_was(made):
    """Precision 96 %, recall 49 % of 196 uses (Claude Code, Codex, SWE-agent, OpenHands, tau-bench, WebDancer): floors for these."""
    scores = made.scored(made.here())
    assert scores.precision > 0.9
    assert scores.recall > 0.45


def test_judged_pairs_are_the_used_and_the_unused_ones(made):
    """A neutral pair counts neither way, nor one of a failed call, whose response has no cursor."""
    sessions = made.here()
    scores = made.scored(sessions)
    judged = {
        made.Place(session.name, step.step, call)
        for session, _ in sessions
        for step in session.steps
        for call in range(step.seen)
        if call not in step.neutral
    }
    uses = sum(len(step.uses) for session, _ in sessions for step in session.steps)
    assert scores.found | scores.labelled.keys() <= judged
    assert len(scores.labelled) + scores.failed == uses
    assert scores.pairs <= len(judged)


def test_a_share_has_wilsons_interval(made):
    """10 of 100: 0.0552 to 0.1744, worked out by hand from the formula."""
    assert made._share(10, 100) == "10% (6% to 17%)"
    assert made._share(0, 0) == "-"


def test_another_file_is_refused(made, tmp_path):
    session, path = made.here()[0]
    other = tmp_path / path.name
    other.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(SystemExit, match="is not the file that was labelled"):
        made.scored([(session, other)])


def test_a_folder_without_a_labelled_session_is_refused(made, tmp_path):
    with pytest.raises(SystemExit, match=r"holds no labelled session; name a file claude_code_cctrace\.jsonl"):
        made.elsewhere(tmp_path)
