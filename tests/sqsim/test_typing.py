# SPDX-License-Identifier: Apache-2.0
"""The types as a user's type checker sees them: in the wheel, without our plugin and settings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sqsim", "sqreal", "sqkernels")
USER = """
from pathlib import Path

from sqsim import Policy, RunRecord, Scenario, View, compare, load_scenario, metrics, simulate

scenario = Scenario(traces=[Path("a.jsonl")], engine={"cache": "session"}, tasks="all", load={"concurrency": 4})
reveal_type(scenario)
reveal_type(scenario.with_({"load.concurrency": 4}, seed=1))
reveal_type(load_scenario("scenario.yaml"))
record = simulate(scenario)
reveal_type(record)
reveal_type(RunRecord.load("out"))
reveal_type(record.metrics())
reveal_type(record.metrics().unit("ttft_s_p50"))
reveal_type(metrics(record))
reveal_type(compare(record, record).metrics["output_tok_s"].values)


class Mine(Policy):
    def evict(self, view: View) -> list[int]:
        reveal_type(view.turn)
        return [cursor.cursor for cursor in view.cursors]
"""
NUMBER = "float | int | str | None"
SEEN = [
    *["Scenario"] * 3,
    *["RunRecord"] * 2,
    *("Metrics", "str", f"dict[str, {NUMBER}]", f"list[{NUMBER}]", "int"),
]
WRONG = """
import sqsim

sqsim.Scenario(tasks=3)
sqsim.Scenario(traces="a.jsonl", lod={})
sqsim.Scenario(traces="a.jsonl", seed="7")
sqsim.simulat
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of this tree: a build leaves files behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("sqsim", "sqreal", "kernels"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for file in filter(Path.is_file, ROOT.iterdir()):  # those that pyproject.toml names are among them
        shutil.copy(file, source)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source], check=True, capture_output=True)  # fmt: skip
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def checked(wheel, tmp_path_factory):
    """What mypy says of some code, in an environment in which the wheel is installed."""
    room = tmp_path_factory.mktemp("user")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", room / "venv"], check=True)
    (site,) = (room / "venv").glob("lib/python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))

    def check(code):
        (room / "user.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", room / "venv/bin/python", "user.py"],
            cwd=room, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    return check


def test_every_package_says_that_it_has_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_a_users_type_checker_sees_the_types(checked):
    said = checked(USER)
    seen = re.findall(r'Revealed type is "(.*?)"', said)
    assert [re.sub(r"\w+\.", "", name) for name in seen] == SEEN, said
    assert ": error:" not in said


def test_an_example_is_rightly_typed(checked):
    assert "Success" in (said := checked((ROOT / "examples/two_policies.py").read_text(encoding="utf-8"))), said


def test_and_what_is_wrong(checked):
    said = checked(WRONG)
    assert re.findall(r"user.py:(\d+): error:", said) == ["4", "5", "6", "7"], said
    assert 'Missing named argument "traces"' in said
    assert 'Unexpected keyword argument "lod"' in said
