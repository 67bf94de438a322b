# SPDX-License-Identifier: Apache-2.0
"""Tests marked `real` are skipped aloud without SGLang; those that can share a server follow one another."""

from __future__ import annotations

import pytest

from sqreal.errors import InstallError
from sqreal.server.server import ServerOptions, start
from sqreal.setup.install import require_sglang
from sqreal.setup.tiny_models import write_tiny_model


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    try:
        require_sglang()
        missing = None
    except InstallError as error:
        missing = str(error)
    for item in items:
        if missing and item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=f"needs a real SGLang: {missing}"))
    result = yield
    # However the order was drawn, tests that share a server follow one another: each change of server costs its start.
    at = [index for index, item in enumerate(items) if "served" in getattr(item, "fixturenames", ())]
    together = sorted((items[index] for index in at), key=lambda item: str(item.callspec.params["served"]))
    for index, item in zip(at, together, strict=True):
        items[index] = item
    return result


@pytest.fixture(scope="module")  # an idle server keeps a core busy: it must not outlive its file
def llama_server(tmp_path_factory):
    """A real server of tiny-llama with forced tokens and a step log; leave it idle and flushed."""
    directory = tmp_path_factory.mktemp("llama")
    options = ServerOptions(
        model=write_tiny_model("tiny-llama", directory / "tiny-llama"),
        load_format="dummy",
        kv_capacity=4096,
        max_running=8,
        context_length=2048,
        schedule_conservativeness=0.05,  # next to nothing is reserved for outputs: crowded tasks are retracted, none waits
    )
    with start(
        options, force_tokens=True, step_log=directory / "steps.jsonl", log_path=directory / "server.log"
    ) as server:
        yield server
