# SPDX-License-Identifier: Apache-2.0
"""What doctor finds, and that it names one command that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sqreal.errors import InstallError
from sqreal.setup import doctor, install
from sqreal.setup.doctor import Check, examine

ALL = {"sglang": "0.5.23", "torch": "2.13.0+cpu", "httpx": "0.28.1"}


@pytest.fixture
def machine(monkeypatch):
    """A machine with these distributions and GPUs, on which SGLang loads."""

    def make(distributions, gpus=()):
        monkeypatch.setattr(doctor, "installed", lambda name, python=None: distributions.get(name))
        monkeypatch.setattr(doctor, "_plugin", lambda: Check("plugin", "sqreal.plugin:register"))
        for module in (doctor, install):
            monkeypatch.setattr(module, "cuda_devices", lambda: list(gpus))

    return make


def problems(diagnosis):
    return {check.name: check.problem for check in diagnosis.checks if check.problem is not None}


def test_a_whole_cpu_machine(machine):
    machine(ALL)
    found = examine(imports=False)
    assert found.ok
    assert problems(found) == {}
    assert [text.split(":")[0] for text in found.possible] == [
        "measure a running server",
        "serve tiny-llama, tiny-qwen3, tiny-gpt-oss on this CPU",
    ]
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


def test_a_whole_gpu_machine(machine):
    machine({**ALL, "torch": "2.14.1"}, ["NVIDIA H200"])
    found = examine(imports=False)
    assert found.ok
    assert "NVIDIA H200" in {check.found for check in found.checks}
    assert any("on this GPU" in text for text in found.possible)


@pytest.mark.parametrize(
    ("changes", "gpus", "expected", "fix"),
    [
        ({"sglang": None}, [], {"sglang": "not installed"}, "make real-cpu"),
        (
            {"sglang": None, "torch": "2.14.1"},
            ["NVIDIA H200"],
            {"sglang": "not installed"},
            "make real-gpu",
        ),
        ({"sglang": "0.5.9"}, [], {"sglang": "not tested; tested: 0.5.16, 0.5.23"}, "make real-cpu"),
        ({"torch": None}, [], {"torch": "not installed"}, "make real-cpu"),
        ({}, ["NVIDIA H200"], {"torch": "a CPU build on a machine with a GPU"}, "make real-gpu"),
    ],
)
def test_what_is_wrong_and_the_one_command_that_mends_it(machine, changes, gpus, expected, fix):
    machine({**ALL, **changes}, gpus)
    found = examine(imports=False)
    assert problems(found) == expected
    assert found.fix == fix
    assert [text.split(":")[0] for text in found.possible] == ["measure a running server"]


def test_without_httpx_nothing_is_possible(machine):
    machine({**ALL, "httpx": None})
    found = examine(imports=False)
    assert found.possible == ()
    assert found.fix == "pip install 'sqsim[client]'"


def test_away_from_a_checkout_pip_installs_what_is_missing(machine, monkeypatch):
    """`in_checkout` is asked; tests/shipping asks it of a wheel. Each file that the command names is there."""
    monkeypatch.setattr(install, "in_checkout", lambda: False)
    machine({**ALL, "sglang": None})
    command = examine(imports=False).fix
    first, second = command.split(" && ")
    assert first.startswith("pip install -r ")
    assert second.startswith("pip install --no-deps -r ")
    assert all(Path(each.split()[-1]).is_file() for each in (first, second))
    machine({**ALL, "sglang": None, "httpx": None}, ["NVIDIA H200"])
    assert examine(imports=False).fix == "pip install 'sqsim[real]'"


def test_what_does_not_load_is_named(machine, monkeypatch):
    machine(ALL)
    monkeypatch.setattr(doctor, "_MODULES", ("json", "no_such_module"))
    assert problems(examine()) == {
        "import": "SGLang does not load: ModuleNotFoundError: No module named 'no_such_module'"
    }


@pytest.fixture
def old_checkout(tmp_path):
    """A checkout from before the plugin, as `pip install -e .` left it."""
    (tmp_path / "sqsim.egg-info").mkdir()
    (tmp_path / "sqsim.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: sqsim\nVersion: 0.0.1\n"
    )
    return tmp_path


def test_an_old_checkout_hides_the_plugin_from_a_server_that_is_started_in_it(old_checkout, monkeypatch):
    assert doctor._plugin().problem is None
    monkeypatch.chdir(old_checkout)
    check = doctor._plugin()
    assert check.problem.startswith(
        f"in a server started by hand in {old_checkout}: an older sqsim without the plugin"
    )
    assert str(old_checkout) in check.problem
    assert "egg-info" in check.fix


def test_an_old_checkout_on_the_path_hides_it_from_all(old_checkout, machine, monkeypatch):
    found = doctor._plugin
    machine(ALL)
    monkeypatch.setenv("PYTHONPATH", str(old_checkout))
    monkeypatch.setattr(doctor, "_plugin", found)
    diagnosis = examine(imports=False)
    assert "hides it from SGLang" in problems(diagnosis)["plugin"]
    assert diagnosis.fix == "remove that directory's sqsim*.egg-info, or install sqsim from there again"


def test_a_plugin_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(install.metadata, "distributions", lambda **_: ())
    assert "SGLang does not know the plugin" in doctor._plugin().problem


def test_what_metadata_hides_is_hidden_from_python_too(old_checkout):
    """Our reading of the path is importlib's own, which SGLang asks; and our servers' safe path is not fooled."""
    script = (
        "import importlib.metadata as m; print([e.name for e in m.entry_points(group='sglang.srt.plugins')])"
    )
    for safe, found in (("", "[]"), ("1", "['sqreal']")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=old_checkout,
            env={**os.environ, "PYTHONSAFEPATH": safe, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == found


@pytest.mark.real
def test_this_machine_is_whole():
    found = examine()
    assert problems(found) == {}
    assert found.checks[-1] == Check("import", "SGLang loads")


def test_servers_may_have_a_python_of_their_own(tmp_path, monkeypatch):
    """What it has installed is read from its path; where it does not run, that is said."""
    site = tmp_path / "site"
    (site / "sglang-0.5.16.dist-info").mkdir(parents=True)
    (site / "sglang-0.5.16.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n"
    )
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps([str(site)])}'\n")
    python.chmod(0o755)
    monkeypatch.setenv(install.PYTHON, str(python))
    monkeypatch.setenv("PYTHONPATH", "")
    assert install.require_sglang() == "0.5.16"
    found = examine(imports=False)
    assert problems(found)["torch"] == "not installed"
    assert f"{python} -m pip install --no-deps {Path(install.__file__).parents[2]}" in {
        check.fix for check in found.checks
    }
    assert found.fix == f"unset {install.PYTHON}", "make real-cpu would install it elsewhere"
    monkeypatch.setenv(install.PYTHON, str(tmp_path / "none"))
    assert "does not run" in problems(examine(imports=False))["servers"]
    with pytest.raises(InstallError, match="none: does not run"):
        install.require_sglang()
