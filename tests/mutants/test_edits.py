# SPDX-License-Identifier: Apache-2.0
"""The list of edits fits the source: `make mutants` runs them, and this test keeps them from going stale."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.edits import ROOT, Edit, edits


@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.name)
def test_an_edit_applies_once_and_leaves_python(edit: Edit):
    source = (ROOT / edit.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(edit.applied(source))) != ast.dump(ast.parse(source))
    for test in edit.tests:
        assert (ROOT / test).exists(), test


def test_names_are_names():
    names = [edit.name for edit in edits()]
    assert len(set(names)) == len(names) >= 60
