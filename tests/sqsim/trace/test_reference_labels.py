# SPDX-License-Identifier: Apache-2.0
"""Labels of references made by hand, and the page that holds the finder against them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[3] / "reports" / "references"
KINDS = {"edit", "path", "identifier", "symbol", "output", "other", "none"}


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(REPORT))
    return importlib.import_module("make_references")


def test_the_page_is_what_its_command_writes(made):
    assert made.page() == made.PAGE.read_text()


def test_labels_name_steps_and_responses_that_were_there(made):
    """`scored` ends where a file changed or a call failed; a use is never before the step that reads the response."""
    scores = made.scored()
    assert len(scores.labelled) == 69
    assert set(scores.labelled.values()) <= KINDS
    for use in scores.labelled:
        assert 0 <= use.cursor <= use.step * 4


def test_the_finder_is_no_worse_than_it_was(made):
    """Precision 76 %, recall 54 % of 69 uses, one reader: floors, no claim about other sessions."""
    scores = made.scored()
    assert scores.precision > 0.7
    assert scores.recall > 0.5
