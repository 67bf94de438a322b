# SPDX-License-Identifier: Apache-2.0
"""Odd values in formats of lengths and hashes: missing keys, nulls, wrong types, huge numbers, copies, a torn last line."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.test_import_lengths import (
    APPLIED,
    FIRST,
    SECOND,
    chat,
    ended,
    event,
    line,
    record,
    tooled,
)

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**31, 2**63, 2**64, 10**30, -1, 1e308, 0.5, "", "x", "-1", [], {}, [None], [[]], {"a": 1}]
    ),
)
EXAMPLES: dict[str, list[dict]] = {
    "applied_compute_agentic": [APPLIED, APPLIED],
    "qwen_bailian": [chat(1, -1, 60, 40, [10, 11, 12]), chat(2, 1, 70, 80, [10, 11, 14, 15, 16])],
    "agentic_mooncake": [
        line("a0", "a", 100, branches=["b0"]),
        line("b0", "b", 50, wait_for=["a0"]),
        line(
            "a1", "a", 160, wait_for=["a0", "b0"], delay=2, tool_wait_ms=3, tool_events=[event("bash", 0, 20)]
        ),
    ],
    "dynamo_request_trace": [
        ended("r0", 1000, 500, 100, [1, 5], session_id="a"),
        tooled(1600, 1900, session_id="a"),
        ended("q0", 1600, 900, 30, [77], session_id="b", parent_session_id="a"),
        ended("r1", 3000, 500, 200, [1, 5, 6, 7], session_id="a"),
    ],
    "aiperf_messages": [
        {"session_id": "s", "timestamp": 2000, "messages": FIRST, "output_length": 40},
        {"session_id": "s", "delay": 1500, "messages": SECOND, "output_length": 30},
    ],
    "aiperf_records": [record("s", 1, 2, 100), record("s", 3, 4, 200)],
    "mooncake_trace": [
        {"session_id": "s", "timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "s", "delay": 1, "input_length": 900, "output_length": 5, "hash_ids": [1, 2]},
    ],
}


def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """The value with one part of it replaced, left out, or doubled, however deep."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        if not draw(st.integers(0, 3)):
            return {name: part for name, part in value.items() if name != key}
        return value | {key: spoilt(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(value) - 1))
        if not draw(st.integers(0, 3)):
            return [*value, value[place]]
        return [*value[:place], spoilt(draw, value[place]), *value[place + 1 :]]
    return draw(ODD)


@st.composite
def spoilt_rows(draw: st.DrawFn, name: str) -> list[Any]:
    rows = EXAMPLES[name]
    for _ in range(draw(st.integers(1, 3))):
        rows = spoilt(draw, rows)
        if not isinstance(rows, list) or not rows:
            return [rows]
    return rows


@pytest.mark.parametrize("name", EXAMPLES)
@settings(deadline=None, max_examples=int(__import__("os").environ.get("N", 150)))
@given(data=st.data())
def test_odd_values_are_errors_of_ours_or_a_trace(name, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "in.jsonl"
    rows = data.draw(spoilt_rows(name))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.suppress(TraceError):
        assert import_files(
            [path], format=data.draw(st.sampled_from([name, "auto"])), references="none", timing="none"
        ).tasks


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_recognised_and_a_torn_last_line_is_noted(name, tmp_path):
    path = tmp_path / "in.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in EXAMPLES[name])
    path.write_text(text)
    whole = import_files([path], references="none", timing="none")
    assert whole.evidence[0].text.startswith(f"{name}:")
    path.write_text(text + '{"request_id": "torn')
    torn = import_files([path], references="none", timing="none")
    assert [prompts(task) for task in torn.tasks] == [prompts(task) for task in whole.tasks]
    assert any("cut off" in text for text in torn.warnings)
