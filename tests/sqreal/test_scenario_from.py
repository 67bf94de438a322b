# SPDX-License-Identifier: Apache-2.0
"""A scenario written from what a server says about itself reads back as that server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sqreal.errors import UnreachableError
from sqreal.server import scenario_from
from sqreal.server.options import options_of
from sqreal.server.scenario_from import scenario_text, unmodelled
from sqreal.server.server import ServerInfo
from sqreal.setup.tiny_models import write_tiny_model
from sqsim.errors import InputError
from sqsim.scenario.scenario import load_scenario, make_scenario

HERE = "http://127.0.0.1:30000"
RECORDED = Path(__file__).parents[1] / "data" / "sglang-schedules" / "A" / "server.json"


def said(**changes):
    """What a real SGLang 0.5.23 answered (tests/data/sglang-schedules/A), with changes."""
    recorded = json.loads(RECORDED.read_text())
    raw = {
        **recorded["server_info"],
        "internal_states": [recorded["internal_state"]],
        "model_path": "x/tiny-llama",
    }
    return ServerInfo.of({**raw, **changes}, HERE)


def engine(info, **options):
    return yaml.safe_load(scenario_text(info, HERE, **options))["engine"]


def test_it_has_the_servers_own_sizes_and_limits(tmp_path):
    text = scenario_text(said(), HERE)
    (tmp_path / "s.yaml").write_text(text)
    scenario = load_scenario(tmp_path / "s.yaml")
    found = scenario.engine
    assert scenario.model == "tiny-llama"
    assert (found.gpu, found.kv_capacity, found.page_size, found.max_running) == ("cpu", 4096, 1, 16)
    assert (found.chunked_prefill, found.context_length, found.kv_dtype) == (128, 2048, "float32")
    assert text.startswith(f"# from {HERE}: SGLang 0.5.23, x/tiny-llama\n# name your traces here\n")


def test_a_server_started_from_it_is_the_same(tmp_path):
    scenario = make_scenario(yaml.safe_load(scenario_text(said(radix_cache_backend="sidequest"), HERE)))
    options = options_of(scenario, tmp_path)
    assert (options.kv_capacity, options.max_running, options.chunked_prefill) == (4096, 16, 128)
    assert options.in_place


def test_the_models_directory_is_used_where_it_is_here(tmp_path):
    model = write_tiny_model("tiny-gpt-oss", tmp_path / "model")
    info = said(model_path=str(model), dtype="auto", disable_hybrid_swa_memory=True)
    content = yaml.safe_load(scenario_text(info, HERE))
    assert content["model"] == str(model / "config.json")
    assert content["engine"]["kv_dtype"] == "bfloat16"
    assert content["engine"]["swa_pool"] is False


def test_a_server_that_does_not_chunk_never_cuts_a_prompt():
    assert engine(said(chunked_prefill_size=-1, page_size=16, context_length=2040))["chunked_prefill"] == 2048


def test_the_kv_format_is_the_one_that_was_set():
    assert engine(said(kv_cache_dtype="fp8_e5m2"))["kv_dtype"] == "fp8_e5m2"
    assert engine(said(dtype="half"))["kv_dtype"] == "float16"


def test_a_gpu_is_known_by_its_drivers_name_and_only_on_this_machine(monkeypatch):
    monkeypatch.setattr(scenario_from, "cuda_devices", lambda: ["NVIDIA H200"])
    info = said(device="cuda")
    assert engine(info)["gpu"] == "h200-sxm"
    assert engine(info)["mem_fraction"] == 0.843
    with pytest.raises(InputError, match=r"does not report which GPU .*give --gpu, one of"):
        scenario_text(info, "http://gpu-machine:30000")
    monkeypatch.setattr(scenario_from, "cuda_devices", lambda: ["NVIDIA H100 PCIe"])
    with pytest.raises(InputError, match=r"this machine has NVIDIA H100 PCIe"):
        scenario_text(info, HERE)
    assert engine(info, gpu="h100-sxm")["gpu"] == "h100-sxm"


def test_a_model_that_nobody_knows(tmp_path):
    with pytest.raises(InputError, match=r"model org/secret-7b is neither .*give --model"):
        scenario_text(said(model_path="org/secret-7b"), HERE)
    assert (
        yaml.safe_load(scenario_text(said(model_path="org/x"), HERE, model="gpt-oss-20b"))["model"]
        == "gpt-oss-20b"
    )


def test_what_a_scenario_cannot_say_is_said_above_it():
    info = said(schedule_policy="lpm", enable_mixed_chunk=True)
    assert unmodelled(said()) == []
    assert unmodelled(info) == ["schedule_policy: lpm", "enable_mixed_chunk: True"]
    assert "# not in a scenario, and not simulated: schedule_policy: lpm\n" in scenario_text(info, HERE)


def test_an_answer_that_is_not_sglangs():
    with pytest.raises(UnreachableError, match=r"/server_info is not an SGLang answer"):
        ServerInfo.of({"version": "1"}, HERE)


@pytest.mark.real
def test_a_real_server_gives_the_scenario_that_it_was_started_from(llama_server):
    content = yaml.safe_load(scenario_text(llama_server.info, llama_server.url))
    found = make_scenario(content).engine
    options = llama_server.options
    assert content["model"] == "tiny-llama"  # by name: the directory of a tiny model goes with its server
    assert (found.gpu, found.kv_dtype) == ("cpu", "float32")
    assert (found.kv_capacity, found.max_running, found.chunked_prefill, found.context_length) == (
        options.kv_capacity,
        options.max_running,
        options.chunked_prefill,
        options.context_length,
    )
    assert unmodelled(llama_server.info) == []
