# SPDX-License-Identifier: Apache-2.0
"""Whatever is odd in a recording, an import succeeds with notes, or refuses with a `TraceError`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files
from tests.sqsim.trace import agent_apis, agent_exports, agent_spans
from tests.sqsim.trace import agent_run as run

FORMS: dict[str, Any] = {
    **{f"otlp {form}": agent_spans.otlp(form) for form in (*agent_spans.FORMS, "counts")},
    "dump": agent_spans.python_dump("json"),
    "langfuse": {"id": "t", "observations": agent_exports.langfuse()},
    "langsmith": agent_exports.langsmith(),
    **{f"har {api}": agent_apis.har(api, stream=False) for api in ("chat", "responses", "anthropic")},
    "items": agent_apis.items(run.MAIN),
    "monocle": [
        {
            "name": "m",
            "context": {"trace_id": "t", "span_id": "s"},
            "parent_id": None,
            "attributes": {"span.type": "inference", "entity.1.type": "model.x"},
            "events": [
                {
                    "name": "data.input",
                    "attributes": {"input": ['{"human": "hi"}', '{"ai": {"name": "f", "args": {}}}']},
                },
                {"name": "data.output", "attributes": {"response": '{"ai": "yes"}'}},
                {"name": "metadata", "attributes": {"prompt_tokens": 5, "completion_tokens": 2}},
            ],
        }
    ],
}
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        10**30,
        1.5,
        -0.0,
        1e308,
        "",
        "x",
        "\ud800",
        "NaN",
        "[",
        "[{}]",
        '{"a": 1}',
        [],
        [None],
        [[]],
        {},
        {"a": None},
        ["x", 3],
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        found += places(part, (*path, key))
    return found


def is_read_or_refused(path: Path) -> None:
    try:
        tasks, told = import_files([path]).tasks, ""
    except TraceError as fault:
        tasks, told = [], str(fault)
    assert tasks or str(path) in told


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_values_are_read_or_refused(form, tmp_path, data):
    document = copy.deepcopy(FORMS[form])
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        *above, last = data.draw(st.sampled_from(places(document)), label="place")
        holder = document
        for key in above:
            holder = holder[key]
        how = data.draw(st.sampled_from(["change", "remove", "double"]), label="how")
        if how == "change":
            holder[last] = copy.deepcopy(data.draw(ODD, label="value"))
        elif how == "remove":
            del holder[last]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        if not document:
            return
    path = tmp_path / "in.json"
    path.write_text(json.dumps(document))
    is_read_or_refused(path)


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_and_damaged_streams_are_read_or_refused(api, tmp_path, data):
    document = agent_apis.har(api, stream=True)
    content = document["log"]["entries"][1]["response"]["content"]
    cut = data.draw(st.integers(0, len(content["text"])), label="cut")
    noise = data.draw(
        st.sampled_from(
            ["", "data: {}\n\n", "data: [1]\n\n", "\r\n\r\n", ": ping\n\n", 'data: {"type": []}\n\n']
        )
    )
    content["text"] = content["text"][:cut] + noise + content["text"][cut + data.draw(st.integers(0, 40)) :]
    path = tmp_path / "in.json"
    path.write_text(json.dumps(document))
    is_read_or_refused(path)


@pytest.mark.parametrize("form", ["otlp json", "langfuse", "langsmith"])
def test_a_torn_last_line_leaves_the_rest(form, tmp_path):
    lines = {
        "otlp json": [agent_spans.otlp("json")] * 2,
        "langfuse": agent_exports.langfuse(),
        "langsmith": agent_exports.langsmith(),
    }[form]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines)[:-40])
    report = import_files([path])
    assert report.tasks
    assert any("the last line is cut off" in text for text in report.warnings)
