# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a whole `sqreal` command: a named error and an exit code, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest

from sqreal.server.port import free_port
from sqsim.record.files import read_record
from tests.sqreal.commands import command_of, eventually, servers_in, sqreal
from tests.sqreal.fake_server import FakeServer, wait_until
from tests.sqreal.replays import scenario
from tests.sqsim.tasks import call, task, turn


@pytest.fixture
def run_file(tmp_path):
    """A scenario of one task that takes a while on any server."""
    scenario(tmp_path, [task(*(turn(call(n, 40, latency_s=0.2)) for n in range(20)), name="t")])
    path = tmp_path / "s.yaml"
    path.write_text(
        "traces: tasks.jsonl\nmodel: tiny-llama\nload: {concurrency: 1}\n"
        "engine: {gpu: cpu, kv_capacity: 4096, context_length: 2048, max_running: 8}\n"
    )
    return path


@pytest.fixture
def work(tmp_path):
    """Where a command makes what is its own; it must be empty, and nothing run in it, when the test is over."""
    place = tmp_path / "work"
    yield place
    eventually(lambda: servers_in(place) == [])  # the watcher may have a moment's work behind its command
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("run", "{scenario}"), signal.SIGINT),
        (("run", "{scenario}"), signal.SIGTERM),
        (("serve", "tiny-llama", "--kv-capacity", "4096", "--port", "{port}"), signal.SIGHUP),
    ],
)
def test_ended_while_its_server_starts(run_file, work, words, number):
    given = [word.format(scenario=run_file, port=free_port()) for word in words]
    with sqreal(*given, work=work, fake="sleep") as process:
        eventually(lambda: len(servers_in(work)) == 2)  # the watcher and the server
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "error: interrupted; nothing was written\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_in_the_middle_of_a_run(run_file, work, tmp_path, number):
    with (
        FakeServer(token_s=0.002).running() as server,
        sqreal(
            "run", str(run_file), "--url", server.url, "--output-dir", str(tmp_path / "out"), work=work
        ) as process,
    ):
        wait_until(lambda: server.flushes == 1 and len(server.requests) > 2, 60)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        said
        == f"error: interrupted; the measurements up to then are in {tmp_path / 'out'}, marked incomplete\n"
    )
    record = read_record(tmp_path / "out", allow_incomplete=True)
    assert (record.run["ended_by"], record.tasks["outcome"].to_pylist()) == ("interrupt", ["interrupted"])


def test_killed_outright_while_its_server_starts(run_file, tmp_path):
    """Nobody tidies up the files of a command that was killed so; its processes end all the same."""
    with sqreal("run", str(run_file), work=tmp_path / "work", fake="stubborn") as process:
        eventually(lambda: len(servers_in(tmp_path / "work")) == 3)
        process.kill()
        process.communicate(timeout=60)
    eventually(lambda: servers_in(tmp_path / "work") == [])


def test_serve_says_where_it_serves_and_stops_when_asked(work, tmp_path):
    port = free_port()
    log = tmp_path / "steps.jsonl"
    with sqreal(
        *("serve", "tiny-llama", "--kv-capacity", "4096", "--port", str(port), "--step-log", str(log)),
        *("--", "--page-size", "16"),
        work=work,
        fake="serve",
    ) as process:
        first = process.stdout.readline()
        assert first.startswith("serving ")
        assert f"/tiny-llama at http://127.0.0.1:{port}; 4096 tokens of KV; Ctrl-C ends it" in first
        assert process.stdout.readline() == (
            f"- a scenario of it: sqreal scenario --from http://127.0.0.1:{port} --traces TRACES -o mine.yaml\n"
        )
        assert (
            f"sqreal run mine.yaml --url http://127.0.0.1:{port} --step-log {log} " in process.stdout.readline()
        )
        commands = [command_of(pid) for pid in servers_in(work)]
        assert any("--page-size 16 --host 127.0.0.1" in " ".join(words) for words in commands), commands
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=60)
    assert (process.returncode, said, complained) == (0, "stopped\n", "")


def test_serve_listens_elsewhere_only_when_told(work):
    with sqreal(
        *("serve", "tiny-llama", "--kv-capacity", "4096", "--port", str(free_port()), "--host", "0.0.0.0"),
        work=work,
        fake="serve",
    ) as process:
        assert " at http://127.0.0.1:" in process.stdout.readline()
        assert process.stdout.readline().startswith(
            "- anyone who can reach 0.0.0.0 may use it: there is no password"
        )
        commands = [command_of(pid) for pid in servers_in(work)]
        assert any("--host 0.0.0.0" in " ".join(words) for words in commands), commands
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_served_server_that_dies_is_an_error_with_its_last_words(work):
    with sqreal(
        "serve", "tiny-llama", "--kv-capacity", "4096", "--port", str(free_port()), work=work, fake="serve"
    ) as process:
        assert process.stdout.readline().startswith("serving ")
        launched = max(servers_in(work))  # the watcher started it
        os.kill(launched, signal.SIGKILL)
        _, complained = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complained.startswith("error: the server has ended (killed by SIGKILL); its last log lines:\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("serve", "tiny-llama"), 2, "--kv-capacity: without a GPU"),
        (("serve", "/no/model", "--kv-capacity", "64"), 2, "/no/model/config.json: cannot be read"),
        (("serve", "tiny-llama", "--kv-capacity", "64", "--step-log", "{here}"), 2, "exists already"),
        (("serve", "tiny-llama", "--kv-capacity", "64", "--port", "{taken}"), 1, "cannot be used"),
        (
            ("serve", "tiny-llama", "--kv-capacity", "64", "--", "--host=::"),
            2,
            "--host=::: is an option of sqreal serve",
        ),
        (("run", "{scenario}", "--set", "model=/no/model/config.json"), 2, "/no/model/config.json"),
        (
            ("run", "{scenario}", "--url", "http://127.0.0.1:{closed}"),
            1,
            "give the URL of a running SGLang server",
        ),
        (("run", "{scenario}", "--url", "no url"), 1, "give the URL of a running SGLang server"),
        (("scenario", "--from", "http://127.0.0.1:{closed}", "-o", "{here}x"), 1, "give the URL of a running"),
    ],
)
def test_what_cannot_begin_is_named_and_starts_nothing(run_file, work, words, code, message):
    with socket.socket() as taken, socket.socket() as closed:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed.bind(("127.0.0.1", 0))  # nobody listens there, nor can meanwhile
        names = {
            "scenario": run_file,
            "here": run_file,
            "taken": taken.getsockname()[1],
            "closed": closed.getsockname()[1],
        }
        with sqreal(*(word.format(**names) for word in words), work=work, fake="sleep") as process:
            said, complained = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "")
    assert complained.startswith("error: ")
    assert message in complained
    assert "Traceback" not in complained


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_ends_a_run_by_name_and_leaves_no_half_record(run_file, work, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with (
            FakeServer().running() as server,
            sqreal(
                *("run", str(run_file), "--url", server.url, "--output-dir", str(disk / "out")),
                *("--time-scale", "0"),
                work=work,
            ) as process,
        ):
            said, complained = process.communicate(timeout=60)
        assert (process.returncode, said) == (1, ""), complained
        assert complained == (
            f"error: {disk}/out: cannot be written: No space left on device; free some space, or choose another "
            "--output-dir\n"
        )
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# On a real server.


@pytest.mark.real
def test_a_real_server_that_is_killed_in_the_middle_of_a_run(run_file, work, tmp_path):
    """The record is kept, marked incomplete; SGLang's other processes are gone with the one that was killed."""
    with sqreal("run", str(run_file), "--output-dir", str(tmp_path / "out"), work=work) as process:
        eventually(lambda: any("/0/3/" in path.read_text() for path in work.glob("*/steps.jsonl")), 900)
        launched = next(
            pid for pid in servers_in(work) if command_of(pid)[1:3] == ["-m", "sglang.launch_server"]
        )
        os.kill(launched, signal.SIGKILL)
        said, complained = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, ""), complained
    assert complained.startswith("error: the server has ended (")
    assert "killed by SIGKILL); its last log lines:\n  | " in complained
    assert complained.endswith(f"the measurements up to then are in {tmp_path / 'out'}, marked incomplete\n")
    record = read_record(tmp_path / "out", allow_incomplete=True)
    assert record.run["status"] == "incomplete"
    assert record.tasks["outcome"].to_pylist() == ["server_lost"]
    assert record.turns.num_rows >= 4


@pytest.mark.real
@pytest.mark.parametrize("when", ["starting", pytest.param("running", marks=pytest.mark.long)])
def test_no_process_of_a_real_server_outlives_a_command_that_is_killed_outright(run_file, tmp_path, when):
    """While it starts, SGLang's detokenizer has not yet asked to die with its parent."""
    work = tmp_path / "work"
    with sqreal("run", str(run_file), work=work) as process:
        if when == "starting":
            eventually(lambda: len(servers_in(work)) >= 4, 900)  # watcher, server, and what it has just started
        else:
            eventually(lambda: any("/0/1/" in path.read_text() for path in work.glob("*/steps.jsonl")), 900)
        process.kill()
        process.communicate(timeout=60)
    eventually(lambda: servers_in(work) == [])


@pytest.mark.real
def test_a_real_server_without_the_plugin_is_refused_before_the_first_task(run_file, work, tmp_path):
    """As a user may have started it: the plugin is installed, and nothing asks for it."""
    from sqreal.server.server import ServerOptions, start
    from sqreal.setup.tiny_models import write_tiny_model

    options = ServerOptions(
        model=write_tiny_model("tiny-llama", tmp_path / "tiny-llama"), load_format="dummy", kv_capacity=4096
    )
    with (
        start(options) as server,
        sqreal(
            "run", str(run_file), "--url", server.url, "--output-dir", str(tmp_path / "out"), work=work
        ) as process,
    ):
        said, complained = process.communicate(timeout=600)
    assert (process.returncode, said) == (1, ""), complained
    assert "SQREAL_FORCE_TOKENS=1? `sqreal serve` starts one that does" in complained
    assert not (tmp_path / "out").exists()
