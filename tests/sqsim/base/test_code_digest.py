# SPDX-License-Identifier: Apache-2.0
"""The digest names the code and nothing else, and a finished point is found again by the code that a run goes through."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from itertools import count
from pathlib import Path

import pytest

from sqsim.base.code_digest import code_digest
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

ROOT = Path(__file__).parents[3]
FILES = {"__init__.py": "", "a.py": "x = 1\n", "data/costs.yaml": "a: 1\n", "report/page.css": "p {}\n"}


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a package `thing` with these files, at another place with each call."""
    places = count()

    def of(files, **settings):
        place = tmp_path / str(next(places))
        for name, text in files.items():
            (place / "thing" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "thing" / name).write_text(text)
        code_digest.cache_clear()
        invalidate_caches()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(place))
            return code_digest("thing", **settings)

    yield of
    code_digest.cache_clear()


def test_where_a_package_lies_and_what_is_not_shipped_is_no_matter(digest):
    beside = {"__pycache__/a.cpython-311.pyc": "x", "a.py~": "x = 2", "notes.md": "x"}
    assert digest(FILES) == digest(FILES) == digest(dict(reversed(FILES.items()))) == digest(FILES | beside)
    assert len(digest(FILES)) == 12


@pytest.mark.parametrize(
    "changed",
    [
        FILES | {"a.py": "x = 2\n"},
        FILES | {"data/costs.yaml": "a: 2\n"},
        FILES | {"data/new.jsonl": "{}\n"},
        FILES | {"b.py": ""},
        {("b.py" if name == "a.py" else name): text for name, text in FILES.items()},
        {("data/a.py" if name == "a.py" else name): text for name, text in FILES.items()},
        {name: text for name, text in FILES.items() if name != "a.py"},
    ],
    ids=["code", "data", "new data", "new code", "renamed", "moved", "gone"],
)
def test_a_change_is_seen(digest, changed):
    assert digest(changed) != digest(FILES)


def test_what_is_left_out_changes_nothing(digest):
    restyled = FILES | {"report/page.css": "p {color: red}\n", "report_more.py": ""}
    assert digest(FILES, without=("report",)) == digest(restyled, without=("report",))
    assert digest(FILES) != digest(restyled)
    assert digest(FILES, without=("report",)) != digest(FILES | {"a.py": ""}, without=("report",))


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ModuleNotFoundError, match="no package 'sqsim_of_nobody' is installed"):
        code_digest("sqsim_of_nobody")


def test_a_finished_point_outlives_a_change_of_pages_and_no_other(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", [chain(2)])
    copy = tmp_path / "sqsim"
    shutil.copytree(ROOT / "sqsim", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "from sqsim.experiments.points import content_key\n"
        "from sqsim.scenario.scenario import make_scenario\n"
        "print(content_key(make_scenario({'traces': 'tasks.jsonl'})))"
    )

    def key():
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def append(file):
        file.write_text(file.read_text() + "\n# another\n")

    before = key()
    for file in (copy / "report").rglob("*.py"):
        append(file)
    assert key() == before
    append(copy / "errors.py")
    assert key() != before
