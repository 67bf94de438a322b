# SPDX-License-Identifier: Apache-2.0
"""Recordings with odd values: each importer gives sound tasks, or a `TraceError` that names the file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.checks import Checks
from sqsim.trace.importing import import_files
from tests.sqsim.trace import agent_logs

TESTS = Path(__file__).parents[2]
DATA, FAULTS = TESTS / "data/agents", TESTS / "data/faults"

ODD = [
    None, True, False, 0, 1, -1, 2.5, 1e300, 10**30, "", "text", "attachment://none", "2026-01-02T03:04:05Z", "0001-01-01T00:00:00",
    [], [None], [[]], [1, 2], ["text"], {}, {"type": "text"}, {"type": []}, {"role": "assistant"}, {"id": 1}, [{}], [{"type": "image"}],
]  # fmt: skip


def _document(path: Path) -> Any:
    text = path.read_text()
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


SAMPLES: dict[str, tuple[str, Any]] = {
    "atif": ("atif", agent_logs.atif()),
    "atif, real": ("atif", _document(DATA / "atif_login.json")),
    "inspect": ("inspect_log", agent_logs.inspect()),
    "tau2": ("tau2", agent_logs.tau2()),
    "openhands, sdk": ("openhands", agent_logs.openhands()),
    "openhands, real": ("openhands", _document(DATA / "openhands_resolver.jsonl")),
    "browsecomp_plus": ("browsecomp_plus", agent_logs.browsecomp()),
    "codex_bare": ("codex_bare", agent_logs.codex_bare()),
    "swe_agent, text": ("swe_agent", _document(DATA / "swe_agent_text.traj")),
    "swe_agent, calls": ("swe_agent", _document(DATA / "swe_agent_calls.traj")),
    "langgraph": ("langgraph", _document(DATA / "langgraph_thread.json")),
    "tracelab": ("tracelab", _document(DATA / "tracelab_rounds.jsonl")),
    "request_log": ("request_log", _document(FAULTS / "04-litellm-request-log-misread/in.jsonl")),
    "mini_swe_agent, 1": ("mini_swe_agent", _document(FAULTS / "11-mini-swe-agent-v1-misread/in.json")),
    "mini_swe_agent, 2": (
        "mini_swe_agent",
        _document(FAULTS / "22-mini-v2-usage-and-times-ignored/mini_v2.json"),
    ),
    "anthropic_messages": ("anthropic_messages", _document(FAULTS / "03-anthropic-messages-misread/in.json")),
}
LINES = {"openhands, real", "codex_bare", "tracelab", "request_log"}
"""Samples with one value a line."""


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """List the places of all parts of a value, few of a long list."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [each for key, part in value.items() for each in places(part, (*path, key))]
    if isinstance(value, list):
        chosen = [*range(min(8, len(value))), *range(max(8, len(value) - 2), len(value))]
        return found + [each for index in chosen for each in places(value[index], (*path, index))]
    return found


def changed(value: Any, path: tuple, how: str, odd: Any) -> Any:
    """Replace, remove or repeat the part at a place."""
    whole = copy.deepcopy(value)
    part = whole
    for key in path[:-1]:
        part = part[key]
    last = path[-1]
    if how == "remove":
        del part[last]
    elif how == "repeat" and isinstance(part, list):
        part.insert(last, copy.deepcopy(part[last]))
    else:
        part[last] = odd
    return whole


@st.composite
def changes(draw: st.DrawFn, value: Any) -> Any:
    for _ in range(draw(st.integers(1, 3))):
        found = places(value)
        if not found:
            break
        how = draw(st.sampled_from(["replace", "replace", "remove", "repeat"]))
        value = changed(value, draw(st.sampled_from(found)), how, copy.deepcopy(draw(st.sampled_from(ODD))))
    return value


def sound_or_refused(path: Path, known: str) -> None:
    for name in (known, "auto"):
        refusal = ""
        try:
            tasks = import_files([path], name).tasks
        except TraceError as fault:
            tasks, refusal = [], str(fault)
        checks = Checks()
        assert path.name in refusal or all(checks.task(task) for task in tasks)
        assert bool(tasks) != bool(refusal)


@pytest.mark.parametrize("sample", SAMPLES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_values(sample, data, tmp_path_factory):
    known, value = SAMPLES[sample]
    odd = data.draw(changes(value))
    path = tmp_path_factory.mktemp("odd") / "in.json"
    whole = sample not in LINES or not isinstance(odd, list)
    path.write_text(json.dumps(odd) if whole else "".join(json.dumps(line) + "\n" for line in odd))
    sound_or_refused(path, known)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_torn_file_is_refused_or_read_up_to_the_tear(sample, tmp_path):
    known, value = SAMPLES[sample]
    lines = [json.dumps(line) for line in value] if sample in LINES else [json.dumps(value)]
    text = "\n".join(lines)
    path = tmp_path / "in.json"
    for cut in range(1, 8):
        path.write_text(text[: len(text) * cut // 8])
        sound_or_refused(path, known)


@pytest.mark.parametrize("known", sorted({known for known, _ in SAMPLES.values()}))
@pytest.mark.parametrize("value", ODD, ids=lambda value: json.dumps(value)[:20])
def test_a_file_that_is_one_odd_value(known, value, tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps(value))
    sound_or_refused(path, known)
