# SPDX-License-Identifier: Apache-2.0
"""A server's life, and every way that it can go wrong: a named error, and no process left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sqreal.errors import (
    DeviceError,
    InstallError,
    ModelPathError,
    PortInUseError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    ServerTimeoutError,
    UnreachableError,
)
from sqreal.server import process, server
from sqreal.server.port import free_port, held_port
from sqreal.server.process import ChildGroup, group_members
from sqreal.server.server import ServerOptions, attach, start
from sqreal.setup import install
from sqreal.setup.tiny_models import write_tiny_model

FAKE = (sys.executable, str(Path(__file__).with_name("fake_launcher.py")))
PLUGIN = "[2026-01-01] sqreal plugin: forced tokens on (SGLang 0.5.23)"


@pytest.fixture
def groups(monkeypatch):
    """The process groups that a test starts; none of them may outlive it."""
    started = []

    class Noted(ChildGroup):
        def __init__(self, *args):
            super().__init__(*args)
            started.append(self.pid)

    monkeypatch.setattr(server, "ChildGroup", Noted)
    yield started
    assert [group_members(group) for group in started] == [[] for _ in started]


@pytest.fixture
def options(tmp_path):
    return ServerOptions(
        model=write_tiny_model("tiny-llama", tmp_path / "tiny-llama"),
        load_format="dummy",
        kv_capacity=4096,
        max_running=8,
        context_length=2048,
    )


@pytest.fixture
def fake(monkeypatch):
    def mode(name, says=""):
        monkeypatch.setenv("FAKE_MODE", name)
        monkeypatch.setenv("FAKE_SAYS", says)

    return mode


def test_a_server_answers_in_the_block_and_is_gone_behind_it(options, groups, fake, tmp_path):
    fake("serve")
    seen = []
    log = tmp_path / "server.log"
    with start(options, launcher=FAKE, log_path=log, progress=lambda text, s: seen.append((text, s))) as served:
        assert group_members(served.pid)
        assert served.log_path == log
        assert (served.info.kv_capacity, served.info.swa_capacity, served.info.max_running) == (4096, None, 8)
        served.check()
    assert seen
    assert all(text == f"waiting for the server at {served.url}" and s >= 0 for text, s in seen)
    with pytest.raises(UnreachableError, match="give the URL of a running SGLang server"), attach(served.url):
        pass


def test_a_server_by_its_url_is_left_running(options, groups, fake):
    fake("serve")
    with start(options, launcher=FAKE) as served:
        with attach(served.url + "/") as attached:
            assert attached.url == served.url
            assert attached.info == served.info
            assert attached.pid is attached.log_path is None
            attached.check()
        assert httpx.get(f"{served.url}/health").status_code == 200


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_block_stops_the_server(options, groups, fake, error):
    fake("serve")
    with pytest.raises(error), start(options, launcher=FAKE):
        raise error
    assert len(groups) == 1


def test_a_server_that_never_answers(options, groups, fake):
    fake("sleep")
    with pytest.raises(ServerTimeoutError, match=r"was not ready after 0\.5 s"):
        start(options, launcher=FAKE, deadline_s=0.5).__enter__()
    assert len(groups) == 1


def test_a_server_that_ends_before_it_is_ready(options, groups, fake):
    fake("die")
    with pytest.raises(ServerDiedError, match=r"\(exit code 3\); its last log lines") as caught:
        start(options, launcher=FAKE).__enter__()
    assert caught.value.log_tail == ("loading", "no such kernel")
    assert "  | no such kernel" in str(caught.value)


def test_a_server_that_is_killed_in_the_middle(options, groups, fake):
    fake("serve", says="serving")
    with start(options, launcher=FAKE) as served:
        os.kill(served.pid, signal.SIGKILL)
        error = served.failure("the connection broke")
        assert isinstance(error, ServerDiedError)
        assert "the connection broke" in str(error)
        assert "killed by SIGKILL" in str(error)
        assert error.log_tail == ("serving",)
        with pytest.raises(ServerDiedError):
            served.check()


def test_a_failure_of_a_server_that_is_not_ours_is_a_plain_error(fake, options, groups):
    fake("serve")
    with start(options, launcher=FAKE) as served, attach(served.url) as attached:
        error = attached.failure("the connection broke")
    assert type(error) is ServerError
    assert str(error) == f"{served.url}: the connection broke"


def test_something_else_that_answers(options, groups, fake):
    fake("stranger")
    with pytest.raises(UnreachableError, match="is not an SGLang answer"):
        start(options, launcher=FAKE).__enter__()


def test_a_free_port_is_none_that_the_system_gives_to_whoever_asks():
    """Else what a server opens while it loads may take the port that it is to bind when it is ready."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    drawn = {free_port() for _ in range(20)}
    assert len(drawn) > 1
    assert all(1024 <= port < first for port in drawn)


def test_a_port_is_held_for_the_server_that_has_yet_to_bind_it():
    with held_port(None) as port, socket.socket() as probe, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))  # whoever looks for a free port
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn does
        server.bind(("0.0.0.0", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)), held_port(None) as another:
            assert another != port


def test_a_port_in_use_starts_nothing(options, groups, fake):
    fake("serve")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} cannot be used .*choose another one"):
            start(options, launcher=FAKE, port=port).__enter__()
    assert groups == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"config\.json: cannot be read \(No such file"),
        ("{", r"config\.json: is not JSON"),
        ("[]", r"names no architecture"),
        ('{"architectures": []}', r"names no architecture"),
    ],
)
def test_a_wrong_model_path_starts_nothing(tmp_path, groups, content, message):
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content)
    with pytest.raises(ModelPathError, match=message):
        start(ServerOptions(model=model), launcher=FAKE).__enter__()
    assert groups == []


def test_another_version_of_sglang_is_refused_by_name(options, groups, monkeypatch, tmp_path):
    fake_dist = tmp_path / "site" / "sglang-0.5.9.dist-info"
    fake_dist.mkdir(parents=True)
    (fake_dist / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(install, "cuda_devices", list)
    with pytest.raises(
        InstallError,
        match=r"sglang 0\.5\.9 is installed, but only 0\.5\.16, 0\.5\.23 is tested; run: make real-cpu",
    ):
        start(options).__enter__()
    assert groups == []


def test_no_sglang_names_the_command_that_installs_it(options, groups, monkeypatch):
    monkeypatch.setattr(install, "installed", lambda name, python=None: None)
    monkeypatch.setattr(install, "cuda_devices", lambda: ["NVIDIA H200"])
    with pytest.raises(InstallError, match=r"sglang is not installed; run: make real-gpu"):
        start(options).__enter__()


def test_a_device_that_is_not_there(options, groups, monkeypatch):
    monkeypatch.setattr(install, "cuda_devices", list)
    with pytest.raises(DeviceError, match=r"no CUDA device .*set engine\.gpu: cpu"):
        start(ServerOptions(model=options.model, device="cuda"), launcher=FAKE).__enter__()
    assert groups == []


@pytest.mark.parametrize(
    ("says", "error", "message"),
    [
        ("", InstallError, "runs without the sqreal plugin"),
        ("sqreal plugin: SGLang 0.5.9 is not tested", InstallError, "runs without the sqreal plugin"),
        (
            "Failed to execute general plugin: sqreal\nKeyError: 'x'",
            ServerStartError,
            "(?s)plugin failed.*KeyError",
        ),
        ("Failed to load plugin sqreal from group x", ServerStartError, "the sqreal plugin failed"),
    ],
)
def test_a_server_without_the_plugin_that_was_asked_for(options, groups, fake, says, error, message):
    fake("serve", says)
    with pytest.raises(error, match=message):
        start(options, launcher=FAKE, force_tokens=True).__enter__()


def test_the_plugin_is_looked_for_only_where_it_is_asked_for(options, groups, fake, tmp_path):
    fake("serve")
    with start(options, launcher=FAKE):
        pass
    fake("serve", PLUGIN)
    with start(options, launcher=FAKE, step_log=tmp_path / "steps.jsonl"):
        pass


def test_a_group_that_ignores_being_asked_is_killed(tmp_path, fake):
    fake("stubborn")
    child = ChildGroup(FAKE, os.environ, tmp_path / "log")
    until = time.monotonic() + 30
    while len(group_members(child.pid)) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(group_members(child.pid)) == 3  # the watcher, the command and its child
    child.stop(grace_s=0.2)
    assert group_members(child.pid) == []
    assert child.ending == "killed by SIGKILL"
    child.stop()  # a second time is nothing


@pytest.mark.parametrize("mode", ["sleep", "stubborn"])
def test_a_server_dies_with_the_process_that_started_it(tmp_path, fake, mode):
    """And so does what it started itself, though that asked for no signal on its parent's death."""
    fake(mode)
    script = (
        "import os, pathlib, sys, time\n"
        "from sqreal.server.process import ChildGroup\n"
        f"print(ChildGroup({FAKE!r}, os.environ, pathlib.Path({str(tmp_path / 'log')!r})).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        group = int(parent.stdout.readline())
        until = time.monotonic() + 30
        while len(group_members(group)) < {"sleep": 2, "stubborn": 3}[mode] and time.monotonic() < until:
            time.sleep(0.05)
        parent.kill()
    until = time.monotonic() + 30
    while group_members(group) and time.monotonic() < until:
        time.sleep(0.05)
    assert group_members(group) == []


@pytest.mark.parametrize(("number", "ending"), [(9, "killed by SIGKILL"), (15, "killed by SIGTERM")])
def test_a_command_that_is_killed_is_said_to_be(tmp_path, number, ending):
    child = ChildGroup(
        [sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})"], {}, tmp_path / "log"
    )
    until = time.monotonic() + 30
    while not child.ended and time.monotonic() < until:
        time.sleep(0.05)
    assert child.ending == ending
    child.stop()


def test_group_members_counts_no_defunct_process():
    child = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.group_members(child.pid) == []
    child.wait()


@pytest.mark.real
def test_a_real_server_is_as_it_was_asked_to_be(llama_server):
    info = llama_server.info
    assert (info.version, info.device, info.load_format) == ("0.5.23", "cpu", "dummy")
    assert (info.kv_capacity, info.swa_capacity, info.page_size) == (4096, None, 1)
    assert (info.max_running, info.context_length, info.chunked_prefill) == (8, 2048, 8192)
    assert not info.in_place
    assert "sqreal plugin: forced tokens on" in llama_server.log_path.read_text()
    with attach(llama_server.url) as attached:
        assert attached.info.kv_capacity == info.kv_capacity


@pytest.mark.real
def test_a_real_server_whose_scheduler_is_killed(options, groups, tmp_path):
    """SGLang's watchdog sees it and ends the rest; a request that was under way breaks off, and is explained."""
    with start(options, log_path=tmp_path / "server.log") as served:
        scheduler = next(pid for pid in group_members(served.pid) if b"scheduler" in _command(pid))
        os.kill(scheduler, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            httpx.post(
                f"{served.url}/generate",
                json={"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}},
                timeout=60,
            )
        error = served.failure("the answer broke off")
    assert isinstance(error, ServerDiedError)
    assert "crashed with exit code -9" in str(error)


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()
