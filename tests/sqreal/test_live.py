# SPDX-License-Identifier: Apache-2.0
"""Live aux threads: the server's model writes the decision, on a small honest server and on a real one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sqreal.cli.app import SCHEDULE
from sqreal.errors import ServerError
from sqreal.replay.byte_tokenizer import decode, encode, write_tokenizer
from sqreal.replay.live_text import live_text
from sqreal.replay.replay import Replay
from sqreal.replay.run_context import RunContext
from sqreal.server.server import ServerOptions, attach, options_of, start
from sqreal.setup.tiny_models import write_tiny_model
from sqsim.agent.aux_thread import TRIGGER
from sqsim.errors import ScenarioError
from sqsim.fidelity import lockstep
from sqsim.record.files import read_record, write_record
from sqsim.record.metrics import metrics
from sqsim.simulation.simulate import simulate
from tests.sqreal.fake_server import FakeServer
from tests.sqreal.replays import ACCOUNTED, EVICTED, on, rows, scenario
from tests.sqsim.tasks import CARRIES, chain

LIVE = {
    "name": "sidequest",
    "k": 2,
    "decisions": "live",
    "aux_max_new_tokens": 80,
    "after_eviction": "reprefill",
}
SAYS = "Cursor 0 is stale, 41 never was. {del_cursors: [0, 41]}"


def saying(*texts: str):
    """What the model writes to its first, second, ... aux request; nothing of use behind those."""
    left = iter(texts)
    return lambda body: next(left, "I keep everything.")


@pytest.mark.parametrize("reader", ["server", "incremental", "file"])
def test_what_the_model_wrote_is_applied_and_kept(tmp_path, reader):
    model = write_tokenizer(tmp_path)
    tokenizer = reader != "file"
    server = FakeServer(
        token_s=0.0005,
        tokenizer=tokenizer,
        incremental=reader == "incremental",
        model=str(model),
        writes=saying(SAYS, '{"del_cursors": [1'),
    )
    run = scenario(tmp_path, [chain(6, name="long")], policy=LIVE)
    with server.running():
        _, record = on(server, run, time_scale=0.0, await_aux=True)
        aux = [body for body in server.requests if "/a" in body["rid"]]
    first, second, *_ = record.aux.to_pylist()
    assert (first["text"], first["named"], first["ignored"], first["state"]) == (SAYS, [0, 41], 1, "applied")
    assert (second["text"], second["named"], second["state"]) == ('{"del_cursors": [1', [], "malformed")
    assert first["output_tokens"] == len(SAYS) + 1, "its end of text included"
    assert rows(record.evictions, EVICTED[:3]) == [{"task": "long", "turn": 3, "cursor": 0}]
    assert aux[0]["input_ids"][-len(TRIGGER) :] == encode(TRIGGER)
    assert aux[0]["sampling_params"].keys() == {"temperature", "max_new_tokens", "stream_interval"}
    assert record.run["live"]["reader"] == (
        "the server's tokenizer" if tokenizer else str(model / "tokenizer.json")
    )
    assert record.run["live"]["derived_segments"] > 0
    assert record.run["assumed"] == []
    found = metrics(record)
    assert (found["aux_applied"], found["aux_malformed"], found["aux_ignored"]) == (1, 1, 1)
    write_record(record, tmp_path / "record")
    assert read_record(tmp_path / "record").aux["text"].to_pylist()[0] == SAYS


def test_main_turns_stay_forced_and_account_as_without_aux_threads(tmp_path):
    """A model that names nothing leaves the main thread alone."""
    made = [chain(5, name="t")]
    with FakeServer(token_s=0.0005, tokenizer=True).running() as server:
        _, record = on(server, scenario(tmp_path, made, policy=LIVE), time_scale=0.0, await_aux=True)
    plain = simulate(scenario(tmp_path, made, policy={"name": "none"}))
    assert rows(record.turns, ACCOUNTED) == rows(plain.turns, ACCOUNTED)
    assert set(record.aux["state"].to_pylist()) == {"malformed"}


def test_a_live_thread_may_say_no_more_than_it_declares_and_is_then_cut_off(tmp_path):
    policy = {**LIVE, "aux_max_new_tokens": 10}
    server = FakeServer(token_s=0.0005, tokenizer=True, writes=saying(SAYS))
    with server.running():
        _, record = on(server, scenario(tmp_path, [chain(3)], policy=policy), time_scale=0.0, await_aux=True)
    (aux,) = record.aux.to_pylist()
    assert (aux["text"], aux["output_tokens"], aux["state"]) == (SAYS[:10], 10, "malformed")


def test_a_task_that_ends_keeps_what_its_living_thread_had_written(tmp_path):
    policy = {**LIVE, "k": 1, "spawn_without_cursors": True, "aux_max_new_tokens": 400}
    server = FakeServer(token_s=0.004, tokenizer=True, writes=saying("x" * 399))
    with server.running():
        _, record = on(server, scenario(tmp_path, [chain(1)], policy=policy), time_scale=0.0)
    (aux,) = record.aux.to_pylist()
    assert (aux["state"], aux["named"], aux["end_s"]) == ("cancelled", [], None)
    assert aux["text"] == "x" * aux["output_tokens"]


def test_live_decisions_need_no_references(tmp_path):
    bare = chain(3).model_copy(update={"carries": CARRIES.model_copy(update={"references": "absent"})})
    server = FakeServer(token_s=0.0005, tokenizer=True, writes=saying('{"del_cursors": [0]}'))
    with server.running():
        _, record = on(server, scenario(tmp_path, [bare], policy=LIVE), time_scale=0.0, await_aux=True)
    assert record.evictions["cursor"].to_pylist() == [0]
    assert record.evictions["used_later"].to_pylist() == [None]


# What is refused, before anything runs.


def test_a_server_whose_text_nobody_reads_is_refused_by_name(tmp_path):
    with (
        FakeServer(model="/models/elsewhere").running() as server,
        pytest.raises(
            ScenarioError,
            match=r"--skip-tokenizer-init and there is no /models/elsewhere/tokenizer\.json here: start it without",
        ),
    ):
        on(server, scenario(tmp_path, [chain(3)], policy=LIVE))


def test_a_model_without_a_tokenizer_starts_no_server_for_live_decisions(tmp_path):
    run = scenario(tmp_path, [chain(3)], policy=LIVE)
    with pytest.raises(
        ScenarioError, match=r"holds none; put its tokenizer\.json there, or set policy\.decisions"
    ):
        options_of(run, tmp_path)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    server = FakeServer(model=str(tmp_path))
    with (
        server.running(),
        attach(server.url) as attached,
        pytest.raises(ScenarioError, match=r"tokenizer\.json: is not a tokenizer"),
    ):
        live_text(attached)


def test_a_tokenizer_that_cannot_say_the_phrase_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("sqreal.replay.byte_tokenizer.encode", lambda text: [])
    with (
        FakeServer(tokenizer=True).running() as server,
        attach(server.url) as attached,
        pytest.raises(ServerError, match="which are not token ids"),
    ):
        live_text(attached)


def test_a_simulation_has_no_model(tmp_path):
    with pytest.raises(ScenarioError, match=r"policy\.decisions: live decisions .*`sqreal run`"):
        simulate(scenario(tmp_path, [chain(3)], policy=LIVE))


# On a real server.


@pytest.fixture(scope="module")
def lettered_server(tmp_path_factory):
    """A real server of tiny-llama that has a tokenizer, forced tokens and a step log."""
    directory = tmp_path_factory.mktemp("lettered")
    model = write_tokenizer(write_tiny_model("tiny-llama", directory / "tiny-llama"))
    options = ServerOptions(
        model=model,
        load_format="dummy",
        kv_capacity=4096,
        max_running=8,
        context_length=2048,
        skip_tokenizer=False,
    )
    with start(
        options, force_tokens=True, step_log=directory / "steps.jsonl", log_path=directory / "server.log"
    ) as server:
        yield server


SERVER = {"kv_capacity": 4096, "max_running": 8, "context_length": 2048}


def real(server, directory, turns: int = 5):
    run = scenario(directory, [chain(turns, name="t")], engine=SERVER, policy=LIVE)
    replay = Replay(
        run, server, time_scale=0.0, await_aux=True, step_log=server.log_path.with_name("steps.jsonl")
    )
    record = replay.run()
    assert replay.error is None
    replay.write_schedule(directory / SCHEDULE)
    report = lockstep.replay(directory / SCHEDULE)
    assert [str(difference) for difference in report.differences] == []
    return record


@pytest.mark.real
def test_a_model_of_random_weights_writes_what_nobody_can_read(lettered_server, tmp_path):
    """The honest end of a random model: malformed, counted, nothing evicted; and what it wrote is kept."""
    record = real(lettered_server, tmp_path)
    assert record.aux["state"].to_pylist() == ["malformed", "malformed"]
    assert record.evictions.num_rows == 0
    for aux in record.aux.to_pylist():
        assert aux["prompt_tokens"] == aux["fork_tokens"] + len(TRIGGER)
        assert 0 < aux["output_tokens"] <= LIVE["aux_max_new_tokens"]
        assert aux["text"]
    assert metrics(record)["aux_malformed"] == 2


@pytest.mark.real
def test_a_decision_that_is_written_is_read_back_and_applied(lettered_server, tmp_path, monkeypatch):
    """The test puts the letters into the model's mouth, one forced token each; all behind that is as it is live."""
    send = RunContext.send

    async def dictated(run_context, exchange, input_ids, forced, started=None):
        generate = run_context.client.generate

        async def one(call, first_token):
            return await generate(type(call)(call.rid, call.input_ids, [*encode(SAYS), 2], 80), first_token)

        if forced is None:
            run_context.client.generate = one
        try:
            return await send(run_context, exchange, input_ids, forced, started)
        finally:
            run_context.client.generate = generate

    monkeypatch.setattr(RunContext, "send", dictated)
    record = real(lettered_server, tmp_path, turns=4)
    aux = record.aux.to_pylist()[0]
    assert (aux["text"], aux["named"], aux["ignored"], aux["state"]) == (SAYS, [0, 41], 1, "applied")
    assert rows(record.evictions, EVICTED[:3]) == [{"task": "t", "turn": 3, "cursor": 0}]


@pytest.mark.real
@pytest.mark.long  # test_replay_real.py's command starts one too, the tests above read what one writes
def test_the_command_starts_a_server_that_reads(tmp_path):
    """`sqreal run` of a model with its tokenizer beside it; its tokenizer reads as the server's does."""
    model = write_tokenizer(write_tiny_model("tiny-llama", tmp_path / "model"))
    scenario(tmp_path, [chain(3)])
    (tmp_path / "s.yaml").write_text(
        f"traces: tasks.jsonl\nmodel: {model}/config.json\nload: {{concurrency: 1}}\n"
        "engine: {gpu: cpu, kv_capacity: 4096, context_length: 2048}\n"
        "policy: {name: sidequest, k: 2, decisions: live, aux_max_new_tokens: 40, after_eviction: reprefill}\n"
    )
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-c",
                "from sqreal.cli.main import main; main()",
                "run",
                str(tmp_path / "s.yaml"),
            ),
            *("--time-scale", "1", "--output-dir", str(tmp_path / "record")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "derived ids stand for no text" in done.stdout
    record = read_record(tmp_path / "record")
    (aux,) = record.aux.to_pylist()
    assert aux["state"] in {"malformed", "cancelled"}
    assert decode(encode(aux["text"])) == aux["text"] != ""
