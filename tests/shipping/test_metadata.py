# SPDX-License-Identifier: Apache-2.0
"""What is said of the release stands in several files: they agree, and every source file says its licence."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml

from sqsim import __version__
from tests.shipping.clean_python import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENCE = "SPDX-License-Identifier: Apache-2.0"
PAPER = "https://arxiv.org/abs/2602.22603"


def sources():
    """All files of code that git knows or would add; without git there is nothing to ask."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.js", "*.css"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("needs a git checkout")
    return [path for name in done.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_the_version_and_the_licence_are_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"] == LICENCE.rsplit(maxsplit=1)[-1]
    assert [each["name"] for each in cited["authors"]] == [each["name"] for each in PROJECT["authors"]]
    assert cited["keywords"] == PROJECT["keywords"]
    assert cited["references"][0]["url"] == PROJECT["urls"]["Paper"] == PAPER


def test_the_changelog_begins_with_this_version():
    found = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found[0][0] == __version__
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in found[1:]), "only the newest is unreleased"
    numbers = [tuple(map(int, version.split("."))) for version, _ in found]
    assert numbers == sorted(numbers, reverse=True)


def test_contributing_says_what_every_dependency_is_for():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page[page.index("## What each dependency is for") :].lower()
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]
    names = {re.split(r"[<>=\[]", each)[0].lower() for each in asked} - {PROJECT["name"]}
    assert not {name for name in names if name not in section}
    assert not {extra for extra in extras if f"`{extra}`" not in section}


def test_every_source_file_begins_with_its_licence():
    def head(path):
        return [line for line in path.read_text().splitlines()[:2] if not line.startswith("#!")][:1]

    wanted = ([f"# {LICENCE}"], [f"/* {LICENCE} */"])
    assert not [str(path.relative_to(ROOT)) for path in sources() if head(path) not in wanted]
