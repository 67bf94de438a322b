# SPDX-License-Identifier: Apache-2.0
"""Whatever a file holds, an import gives sound tasks or a `TraceError`: never another exception."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.formats import FORMATS
from sqsim.trace.importing import import_files
from sqsim.trace.schema import SCHEMA
from sqsim.trace.store import write_tasks
from sqsim.trace.synthesis import synthesise

ROOT = Path(__file__).parents[3]
SAMPLES = {
    "weka_trace": ROOT / "traces/weka/trace_0277.json",
    "mooncake_trace": ROOT / "traces/mooncake/conversation_head300.jsonl",
    "claude_code": ROOT / "traces/claude_code/session.jsonl",
    "codex": ROOT / "tests/data/codex/rollout-2026-06-01T10-00-00-main.jsonl",
    "openai_chat": ROOT / "traces/tau_bench/airline_gpt4o.json",
    "react_text": ROOT / "traces/webdancer/sample_traj_cut.jsonl",
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.just([[1]]),
    st.just({"role": "tool"}),
    st.just("2026-01-01T00:00:00"),
    st.just("tool_result"),
    st.just("\ud83d"),
)


def sample(name: str) -> list:
    """A few values of a real file, cut so that an import takes milliseconds."""
    text = SAMPLES[name].read_text()
    if name in {"weka_trace", "openai_chat"}:
        value = json.loads(text)
        if name == "weka_trace":
            value["requests"] = [
                value["requests"][index] for index in (0, 1, 4)
            ]  # a sub-agent between two calls
            for request in list(value["requests"]) + value["requests"][1]["requests"]:
                request["hash_ids"] = request.get("hash_ids", [])[:3]
        else:
            value = value[0]["traj"][:10]
        return [value]
    return [json.loads(line) for line in text.splitlines()[:40]]


def places(value) -> Iterator[tuple]:
    """Every (container, key) of a JSON value."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(part, dict | list):
            yield from places(part)


@pytest.mark.parametrize("name", [*SAMPLES, SCHEMA])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_file_with_odd_values_is_imported_or_named(name, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    if name == SCHEMA:
        write_tasks(folder / "whole.jsonl", synthesise("coding", 1, 1, 0.1))
        values = [json.loads((folder / "whole.jsonl").read_text())]
        values[0]["turns"] = values[0]["turns"][:3]
    else:
        values = sample(name)
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(values))
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        if isinstance(container, dict) and data.draw(st.booleans()):
            del container[key]
        else:
            container[key] = copy.deepcopy(data.draw(ODD))  # a later draw may change it
        if not any(True for _ in places(values)):
            return
    path = folder / "odd.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in values))
    for how in {"auto", name} & {"auto", *FORMATS, SCHEMA}:
        with contextlib.suppress(TraceError):
            write_tasks(folder / "out.jsonl", import_files([path], how).tasks)
