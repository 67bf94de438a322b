# SPDX-License-Identifier: Apache-2.0
"""The recorder without a server: what is put in is read back, a kill or a full disk costs what it says and no more."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqreal.plugin import record_options
from sqreal.plugin.hooks import PluginError
from sqreal.plugin.record_files import RecordFiles
from sqreal.plugin.record_prompts import Prompts
from sqreal.plugin.recorder import Recorder
from sqsim.trace.formats.base import SourceFile
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.log import read_log

ABOUT = {"sglang": "0.5.23", "model": "m", "page_size": 1}


def arrive(rid, prompt, t=1.0, **more):
    return {"ev": "arrive", "t": t, "rid": rid, **more, "prompt": array("q", prompt)}


def end(rid, output, t=2.0, **more):
    return {"ev": "end", "t": t, "rid": rid, "cached": 0, "why": "stop", **more, "output": array("q", output)}


def read(directory):
    notes = Notes()
    return read_log([SourceFile(path) for path in sorted(directory.glob("*.jsonl"))], notes), notes


def lines(directory):
    return [
        json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def eventually(true):
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


@st.composite
def talks(draw):
    """Requests that often begin with a part of an earlier prompt and output."""
    found = []
    for number in range(draw(st.integers(1, 12))):
        before = list(draw(st.sampled_from(found))) if found and draw(st.booleans()) else []
        whole = [*before[0], *before[1]][: draw(st.integers(0, 200))] if before else []
        new = draw(st.lists(st.integers(0, 3), max_size=40))
        output = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
        found.append((tuple([*whole, *new] or [number]), tuple(output)))
    return found


@settings(max_examples=60, deadline=None)
@given(talks(), st.sampled_from([300, 2_000, 10**6]))
def test_what_is_recorded_is_read_back(tmp_path_factory, requests, file_bytes):
    """Whatever the prompts share, and wherever a file ends."""
    directory = tmp_path_factory.mktemp("law") / "recording"
    files = RecordFiles(directory, 10**9, file_bytes=file_bytes)
    files.open(**ABOUT)
    for number, (prompt, output) in enumerate(requests):
        files.put(arrive(f"r{number}", prompt, t=float(number)))
        files.put(end(f"r{number}", output, t=number + 0.5))
    files.close()
    found, notes = read(directory)
    assert [(tuple(call.prompt.ids()), tuple(call.output)) for call in found] == requests
    assert notes == {}


def test_a_prompt_that_goes_on_costs_its_new_tokens_only():
    prompts = Prompts()
    first, output = array("q", range(1000)), array("q", [7, 8])
    assert prompts.rest("a", first).ids == list(range(1000))
    prompts.ended("a", output)
    assert prompts.rest("b", first + output + array("q", [9])) == ("a", 1002, [9])


def test_forgotten_prompts_are_written_again():
    prompts = Prompts(most_tokens=150)
    for name in ("a", "b"):
        rest = prompts.rest(name, array("q", [ord(name)] * 100))
        assert rest.after is None
    assert prompts.rest("c", array("q", [ord("a")] * 100)).after is None  # b took a's place


def test_a_full_queue_loses_events_and_says_how_many(tmp_path):
    """Nothing waits: without a writer, as with one that the disk holds up, `put` returns."""
    files = RecordFiles(tmp_path / "r", 10**9, queue_tokens=250)
    for number in range(5):  # 74 tokens each: three of them fit
        files.put(arrive(f"r{number}", range(10)))
    files.open(**ABOUT)
    files.close()
    assert [line["rid"] for line in lines(tmp_path / "r") if line["ev"] == "arrive"] == ["r0", "r1", "r2"]
    _, notes = read(tmp_path / "r")
    assert notes["an event was lost by the recorder: the queue was full"] == 2


def test_a_disk_that_refuses_costs_events_and_no_more(tmp_path):
    directory = tmp_path / "r"
    files = RecordFiles(directory, 10**9, file_bytes=1, retry_s=0.01)
    files.open(**ABOUT)
    shutil.rmtree(directory)  # the next file cannot be made
    files.put(arrive("a", [1]))
    files.put(arrive("b", [2]))
    eventually(lambda: files._lost)
    directory.mkdir()
    eventually(lambda: not files._lost)
    files.put(arrive("c", [3]))
    files.put(end("c", [4]))
    files.close()
    found, notes = read(directory)
    assert [call.rid for call in found] == ["c"]
    assert sum(times for note, times in notes.items() if "could not be written" in note) >= 1


def test_a_recording_never_outgrows_its_limit(tmp_path):
    files = RecordFiles(tmp_path / "r", 4_000, file_bytes=1_000)
    files.open(**ABOUT)
    for number in range(200):
        files.put(arrive(f"r{number}", [number] * 8, t=float(number)))
        files.put(end(f"r{number}", [number], t=number + 0.5))
        eventually(lambda: not files._queue)
    files.close()
    assert sum(path.stat().st_size for path in (tmp_path / "r").iterdir()) < 6_000
    found, notes = read(tmp_path / "r")
    assert found[-1].rid == "r199"
    assert notes["a file of the recording had been removed, as its size is limited"] > 0


def test_a_killed_process_leaves_whole_lines(tmp_path):
    """All but what the last moment brought: what was acknowledged before is there."""
    code = (
        "import sys, time; from array import array; from pathlib import Path\n"
        "from sqreal.plugin.record_files import RecordFiles\n"
        f"files = RecordFiles(Path({str(tmp_path / 'r')!r}), 10**9); files.open()\n"
        "for n in range(10**9):\n"
        "    files.put({'ev': 'arrive', 't': 1.0, 'rid': str(n), 'prompt': array('q', [n])})\n"
        "    files.put({'ev': 'end', 't': 2.0, 'rid': str(n), 'cached': 0, 'output': array('q', [1])})\n"
        "    time.sleep(0.001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ})
    try:
        eventually(lambda: len(list((tmp_path / "r").glob("*"))) and len(lines_of(tmp_path / "r")) > 50)
        before = len(lines_of(tmp_path / "r"))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found, _ = read(tmp_path / "r")
    assert len(found) >= (before - 3) // 2
    assert [call.rid for call in found] == [str(number) for number in range(len(found))]


def lines_of(directory):
    return (directory / "00000.jsonl").read_text().split("\n")


@pytest.mark.parametrize("there", ["file", "full"])
def test_a_recording_is_never_written_over(tmp_path, there):
    path = tmp_path / "r"
    if there == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "mine").write_text("mine")
    with pytest.raises(PluginError, match=r"not empty|cannot be made"):
        RecordFiles(path, 10**9).open()


# What a client tells it.


@pytest.mark.parametrize(
    "told",
    [
        7,
        [],
        {"who": 1},
        {"session": 5},
        {"session": ""},
        {"tools": "search"},
        {"tools": [{}]},
        {"tools": [{"name": ""}]},
        {"tools": [{"name": "a", "tokens": -1}]},
        {"tools": [{"name": "a", "chars": True}]},
        {"tools": [{"name": "a"}] * 2000},
    ],
)
def test_a_wrong_option_is_a_fault_in_the_recording(told):
    found = record_options.read({"sqreal_log": told})
    assert list(found) == ["fault"]
    assert "sqreal_log" in found["fault"]


def test_right_options_are_read():
    tools = [{"name": "search", "tokens": 5}, {"name": "open", "chars": 0}]
    assert record_options.read({"sqreal_log": {"session": "s", "tools": tools}}) == {
        "session": "s",
        "tools": tools,
    }
    assert record_options.read(None) == record_options.read({"other": 1}) == {}


def test_tools_are_those_behind_the_last_answer():
    called = [{"id": "1", "function": {"name": "search"}}, {"id": "2", "function": {"name": "open"}}]
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": called, "content": None},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "four"}]},
        {"role": "tool", "tool_call_id": "1", "content": "abc"},
        {"role": "tool", "tool_call_id": "9", "content": None},
    ]
    assert record_options.tools_of(messages) == [
        {"name": "open", "chars": 4},
        {"name": "search", "chars": 3},
        {"name": "tool", "chars": 0},
    ]
    assert record_options.tools_of(messages[:1]) == []


# Its hooks, on a stand-in of the scheduler.


class Reason:
    def __init__(self, kind):
        self.kind = kind

    def to_json(self):
        return {"type": self.kind}


def request(rid, prompt=(1, 2), output=(), reason=None):
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        output_ids_through_stop=array("q", output),
        sampling_params=SimpleNamespace(custom_params=None),
        session=None,
        finished=lambda: reason is not None,
        finished_reason=reason and Reason(reason),
        to_finish=None,
        cached_tokens=1,
        retraction_count=0,
    )


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path / "r", 10**9)
    recorder._files.open(**ABOUT)
    yield recorder
    recorder._files.close()


def hook(recorder, name):
    return next(each.around for each in recorder.hooks() if each.method.endswith(f".{name}"))


def test_every_request_that_arrives_ends_once(recorder, tmp_path):
    """By its result, an abort in the queue, or because it has left an idle server unseen."""
    scheduler = SimpleNamespace(waiting_queue=[], is_fully_idle=lambda: True)
    arrives = hook(recorder, "_add_request_to_queue")
    for rid in ("done", "aborted", "lost"):
        arrives(lambda scheduler, req, retracted: scheduler.waiting_queue.append(req), scheduler, request(rid))
    arrives(lambda *_: None, scheduler, request("done"), True)  # retracted: it comes back, it does not arrive
    batch = SimpleNamespace(reqs=[request("done", output=(5, 6), reason="stop")])
    for _ in range(2):  # overlap: a finished one is in the next batch too
        hook(recorder, "process_batch_result")(lambda *_: None, scheduler, batch, None)
    hook(recorder, "abort_request")(lambda scheduler, _: scheduler.waiting_queue.pop(1), scheduler, None)
    hook(recorder, "on_idle")(lambda _: None, scheduler)
    hook(recorder, "on_idle")(lambda _: None, scheduler)
    recorder._files.close()
    ends = [(line["rid"], line["why"], line["ids"]) for line in lines(tmp_path / "r") if line["ev"] == "end"]
    assert ends == [("done", "stop", [5, 6]), ("aborted", "abort", []), ("lost", "abort", [])]


def test_a_fault_of_the_recorder_is_counted_and_the_server_goes_on(recorder, tmp_path):
    seen = []
    hook(recorder, "_add_request_to_queue")(lambda *args: seen.append(args), None, object())
    assert len(seen) == 1
    recorder._files.close()
    [lost] = [line for line in lines(tmp_path / "r") if line["ev"] == "lost"]
    assert lost["events"] == 1
    assert "AttributeError" in lost["why"]
