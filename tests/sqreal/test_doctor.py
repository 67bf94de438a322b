"""What doctor finds, and that it names one command that mends it."""

from __future__ import annotations

import json

import pytest

from sqreal import doctor, install
from sqreal.doctor import Check, examine

ALL = {"sglang": "0.5.23", "torch": "2.13.0+cpu", "httpx": "0.28.1"}


@pytest.fixture
def machine(monkeypatch):
    """A machine with these distributions and GPUs, on which SGLang loads."""

    def make(distributions, gpus=()):
        monkeypatch.setattr(doctor, "installed", distributions.get)
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
        "measure a server that runs already",
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
            "pip install '.[real]'",
        ),
        ({"sglang": "0.5.9"}, [], {"sglang": "not tested; tested: 0.5.23"}, "make real-cpu"),
        ({"torch": None}, [], {"torch": "not installed"}, "make real-cpu"),
        ({}, ["NVIDIA H200"], {"torch": "a CPU build beside a GPU"}, "pip install '.[real]'"),
    ],
)
def test_what_is_wrong_and_the_one_command_that_mends_it(machine, changes, gpus, expected, fix):
    machine({**ALL, **changes}, gpus)
    found = examine(imports=False)
    assert problems(found) == expected
    assert found.fix == fix
    assert [text.split(":")[0] for text in found.possible] == ["measure a server that runs already"]


def test_without_httpx_nothing_is_possible(machine):
    machine({**ALL, "httpx": None})
    found = examine(imports=False)
    assert found.possible == ()
    assert found.fix == "make real-cpu"


def test_what_does_not_load_is_named(machine, monkeypatch):
    machine(ALL)
    monkeypatch.setattr(doctor, "_MODULES", ("json", "no_such_module"))
    assert problems(examine()) == {
        "import": "SGLang does not load: ModuleNotFoundError: No module named 'no_such_module'"
    }


def test_a_plugin_that_sglang_does_not_know(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: ())
    assert doctor._plugin().problem == "SGLang does not know it; sqsim was installed before it was there"


@pytest.mark.real
def test_this_machine_is_whole():
    found = examine()
    assert problems(found) == {}
    assert found.checks[-1] == Check("import", "SGLang loads")
