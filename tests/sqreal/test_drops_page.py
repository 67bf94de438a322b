# SPDX-License-Identifier: Apache-2.0
"""The committed table of what drops cost: it is the one of its data, and its counts obey the laws that it states."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sqreal.plugin.history import Span, whole_pages

DROPS = Path(__file__).parents[2] / "reports" / "drops"


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DROPS))
        yield importlib.import_module("make_drops")


def test_the_page_is_that_of_its_data(made):
    cases, sglang = made.read_cases()
    assert (DROPS / "README.md").read_text(encoding="utf-8") == made.page_of(cases, sglang)
    asked = {
        (page, context, dropped, made.start_of(place, context, dropped))
        for page in made.PAGES
        for context in made.CONTEXTS
        for dropped in made.DROPPED
        for place in made.PLACES
    }
    assert {(case.page, case.context, case.dropped, case.start) for case in cases} == asked


def test_counts_obey_the_laws(made):
    """In place: what is new and one token. By a new prompt: all behind the span, from a page's border on."""
    for case in made.read_cases()[0]:
        gone = whole_pages(Span(case.start, case.start + case.dropped), case.page)
        assert case.prompt_in_place == case.context + made.NEW - (gone.tokens if gone else 0), case
        assert case.computed_in_place == made.NEW + 1, case
        assert case.prompt_reprefill == case.context + made.NEW - case.dropped, case
        cached = case.start // case.page * case.page
        assert case.prompt_reprefill - case.computed_reprefill == cached, case
