# SPDX-License-Identifier: Apache-2.0
"""The raw step log, and the recorded schedule that is made of it."""

import json
from contextlib import contextmanager

import pytest

from sqreal.plugin.event_log import EventLog
from sqreal.plugin.hooks import PluginError
from sqreal.replay.schedule import await_idle, recorded, write_schedule
from sqsim.errors import RunError
from sqsim.fidelity.recording import read_recording
from sqsim.models.serving.limits import Limits
from sqsim.models.serving.tokens import count


@contextmanager
def opened(path):
    log = EventLog(path)
    log.open()
    yield log
    log.close()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_in_the_file_when_they_are_written(tmp_path):
    with opened(tmp_path / "log") as log:
        log.write("arrive", rid="a")
        log.write("abort", rid="b")
        assert lines(tmp_path / "log") == [
            {"n": 0, "ev": "arrive", "rid": "a"},
            {"n": 1, "ev": "abort", "rid": "b"},
        ]


def test_details_belong_to_the_innermost_open_event(tmp_path):
    with opened(tmp_path / "log") as log:
        with log.gather() as outer:
            log.detail("adm", 1)
            with log.gather() as inner:
                log.detail("evict", 2)
            log.detail("adm", 3)
        assert (outer, inner) == ({"adm": [1, 3]}, {"evict": [2]})
        log.detail("release", 4)
    [alone] = lines(tmp_path / "log")
    assert (alone["ev"], alone["v"]) == ("release", 4)


def test_a_log_is_never_written_over(tmp_path):
    path = tmp_path / "log"
    with opened(path) as log:
        log.write("arrive")
    with pytest.raises(PluginError, match="exists already"):
        EventLog(path).open()
    assert len(lines(path)) == 1


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(PluginError, match="cannot be made"):
        EventLog(tmp_path / "none" / "log").open()


def test_hooks_work_while_the_log_is_open(tmp_path):
    log = EventLog(tmp_path / "log")
    hook = log.hook("some.method", "self x", lambda original, x: original(x) + 1)
    assert hook.around(abs, -5) == 5
    log.open()
    assert hook.around(abs, -5) == 6
    log.close()


# From the raw log to the recording.


def raw(tmp_path, *events):
    with opened(tmp_path / "raw") as log:
        for name, fields in events:
            log.write(name, **fields)
    return tmp_path / "raw"


WARM = [
    ("arrive", {"t": 5.0, "rid": "w"}),
    ("step", {"step": 1, "t0": 5.0, "t1": 5.5}),
    ("idle", {"t": 5.6, "step": 1}),
]
FLUSH = [("flush_cache", {"t": 6.0, "step": 1})]
RUN = [
    ("arrive", {"t": 7.25, "rid": "a", "step": 1}),
    ("step", {"step": 2, "t_sched": 7.25, "t0": 7.5, "t1": 8.0}),
    ("result", {"step": 2, "after_step": 2, "t0": 8.0, "t1": 8.0}),
    ("idle", {"t": 8.0, "step": 2}),
]


def test_a_recording_begins_behind_the_warm_up(tmp_path):
    events = list(recorded(raw(tmp_path, *WARM, *FLUSH, *RUN), t0=7.0))
    assert [event["n"] for event in events] == [0, 1, 2, 3]
    assert [event["step"] for event in events] == [0, 1, 1, 1]
    assert events[1]["t_sched"] == 0.25
    assert events[2]["after_step"] == 1


def test_without_a_flush_all_of_it_is_recorded(tmp_path):
    assert len(list(recorded(raw(tmp_path, *RUN), t0=0.0))) == 4


def test_a_server_at_work_is_waited_for(tmp_path):
    path = raw(tmp_path, *RUN[:-1])
    with pytest.raises(RunError, match="still busy"):
        list(recorded(path, t0=0.0))
    with pytest.raises(RunError, match="still busy after 0 s"):
        await_idle(path, deadline_s=0)
    with path.open("a") as log:
        log.write('{"n":3,"ev":"idle","t":')
    with pytest.raises(RunError, match="still busy"):
        await_idle(path, deadline_s=0)
    with path.open("a") as log:
        log.write('8.0,"step":2}\n')
    await_idle(path, deadline_s=0)


def test_closing_a_session_is_no_work(tmp_path):
    await_idle(raw(tmp_path, *RUN, ("close_session", {"t": 9.0, "step": 2, "id": "s"})), deadline_s=0)


INFO = {
    "version": "0.5.23",
    "internal_states": [
        {
            "memory_usage": {"token_capacity": 100, "token_capacity_swa": 80},
            "effective_max_running_requests_per_dp": 4,
        }
    ],
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "page_size": 1,
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": False,
    "context_length": 2048,
    "chunked_prefill_size": 128,
    "enable_streaming_session": False,
    "radix_cache_backend": None,
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
}


def test_lockstep_reads_what_is_written(tmp_path):
    asked = {
        "rid": "a",
        "input_ids": [5, 6],
        "max_new_tokens": 4,
        "n_out": 1,
        "stop_token_ids": [2],
        "session": None,
    }
    write_schedule(
        tmp_path / "schedule",
        log=raw(tmp_path, *WARM, *FLUSH, *RUN),
        server_info=INFO,
        requests=[asked],
        responses={"a": {"output_ids": [2]}},
        t0=7.0,
        window=127,
    )
    recording = read_recording(tmp_path / "schedule")
    assert recording.limits == Limits(
        kv_capacity=100,
        swa_capacity=80,
        swa_window=127,
        max_running=4,
        chunked_prefill=128,
        context_length=2048,
    )
    unsaid = {**INFO, "context_length": None, "chunked_prefill_size": -1}
    write_schedule(
        tmp_path / "unsaid",
        log=tmp_path / "raw",
        server_info=unsaid,
        requests=[asked],
        responses={},
        t0=7.0,
        context_length=4096,
    )
    limits = read_recording(tmp_path / "unsaid").limits
    assert (limits.context_length, limits.chunked_prefill) == (4096, 4096), "the model's; no prompt is cut"
    assert count(recording.request("a", "here").asked.prompt) == 2
    assert [event.data["ev"] for event in recording.events()] == ["arrive", "step", "result", "idle"]
