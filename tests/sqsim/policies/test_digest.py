# SPDX-License-Identifier: Apache-2.0
"""Digest of a third party's policy: every edit that can change what it does changes it, and nothing else does."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution

import pytest

from sqsim.policies.contract.digest import digest

TYPED = """
from typing import Any, ClassVar, Literal
from pydantic import PrivateAttr
from sqsim.policies import AfterEviction, Policy

LIMIT = 10
def factory(start=20):
    return lambda: start
def made(rest):
    def chosen(self, view):
        return rest
    return chosen
def helper(x):
    return x + 70
class Typed(Policy):
    name: Literal["typed"] = "typed"
    after_eviction: AfterEviction = "reprefill"
    kept: ClassVar[Any] = {"a": [30], "b": {"one", "two", "three"}}
    _past: Any = PrivateAttr(40)
    _made: Any = PrivateAttr(default_factory=factory())

    def evict(self, view, least=50, *, most=60):
        return [each.cursor for each in view.cursors if LIMIT and helper(0) and each in {"x", "y", "z"}]

    @staticmethod
    def rest():
        return 80

    @classmethod
    def worst(cls):
        return 90

    spawn = made(11)
"""


def typed(text: str, file: str = "<cell 1>") -> str:
    space = {"__name__": "typed_by_hand"}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    return digest(space["Typed"])


@pytest.mark.parametrize("number", ["10", "20", "30", "40", "50", "60", "70", "80", "90", "11"])
def test_an_edit_of_any_part_of_a_class_without_a_file_changes_it(number):
    assert typed(TYPED.replace(number, "12")) != typed(TYPED)


def test_the_place_of_a_class_without_a_file_does_not_change_it():
    assert typed("\n\n" + TYPED, "<cell 7>") == typed(TYPED)
    assert typed(TYPED + "unrelated = 5\n") == typed(TYPED)


def test_it_does_not_depend_on_the_process(tmp_path):
    """A set's order depends on the process; PYTHONHASHSEED sets it."""
    (tmp_path / "typed_text.py").write_text(f"TEXT = {TYPED!r}")
    code = (
        "from typed_text import TEXT; from sqsim.policies.contract.digest import digest\n"
        "space = {'__name__': 'typed_by_hand'}; exec(TEXT, space); print(digest(space['Typed']))"
    )
    found = set()
    for seed in "12":
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        found.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(found) == 1


RULE = """
from typing import Literal
from sqsim.policies import AfterEviction, Policy
import {helper}

class Rule(Policy):
    name: Literal["rule"] = "rule"
    after_eviction: AfterEviction = "reprefill"
"""


@pytest.mark.parametrize("listed", [True, False])
def test_a_module_beside_the_policy_belongs_to_it(tmp_path, monkeypatch, listed):
    """By the distribution's list of files, even where nothing imports the module; without a list, by the import."""
    monkeypatch.syspath_prepend(tmp_path)
    rule, helper = f"rule_{listed}", f"helper_{listed}"
    (tmp_path / f"{rule}.py").write_text(RULE.format(helper="math" if listed else helper))
    (tmp_path / f"{helper}.py").write_text("N = 1\n")
    info = tmp_path / "rule-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rule\nVersion: 1\n")
    if listed:
        (info / "RECORD").write_text(f"{rule}.py,,\n{helper}.py,,\n")
    package: Distribution = PathDistribution(info)
    kind = importlib.import_module(rule).Rule
    first = digest(kind, package)
    assert first == digest(kind, package)
    (tmp_path / f"{helper}.py").write_text("N = 2\n")
    assert first != digest(kind, package)
