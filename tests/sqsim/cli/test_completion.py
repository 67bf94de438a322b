# SPDX-License-Identifier: Apache-2.0
"""What a shell is told when it completes a command: verbs, options, the keys of `--set`, the names of policies."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sqsim.cli.output import keys_to_set
from sqsim.experiments.file_schemas import scenario_schema
from sqsim.policies.registry import POLICIES
from sqsim.scenario.load import LOADS
from tests.sqsim.packages import POLICY, install, run_with


def asked(line):
    """What bash tells a command when it wants the last word of a line completed."""
    words = line.split(" ")
    place = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return words[0], {f"_{words[0].upper()}_COMPLETE": "complete_bash", **place}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sqsim re", ["region", "report"]),
        ("sqsim trace im", ["import"]),
        ("sqsim schema --st", ["--study"]),
        ("sqsim run s.yaml --set engine.ca", ["engine.cache="]),
        ("sqsim sweep s.yaml --set policy.name=k", ["policy.name=keep_last"]),
        ("sqreal do", ["doctor"]),
        ("sqreal run s.yaml --set load.c", ["load.concurrency="]),
    ],
)
def test_a_shell_completes(line, offered):
    name, variables = asked(line)
    app = importlib.import_module(f"{name}.cli.app").app
    result = CliRunner().invoke(app, [], env=variables, prog_name=name)
    assert result.output.split() == offered


@pytest.mark.parametrize("name", ["sqsim", "sqreal"])
def test_the_command_itself_completes(name):
    """Through the function that is installed as the command, whose name the shell knows."""
    _, variables = asked(f"{name} ru")
    script = f"import sys; sys.argv[0] = {name!r}; from {name}.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **variables}, capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["run"]), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("name", ["sqsim", "sqreal"])
def test_the_script_for_a_shell_is_shown(name, shell):
    app, variable = importlib.import_module(f"{name}.cli.app").app, f"_{name.upper()}_COMPLETE"
    result = CliRunner().invoke(app, [], env={variable: f"source_{shell}"}, prog_name=name)
    assert variable in result.output


def test_what_is_offered_are_the_keys_of_a_file():
    keys = scenario_schema()["properties"]
    inner = {"engine": [keys["engine"]], "load": keys["load"]["oneOf"], "policy": keys["policy"]["oneOf"]}
    below = {f"{top}.{key}=" for top, parts in inner.items() for part in parts for key in part["properties"]}
    names = {f"policy.name={name}" for name in POLICIES}
    assert set(keys_to_set("")) == {f"{key}=" for key in keys} | below - {"policy.name="} | names
    assert {f"load.{name}=" for name in LOADS} <= set(keys_to_set("load."))


@pytest.mark.parametrize(
    "code", ["1 / 0", "import nowhere", "P = 3", "print('noise')\nraise SystemExit(3)", "def ("]
)
def test_a_broken_policy_package_leaves_the_rest_and_says_nothing(tmp_path, code):
    """A shell shows what a completion prints on the user's prompt."""
    site = install(install(tmp_path, "broken", code), "fine", "print('noise')\n" + POLICY.format(name="fine"))
    line = "sqsim run s.yaml --set policy.name="
    script = "import sys; sys.argv[0] = 'sqsim'; from sqsim.cli.main import main; main()"
    done = run_with(site, script, **asked(line)[1])
    assert (done.returncode, done.stderr) == (0, "")
    offered = set(done.stdout.split())
    assert "policy.name=fine" in offered
    assert "policy.name=broken" not in offered
    assert offered >= {"policy.name=none", "policy.name=sidequest"}
