# SPDX-License-Identifier: Apache-2.0
"""Tiny models are those that sqsim knows, and a scenario becomes the server that it describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqreal.errors import ModelPathError
from sqreal.server.options import ServerOptions, options_of
from sqreal.setup.install import CPU_SHIMS
from sqreal.setup.tiny_models import TINY_MODELS, write_tiny_model
from sqsim.errors import InputError, ScenarioError
from sqsim.models.cost.geometry import geometry
from sqsim.scenario.scenario import make_scenario

ENGINE = {"gpu": "cpu", "kv_capacity": 4096}


def scenario(engine=None, base=None, **changes):
    return make_scenario(
        {"traces": "t.jsonl", "model": "tiny-llama", "engine": {**ENGINE, **(engine or {})}, **changes},
        base=base,
    )


def flags(options):
    """Flags as a mapping; a switch maps to True."""
    parts, found = options.flags(), {}
    for at, part in enumerate(parts):
        if part.startswith("--"):
            value = parts[at + 1] if at + 1 < len(parts) else "--"
            found[part[2:]] = True if value.startswith("--") else value
    return found


@pytest.mark.parametrize("name", TINY_MODELS)
def test_sqsim_knows_the_model_that_is_written(name, tmp_path):
    directory = write_tiny_model(name, tmp_path / "deep" / name)
    assert geometry(str(directory)) == geometry(name)
    first = (directory / "config.json").read_bytes()
    write_tiny_model(name, directory)
    assert (directory / "config.json").read_bytes() == first
    assert json.loads(first)["eos_token_id"] == 2


def test_an_unknown_name_and_a_place_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="'tiny-bert' is not a tiny model; choose one of tiny-llama"):
        write_tiny_model("tiny-bert", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_tiny_model("tiny-llama", tmp_path / "file")


def test_a_scenario_says_every_flag(tmp_path):
    engine = {
        "page_size": 16,
        "max_running": 7,
        "chunked_prefill": 64,
        "schedule_conservativeness": 0.3,
        "context_length": 1024,
    }
    options = options_of(scenario(engine, seed=5), tmp_path)
    found = flags(options)
    assert options.model == tmp_path / "tiny-llama"
    assert (
        found.items()
        >= {
            "model-path": str(options.model),
            "device": "cpu",
            "load-format": "dummy",
            "max-total-tokens": "4096",
            "page-size": "16",
            "max-running-requests": "7",
            "chunked-prefill-size": "64",
            "schedule-conservativeness": "0.3",
            "context-length": "1024",
            "random-seed": "5",
            "attention-backend": "torch_native",
            "skip-tokenizer-init": True,
            "sleep-on-idle": True,
            "skip-server-warmup": True,
            "enable-metrics": True,
        }.items()
    )
    assert not found.keys() & {"mem-fraction-static", "enable-streaming-session", "disable-hybrid-swa-memory"}


def test_a_session_cache_wants_the_plugins_sessions(tmp_path):
    options = options_of(scenario({"cache": "session"}), tmp_path)
    flags = " ".join(options.flags())
    assert "--radix-cache-backend sidequest" in flags
    assert "--enable-streaming-session" in flags
    assert options.environment(force_tokens=False, step_log=None)["SQREAL_IN_PLACE"] == "1"


def test_gpt_oss_on_a_cpu_wants_the_plugins_attention(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("SQREAL_FORCE_TOKENS", "1")
    options = options_of(scenario({"swa_pool": False}, model="tiny-gpt-oss"), tmp_path)
    environment = options.environment(force_tokens=False, step_log=None)
    assert flags(options)["attention-backend"] == "intel_amx"
    assert flags(options)["disable-hybrid-swa-memory"] is True
    assert environment["SQREAL_CPU_ATTENTION"] == "1"
    assert environment["PYTHONPATH"] == f"{CPU_SHIMS}:/elsewhere"
    assert "SQREAL_FORCE_TOKENS" not in environment  # only what was asked for reaches the plugin


def test_what_the_plugin_is_asked_for(tmp_path):
    options = options_of(scenario(), tmp_path)
    environment = options.environment(force_tokens=True, step_log=Path("steps.jsonl"))
    asked = {name: value for name, value in environment.items() if name.startswith("SQREAL_")}
    assert asked == {"SQREAL_FORCE_TOKENS": "1", "SQREAL_STEP_LOG": str(Path("steps.jsonl").resolve())}


def test_a_gpu_takes_sglangs_own_choices(tmp_path):
    write_tiny_model("tiny-gpt-oss", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    (tmp_path / "model" / "tokenizer.json").write_bytes(b"")
    engine = {"gpu": "h100-sxm", "kv_capacity": "auto", "kv_dtype": "fp8_e4m3", "tensor_parallel": 2}
    options = options_of(scenario(engine, model="model/config.json", base=tmp_path), tmp_path)
    found = flags(options)
    assert (
        found.items()
        >= {
            "device": "cuda",
            "load-format": "auto",
            "mem-fraction-static": "0.88",
            "kv-cache-dtype": "fp8_e4m3",
            "dtype": "auto",
            "tp-size": "2",
        }.items()
    )
    assert not found.keys() & {"attention-backend", "max-total-tokens", "skip-tokenizer-init"}
    environment = options.environment(force_tokens=True, step_log=None)
    assert "SGLANG_USE_CPU_ENGINE" not in environment
    assert str(CPU_SHIMS) not in environment.get("PYTHONPATH", "")


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        (
            {"kv_capacity": "auto"},
            {},
            r"engine\.kv_capacity: auto would take all memory .*give a number of tokens",
        ),
        ({}, {"model": "gpt-oss-20b"}, r"model: gpt-oss-20b is a name, .*path of its config\.json"),
    ],
)
def test_what_no_server_can_be_made_of(tmp_path, engine, changes, message):
    with pytest.raises(ScenarioError, match=message):
        options_of(scenario(engine, **changes), tmp_path)


def test_a_model_path_without_a_model(tmp_path):
    options = options_of(scenario(model="nowhere/config.json", base=tmp_path), tmp_path)
    with pytest.raises(ModelPathError, match=r"nowhere/config\.json: cannot be read"):
        options.flags()


def test_extra_flags_come_last():
    assert ServerOptions(model=Path("m"), device="cuda", extra=("--log-level", "debug")).flags()[-2:] == [
        "--log-level",
        "debug",
    ]
