# SPDX-License-Identifier: Apache-2.0
"""Real recordings against readers written here from the formats' public descriptions; they share no code with sqsim."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from sqsim.errors import TraceError
from sqsim.trace.formats import FORMATS
from sqsim.trace.formats.base import SourceFile
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.statistics import prompts

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data/recordings"


class Account(NamedTuple):
    """Sums over a recording."""

    calls: int
    prompt: int
    output: int
    tools: int


def account(report: ImportReport) -> Account:
    tasks = report.tasks
    turns = [turn for task in tasks for turn in task.turns]
    return Account(
        calls=sum(task.steps for task in tasks),
        prompt=sum(sum(prompts(task)) for task in tasks),
        output=sum(turn.output_tokens for turn in turns)
        + sum(task.answer.output_tokens for task in tasks if task.answer),
        tools=sum(len(turn.calls) for turn in turns),
    )


def har(path: Path) -> Account:
    """HAR 1.2: bodies are texts, in base64 where `encoding` says so; usage is in the body, or in the last event of a stream."""
    calls = prompt = output = 0
    for entry in json.loads(path.read_text())["log"]["entries"]:
        content = entry["response"]["content"]
        text = content["text"]
        if content.get("encoding") == "base64":
            text = gzip.decompress(b"".join(map(base64.b64decode, json.loads(text)))).decode()
        if "text/event-stream" in content["mimeType"]:
            parts = [json.loads(data) for data in re.findall(r"^data: (\{.*)$", text, re.MULTILINE)]
        else:
            parts = [json.loads(text)]
        counts: dict[str, int] = {}
        for part in parts:
            for holder in (part, part.get("message") or {}, part.get("response") or {}):
                if isinstance(holder, dict):
                    counts |= {key: n for key, n in (holder.get("usage") or {}).items() if isinstance(n, int)}
        if not counts:
            continue  # an entry of another service, or a stream without usage
        calls += 1
        prompt += counts.get("prompt_tokens", counts.get("input_tokens", 0))
        prompt += counts.get("cache_read_input_tokens", 0) + counts.get("cache_creation_input_tokens", 0)
        output += counts.get("completion_tokens", counts.get("output_tokens", 0))
    return Account(calls, prompt, output, 0)


def monocle(path: Path) -> Account:
    """Monocle's span format: inference spans have a `metadata` event with counts; `modelapi` spans repeat their parent."""
    value = json.loads(path.read_text())
    spans = value["spans"] if isinstance(value, dict) else value
    calls = prompt = output = tools = 0
    for span in spans:
        events = {event["name"]: event.get("attributes", {}) for event in span.get("events", ())}
        if span["attributes"].get("span.type") in {"inference", "inference.framework"} and "metadata" in events:
            calls += 1
            prompt += events["metadata"]["prompt_tokens"]
            output += events["metadata"]["completion_tokens"]
        tools += span["attributes"].get("span.type") == "agentic.tool.invocation"
    return Account(calls, prompt, output, tools)


def ai_sdk(path: Path) -> Account:
    """The AI SDK's telemetry: a span `do...` for each request to the model, within one for the user's call."""
    spans = [
        span["attributes"] for span in json.loads(path.read_text()) if re.search(r"\.do[A-Z]", span["name"])
    ]
    return Account(
        len(spans),
        sum(span["gen_ai.usage.input_tokens"] for span in spans),
        sum(span["gen_ai.usage.output_tokens"] for span in spans),
        0,
    )


def langsmith(path: Path) -> Account:
    """A batch of the SDK: `post` begins runs, `patch` ends them, with `usage_metadata` among the outputs."""
    batch = json.loads(path.read_text())
    models = {run["id"] for run in batch["post"] if run["run_type"] == "llm"}
    usage = [run["outputs"]["usage_metadata"] for run in batch["patch"] if run["id"] in models]
    return Account(
        len(usage), sum(each["input_tokens"] for each in usage), sum(each["output_tokens"] for each in usage), 0
    )


READERS = {
    "anthropic_stream.har.json": har,
    "openai_responses_gzip.har.json": har,
    "monocle_agents_as_tools.json": monocle,
    "ai_sdk_spans.json": ai_sdk,
    "langsmith_batch.json": langsmith,
}


@pytest.mark.parametrize("name", READERS)
def test_sums_equal_those_of_an_independent_reader(name):
    found = account(import_files([DATA / name]))
    expected = READERS[name](DATA / name)
    assert expected.calls > 0
    assert found == expected


def test_an_agent_of_two_requests_in_a_har(tmp_path):
    """The last of its three requests is of another conversation; a fourth entry is no model's."""
    path = DATA / "langchain_agent.har.json"
    report = import_files([path])
    assert account(report)[:3] == har(path)[:3]
    task = max(report.tasks, key=lambda task: task.steps)
    (call,) = task.turns[0].calls
    assert (call.tool, call.cursor) == ("calculator", 0)


def test_a_stream_without_usage_is_put_together():
    """`stream_options.include_usage` was not set, so the counts are estimated; the calls are in pieces."""
    report = import_files([DATA / "openai_stream_tools.har.json"])
    text = (DATA / "openai_stream_tools.har.json").read_text()
    (task,) = report.tasks
    assert report.usage == "estimated for 100 % of calls"
    named = set(re.findall(r'\\"name\\":\\"(\w+)\\",\\"arguments\\":\\"\\"', text))
    assert named
    assert all(name in (task.answer.text or "") for name in named)  # nobody answered the calls


def test_a_handoff_between_agents_in_spans():
    """Two agents of one trace call the model twice each; what the framework adds between them is in no span."""
    path = DATA / "monocle_handoff.json"
    report = import_files([path])
    assert account(report)[:3] == monocle(path)[:3]
    assert [task.turns[0].calls[0].tool for task in report.tasks] == [
        "transfer_to_okahu_demo_fs_agent_account_inquiry",
        "okahu_demo_fs_tool_check_balance",
    ]
    assert report.warnings["a call that two spans recorded, one within the other, counts once"] == 4


NEW = ("har", "otel_spans", "langfuse", "langsmith", "request_log", "responses_items")


def recordings() -> list[Path]:
    places = (
        DATA,
        ROOT / "traces",
        ROOT / "tests/data/faults",
        ROOT / "tests/data/codex",
        ROOT / "tests/data/traces",
    )
    return [path for place in places for path in sorted(place.rglob("*.json*")) if path.stat().st_size]


@pytest.mark.parametrize("path", recordings(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_two_formats_of_recorded_requests_claim_one_file(path):
    try:
        head = SourceFile(path).head
    except TraceError:
        return  # no JSON: no format sees it
    claimed = [name for name in NEW if FORMATS[name].evidence(head) is not None]
    assert len(claimed) <= 1
    others = [name for name, known in FORMATS.items() if name not in NEW and known.evidence(head) is not None]
    assert not claimed or not others or claimed == ["request_log"]  # a log of requests holds chats


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"resourceLogs": []}', "OpenTelemetry logs"),
        ('{"log": {"entries": 3}}', "a HAR recording without a request"),
        ('{"traceId": "a", "spanId": "b", "attributes": {"http.method": "GET"}}', "spans without attributes"),
        (
            '{"id": "t", "sessionId": null, "timestamp": "x", "userId": null}',
            "Langfuse traces without observations",
        ),
    ],
)
def test_a_refusal_names_the_form_and_the_way_out(text, named, tmp_path):
    path = tmp_path / "in.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=named) as refused:
        import_files([path])
    assert "export" in str(refused.value) or "record" in str(refused.value)


def test_a_session_without_an_answer_leaves_the_others(tmp_path):
    """The first call of the batch alone: LangSmith's `post` of it has no answer yet."""
    batch = json.loads((DATA / "langsmith_batch.json").read_text())
    started = {**batch["post"][0], "id": "another", "trace_id": "another"}
    path = tmp_path / "in.json"
    path.write_text(json.dumps({**batch, "post": [started, *batch["post"]]}))
    report = import_files([path])
    assert account(report) == langsmith(DATA / "langsmith_batch.json")
    assert report.warnings["a session without an answered call was left out"] == 1


NOTHING = {
    "in.har": {"log": {"entries": [{"request": {"url": "https://example.org/"}, "response": {"status": 200}}]}},
    "spans.json": {
        "resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "a", "spanId": "b", "attributes": []}]}]}]
    },
    "langfuse.json": [{"id": "a", "traceId": "t", "type": "SPAN", "startTime": "2026-01-01T00:00:00Z"}],
    "langsmith.json": [{"id": "a", "run_type": "chain"}],
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_recording_without_a_model_call_is_named_and_the_rest_goes_on(name, tmp_path):
    path = tmp_path / name
    path.write_text(json.dumps(NOTHING[name]))
    with pytest.raises(TraceError, match="call of a"):
        import_files([path])
    (tmp_path / "good.har").write_text((DATA / "anthropic_stream.har.json").read_text())
    report = import_files([tmp_path])
    assert len(report.tasks) == 1
    assert [left.path for left in report.left_out] == [str(path)]
