# SPDX-License-Identifier: Apache-2.0
"""Servers that in-place eviction refuses at their start, by the flag and the fix: by stand-ins, and for real."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from sqreal.errors import ServerDiedError
from sqreal.plugin.hooks import PluginError
from sqreal.plugin.server_check import check_flags, check_scheduler
from sqreal.server.options import ServerOptions
from sqreal.server.server import start
from sqreal.setup.install import require_sglang
from sqreal.setup.tiny_models import write_tiny_model

FIT = {
    "radix_cache_backend": "sidequest",
    "enable_streaming_session": True,
    "speculative_algorithm": None,
    "dllm_algorithm": None,
    "enable_lora": None,
    "lora_paths": None,
    "enable_hierarchical_cache": False,
    "disaggregation_mode": "null",
    "enable_priority_scheduling": False,
    "disable_radix_cache": False,
    "dp_size": 1,
    "enable_dp_attention": False,
    "pp_size": 1,
}


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"radix_cache_backend": None}, "start with --radix-cache-backend sidequest"),
        ({"enable_streaming_session": False}, "start with --enable-streaming-session"),
        ({"speculative_algorithm": "EAGLE"}, "leave out --speculative-algorithm"),
        ({"dllm_algorithm": "LowConfidence"}, "leave out --dllm-algorithm"),
        ({"enable_lora": True}, "leave out --enable-lora and --lora-paths"),
        ({"lora_paths": ["a=b"]}, "leave out --enable-lora and --lora-paths"),
        ({"enable_hierarchical_cache": True}, "leave out --enable-hierarchical-cache"),
        ({"disaggregation_mode": "prefill"}, "leave out --disaggregation-mode"),
        ({"enable_priority_scheduling": True}, "leave out --enable-priority-scheduling"),
        ({"disable_radix_cache": True}, "leave out --disable-radix-cache"),
        ({"dp_size": 2}, "use --dp-size 1, without --enable-dp-attention"),
        ({"enable_dp_attention": True}, "use --dp-size 1, without --enable-dp-attention"),
        ({"pp_size": 2}, "use --pp-size 1"),
    ],
)
def test_each_flag_of_a_command_line_is_named_alone(changes, fix):
    with pytest.raises(PluginError) as refused:
        check_flags(SimpleNamespace(**{**FIT, **changes}))
    assert str(refused.value) == f"in-place eviction is not tested with this server; {fix}"


def test_a_fit_command_line_is_let_be_and_all_faults_are_said_at_once():
    check_flags(SimpleNamespace(**FIT))
    with pytest.raises(PluginError, match="leave out --enable-lora and --lora-paths; use --pp-size 1"):
        check_flags(SimpleNamespace(**{**FIT, "enable_lora": True, "pp_size": 2}))


def scheduler(**changes):
    """A scheduler as far as it is looked at, of a server that is fit."""
    fit = {
        "server_args": SimpleNamespace(enable_streaming_session=True),
        "spec_algorithm": SimpleNamespace(is_none=lambda: True),
        "dllm_config": None,
        "enable_lora": False,
        "enable_hierarchical_cache": False,
        "disaggregation_mode": SimpleNamespace(value="null"),
        "enable_priority_scheduling": False,
        "tree_cache": SimpleNamespace(disable=False, supports_mamba=lambda: False),
    }
    return SimpleNamespace(**{**fit, **changes})


def ranks(**changes):
    return SimpleNamespace(**{"dp_size": 1, "pp_size": 1, "attn_dp_enabled": False, **changes})


ONE = ranks()


@pytest.mark.parametrize(
    ("changes", "parallel", "fix"),
    [
        ({"spec_algorithm": SimpleNamespace(is_none=lambda: False)}, ONE, "--speculative-algorithm"),
        ({"dllm_config": object()}, ONE, "--dllm-algorithm"),
        ({"enable_lora": True}, ONE, "--enable-lora"),
        ({"enable_hierarchical_cache": True}, ONE, "--enable-hierarchical-cache"),
        ({"disaggregation_mode": SimpleNamespace(value="decode")}, ONE, "--disaggregation-mode"),
        ({"enable_priority_scheduling": True}, ONE, "--enable-priority-scheduling"),
        ({}, ranks(attn_dp_enabled=True), "--dp-size 1"),
        (
            {"tree_cache": SimpleNamespace(disable=True, supports_mamba=lambda: False)},
            ONE,
            "--disable-radix-cache",
        ),
        (
            {"tree_cache": SimpleNamespace(disable=False, supports_mamba=lambda: True)},
            ONE,
            "without Mamba layers",
        ),
        ({}, ranks(pp_size=2), "--pp-size 1"),
        ({}, ranks(dp_size=2), "--dp-size 1"),
    ],
)
def test_what_came_of_the_command_line_is_looked_at_too(changes, parallel, fix):
    other = "use another page size"
    check_scheduler(scheduler(), ONE, {other: False})
    with pytest.raises(PluginError, match=other):
        check_scheduler(scheduler(), ONE, {other: True})
    with pytest.raises(PluginError, match=fix) as refused:
        check_scheduler(scheduler(**changes), parallel, {other: False})
    assert ";" not in str(refused.value).partition("; ")[2]


def refusal(tmp_path, *flags: str, model: str = "tiny-llama") -> str:
    """Start a real server that is to end by itself; its log."""
    log = tmp_path / "server.log"
    options = ServerOptions(
        model=write_tiny_model(model, tmp_path / model),
        load_format="dummy",
        kv_capacity=1024,
        max_running=4,
        context_length=1024,
        in_place=True,
        extra=flags,
    )
    with pytest.raises(ServerDiedError) as died, start(options, log_path=log):
        pass
    return str(died.value)


REFUSED = [
    (("--speculative-algorithm", "NGRAM"), "leave out --speculative-algorithm"),
    (("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"), "leave out --enable-lora"),
    (("--disable-radix-cache",), "leave out --disable-radix-cache"),
    (("--dp-size", "2"), "use --dp-size 1"),
]


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize(("flags", "fix"), REFUSED)
def test_a_real_server_ends_by_the_flag(tmp_path, flags, fix):
    said = refusal(tmp_path, *flags)
    assert "PluginError: in-place eviction is not tested with this server; " in said
    assert fix in said


@pytest.mark.real
@pytest.mark.long
def test_a_real_server_of_another_version_ends(tmp_path, monkeypatch):
    """By what the installed package says of itself; another one says so first here."""
    other = tmp_path / "site" / "sglang-0.6.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.6.0\n")
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{other.parent}{os.pathsep}{path}")
    monkeypatch.setattr("sqreal.server.server.require_sglang", lambda: None)  # it would say so before the start
    assert (
        "sqreal plugin: tested with SGLang 0.5.16 or 0.5.23, found 0.6.0; pip install sglang==0.5.23"
        in refusal(tmp_path)
    )


@pytest.mark.real
@pytest.mark.long
def test_pages_are_refused_where_a_cpu_cannot_serve_them(tmp_path):
    if require_sglang() != "0.5.16":
        pytest.skip("SGLang 0.5.16 alone cannot; make test-0516 has it")
    assert "server; use --page-size 1 on a CPU" in refusal(tmp_path, "--page-size", "16")
