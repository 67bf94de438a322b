# SPDX-License-Identifier: Apache-2.0
"""A run on a real server is recorded, imported and simulated: the accounts agree."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import httpx
import pytest

from sqreal.replay.byte_tokenizer import write_tokenizer
from sqreal.replay.replay import Replay
from sqreal.server.options import ServerOptions
from sqreal.server.server import start
from sqreal.setup.tiny_models import write_tiny_model
from sqsim.errors import TraceError
from sqsim.simulation.simulate import simulate
from sqsim.trace.formats.base import SourceFile
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.log import read_log
from sqsim.trace.importing import import_files
from sqsim.trace.schema import Question
from tests.sqreal.replays import scenario
from tests.sqsim.tasks import chain

pytestmark = pytest.mark.real

SERVER = {"kv_capacity": 4096, "max_running": 8, "context_length": 2048}


@pytest.fixture(scope="module")
def recorded_server(tmp_path_factory):
    """A server that records, its requests by SGLang's own dump as well."""
    directory = tmp_path_factory.mktemp("recorded")
    model = write_tokenizer(write_tiny_model("tiny-llama", directory / "tiny-llama"))
    options = ServerOptions(model=model, load_format="dummy", skip_tokenizer=False, **SERVER)
    with start(
        options, force_tokens=True, record=directory / "recording", log_path=directory / "server.log"
    ) as server:
        yield server, directory


@pytest.fixture(scope="module")
def recorded_run(recorded_server, tmp_path_factory):
    """A run of four tasks on it: the real record, the requests that were recorded, both imports."""
    server, directory = recorded_server
    recording, dumps = directory / "recording", directory / "dumps"
    tasks = [
        chain(3 + number, name=f"t{number}", question=Question(tokens=20 + 9 * number)) for number in range(4)
    ]
    run = scenario(tmp_path_factory.mktemp("run"), tasks, engine=SERVER)
    steps = sum(task.steps for task in tasks)
    httpx.post(
        f"{server.url}/configure_logging",
        json={"dump_requests_folder": str(dumps), "dump_requests_threshold": WARM_UP + steps},
    ).raise_for_status()
    replay = Replay(run, server, time_scale=0.01)
    real = replay.run()
    assert replay.error is None
    eventually(lambda: whole_lines(recording).count('"ev":"end"') >= WARM_UP + steps)
    eventually(lambda: list(dumps.glob("*.pkl")) and dumped(dumps))
    seen = read_log([SourceFile(path) for path in sorted(recording.glob("*.jsonl"))], Notes())
    return SimpleNamespace(
        tasks=tasks, real=real, seen=seen, imported=import_files([recording]), dumped=dumped(dumps)
    )


def test_a_recorded_run_is_simulated_with_the_same_accounts(recorded_run, tmp_path):
    real, seen, report = recorded_run.real, recorded_run.seen, recorded_run.imported
    assert len(seen) == real.turns.num_rows
    assert [sum(call.prompt.length for call in seen), sum(len(call.output) for call in seen)] == [
        sum(real.turns[column].to_pylist()) for column in ("prompt_tokens", "output_tokens")
    ]
    assert sum(call.cached for call in seen) == sum(real.turns["cached_tokens"].to_pylist()) > 0
    assert [task.steps for task in report.tasks] == [task.steps for task in recorded_run.tasks]
    assert report.carries["timing"] == {"recorded": 4}
    paper = simulate(scenario(tmp_path, report.tasks, engine=SERVER))
    columns = ("prompt_tokens", "cached_tokens", "output_tokens")
    on_the_server, simulated = (
        sorted(zip(*(record.turns[column].to_pylist() for column in columns), strict=True))
        for record in (real, paper)
    )
    assert on_the_server == simulated


def test_sglangs_own_dump_says_the_same(recorded_run):
    """A pickle of the real server, read without executing it, gives the tasks of the recording, token by token."""
    report, other = recorded_run.imported, recorded_run.dumped
    assert [other.warnings[note] for note in TOTALS] == [report.warnings[note] for note in TOTALS]
    unlike = {"task_id", "source", "model", "arrival_s", "turns"}  # times are those of another process
    assert [task.model_dump(exclude=unlike) for task in other.tasks] == [
        task.model_dump(exclude=unlike) for task in report.tasks
    ]
    assert [[turn.text_token_ids for turn in task.turns] for task in other.tasks] == [
        [turn.text_token_ids for turn in task.turns] for task in report.tasks
    ]


TOTALS = (
    "prompt tokens recorded",
    "output tokens recorded",
    "prompt tokens recorded that the server found cached",
)
WARM_UP = 9
"""Requests of a replay's warm-up on this server."""


def whole_lines(recording):
    """The recording so far; its writer is a thread behind the server."""
    return "".join(path.read_text() for path in sorted(recording.glob("*.jsonl")))


def dumped(directory):
    """SGLang's own dump; None while it is written."""
    try:
        return import_files([directory])
    except TraceError:
        return None


def eventually(true):
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def test_chat_messages_name_the_tools(recorded_server, recorded_run):  # the run's recording is read before
    """Of `/v1/chat/completions`; a client of `/generate` names them itself."""
    server, directory = recorded_server
    called = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "moss"},
    ]
    session = {"sqreal_log": {"session": "mine"}}
    body = {"model": "m", "messages": messages, "max_tokens": 4, "custom_params": session}
    httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    wrong = {"max_new_tokens": 2, "custom_params": {"sqreal_log": 7}}
    asked = {"input_ids": [5, 6], "sampling_params": wrong}
    httpx.post(f"{server.url}/generate", json=asked, timeout=60).raise_for_status()

    def arrivals(key):
        lines = whole_lines(directory / "recording").split("\n")[:-1]
        return [event[key] for line in lines if (event := json.loads(line))["ev"] == "arrive" and key in event]

    eventually(lambda: arrivals("fault"))
    assert arrivals("tools") == [[{"name": "search", "chars": 4}]]
    assert arrivals("session") == ["mine"]
    assert "sqreal_log: 7" in arrivals("fault")[0]
