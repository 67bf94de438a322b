# SPDX-License-Identifier: Apache-2.0
"""What people are shown of Python: every block of docs/python.md runs, every example runs, a notebook shows what it prints."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sqsim.scenario.scenario import load_scenario
from tests.sqsim.notebooks import executed, written

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/python.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)  # fmt: skip
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_every_block_of_the_guide_runs(tmp_path, monkeypatch):
    """Python in one namespace, shell lines in bash, YAML as a scenario; in a folder where the traces lie as in the repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    command = tmp_path / "bin/sqsim"
    command.parent.mkdir()
    command.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from sqsim.cli.main import main; main()' \"$@\"\n"
    )
    command.chmod(0o755)
    paths = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    namespace = {"__name__": "guide"}
    for number, (language, text) in enumerate(BLOCKS):
        match language:
            case "python":
                exec(compile(text, f"docs/python.md, block {number}", "exec", dont_inherit=True), namespace)
            case "sh":
                subprocess.run(["bash", "-euc", text], env={**os.environ, **paths}, check=True)
            case "yaml":
                (tmp_path / "shown.yaml").write_text(text)
                load_scenario(tmp_path / "shown.yaml")
            case _:
                pytest.fail(f"block {number} is of no language that is run here: {language!r}")
    schema = json.loads((tmp_path / "scenario.schema.json").read_text())
    assert "kv_capacity" in schema["properties"]["engine"]["properties"]


def test_the_guide_has_all_kinds_of_blocks():
    assert {language for language, _ in BLOCKS} == {"python", "sh", "yaml"}
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_runs(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert "<RunRecord simulated, none / radix" in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_notebook_runs_and_shows_what_it_prints(path):
    """`.venv/bin/python -m tests.sqsim.notebooks examples/*.ipynb` writes its outputs anew."""
    assert written(executed(path)) == path.read_text(encoding="utf-8")


def test_there_are_examples_of_both_kinds():
    assert SCRIPTS
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len(set(ids)) == len(ids)
