# SPDX-License-Identifier: Apache-2.0
"""The LiteLLM callback, on what LiteLLM 1.110.2 gave it (tests/data/litellm), without LiteLLM."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from pathlib import Path

import pytest

from sqsim.trace.importing import import_files

GIVEN = Path(__file__).parents[1] / "data" / "litellm" / "kwargs.jsonl"


@pytest.fixture
def callback(monkeypatch):
    names = ["litellm", "litellm.integrations", "litellm.integrations.custom_logger"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].CustomLogger = object
    monkeypatch.delitem(sys.modules, "sqreal.proxy.litellm_callback", raising=False)
    yield importlib.import_module("sqreal.proxy.litellm_callback")
    sys.modules.pop("sqreal.proxy.litellm_callback", None)


def given():
    return [json.loads(line) for line in GIVEN.read_text().splitlines()]


def test_a_log_is_imported_with_its_tools_times_and_usage(callback, tmp_path):
    recorder = callback.Recorder(str(tmp_path / "log.jsonl"))
    for kwargs in given():
        asyncio.run(recorder.async_log_success_event(kwargs, None, None, None))
    report = import_files([tmp_path / "log.jsonl"])
    assert report.carries["timing"] == {"recorded": 2}
    assert report.usage == "recorded for 100 % of calls"
    [session] = [task for task in report.tasks if task.turns]  # both its calls name the session s1
    [call] = session.turns[0].calls
    assert call.tool == "search"
    assert call.latency_s == pytest.approx(0.527, abs=0.001)  # endTime of the first to startTime of the second
    assert report.warnings["a request that failed was left out"] == 1


def test_a_trace_id_of_litellm_is_no_session(callback):
    """LiteLLM makes a new one for each call that names none."""
    sessions = [callback.line_of(kwargs)["session_id"] for kwargs in given()]
    assert sessions == ["s1", "s1", None, None]


@pytest.mark.parametrize(
    "kwargs", [{}, {"standard_logging_object": None}, {"standard_logging_object": {"messages": "redacted"}}]
)
def test_calls_without_messages_have_no_line(callback, tmp_path, kwargs):
    recorder = callback.Recorder(str(tmp_path / "log.jsonl"))
    recorder.log_success_event(kwargs, None, None, None)
    assert not (tmp_path / "log.jsonl").exists()
    assert recorder.lost == 0


def test_a_log_that_cannot_be_written_ends_no_call(callback, tmp_path, caplog):
    recorder = callback.Recorder(str(tmp_path / "none" / "log.jsonl"))
    recorder.log_success_event(given()[0], None, None, None)
    assert recorder.lost == 1
    assert "1 calls were not logged" in caplog.text


def test_nothing_is_written_unless_the_environment_names_a_log(callback, monkeypatch):
    monkeypatch.delenv(callback.LOG, raising=False)
    recorder = callback.Recorder()
    recorder.log_success_event(given()[0], None, None, None)
    assert recorder.path is None
    assert recorder.lost == 0
