# SPDX-License-Identifier: Apache-2.0
"""One agent run, written in every form of recording by hand (agent_run.py), gives the same tasks from each of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Task
from sqsim.trace.statistics import prompts
from tests.sqsim.trace import agent_apis, agent_exports, agent_spans
from tests.sqsim.trace import agent_run as run


def read(folder: Path, *documents: Any, name: str = "in.json") -> ImportReport:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    return import_files([path])


def outputs(task: Task) -> list[int]:
    return [*(turn.output_tokens for turn in task.turns), *([task.answer.output_tokens] if task.answer else [])]


def is_agent(task: Task, agent: str, *, timed: bool = True) -> None:
    calls = [call for turn in task.turns for call in turn.calls]
    assert prompts(task) == run.PROMPTS[agent]
    assert outputs(task) == run.OUTPUTS[agent]
    assert [call.tool for call in calls] == run.TOOLS_CALLED[agent]
    assert sum(call.error is not None for call in calls) == (run.ERRORS if agent == "main" else 0)
    if timed:
        assert [call.latency_s for call in calls] == run.LATENCIES_S[agent]
        assert task.carries.timing == "recorded"


def is_whole(report: ImportReport) -> None:
    main, sub = report.tasks
    is_agent(main, "main")
    is_agent(sub, "sub")
    assert (main.model, report.usage) == ("gpt-x", "recorded for 100 % of calls")
    assert [call.parallel for call in main.turns[0].calls] == [True, True]
    assert sub.parent is not None
    assert sub.spawn is not None
    assert (sub.parent.task_id, sub.spawn.turn, sub.spawn.join_turn) == (main.task_id, 1, 2)
    assert main.prefix.tokens > 20 < sub.prefix.tokens  # system prompt and tool definitions


SPANS: dict[str, Callable[[], list[Any]]] = {
    **{f"otlp {form}": lambda form=form: [agent_spans.otlp(form)] for form in agent_spans.FORMS},
    **{f"python {form}": lambda form=form: [agent_spans.python_dump(form)] for form in agent_spans.FORMS},
    "langfuse observations": lambda: [agent_exports.langfuse()],
    "langfuse lines": agent_exports.langfuse,
    "langfuse page": lambda: [{"data": agent_exports.langfuse(), "meta": {"page": 1}}],
    "langfuse trace": lambda: [{"id": run.TRACE, "sessionId": "s", "observations": agent_exports.langfuse()}],
    "langfuse exported trace": lambda: [{"trace": {"id": run.TRACE}, "observations": agent_exports.langfuse()}],
    "langsmith runs": lambda: [agent_exports.langsmith()],
    "langsmith lines": agent_exports.langsmith,
    "langsmith answer": lambda: [{"runs": agent_exports.langsmith(), "cursors": {}}],
}


@pytest.mark.parametrize("form", SPANS)
def test_every_form_of_spans_gives_the_same_tasks(form, tmp_path):
    is_whole(read(tmp_path, *SPANS[form]()))


@pytest.mark.parametrize("seed", range(3))
def test_spans_may_lie_in_any_order_and_in_several_batches(seed, tmp_path):
    spans = agent_spans.spans("json")
    random.Random(seed).shuffle(spans)
    batches = [{"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]} for each in spans]
    is_whole(read(tmp_path, *batches, name="in.jsonl"))


def test_a_trace_may_lie_in_several_files(tmp_path):
    for number, each in enumerate(agent_spans.spans("open_inference")):
        (tmp_path / f"{number}.json").write_text(
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]})
        )
    is_whole(import_files([tmp_path]))


def test_without_content_counts_and_tool_spans_still_tell_the_run(tmp_path):
    report = read(tmp_path, agent_spans.otlp("counts"))
    main, sub = report.tasks
    is_agent(main, "main")
    is_agent(sub, "sub")
    assert main.carries.text == "absent"
    assert main.turns[1].calls[0].response_tokens > 0
    assert report.warnings["a call was recorded with its token counts only, without text"] == 5


@pytest.mark.parametrize("other", ["openllmetry", "open_inference"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_call_that_two_instrumentations_recorded_counts_once(nested, other, tmp_path):
    spans = agent_spans.spans("json")
    for each in agent_spans.spans(other):
        if each["name"] in {model.name for model in run.MODELS}:
            spans.append(
                {
                    **each,
                    "spanId": f"{each['name']}-again",
                    "parentSpanId": each["name"] if nested else each["parentSpanId"],
                }
            )
    report = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    is_whole(report)
    once = [text for text in report.warnings if text.endswith("counts once")]
    assert [report.warnings[text] for text in once] == [5]


def test_spans_exported_twice_and_repeated_ids_count_once(tmp_path):
    (first, second), again = [agent_spans.otlp("json")] * 2, agent_spans.spans("json")
    for each in again:
        each["traceId"], each["attributes"] = (
            "f" * 32,
            [a for a in each["attributes"] if a["key"] != "session.id"],
        )
    copies = [each for each in again if each["name"] == "m3"]
    report = read(tmp_path, first, second, {"resourceSpans": [{"scopeSpans": [{"spans": copies}]}]})
    is_whole(report)
    assert report.warnings["a span that was recorded before (same trace and id) was left out"] == 12


def test_a_retried_request_that_failed_first_counts_once(tmp_path):
    spans = agent_spans.spans("open_inference")
    (first,) = [each for each in spans if each["name"] == "m2"]
    kept = [a for a in first["attributes"] if "output" not in a["key"] and "completion" not in a["key"]]
    failed = {**first, "spanId": "m2-failed", "status": {"code": "STATUS_CODE_ERROR"}, "attributes": kept}
    report = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": [*spans, failed]}]}]})
    is_whole(report)
    assert report.warnings["a request that failed was left out"] == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_every_api_in_a_har_gives_the_same_task(api, stream, tmp_path):
    report = read(tmp_path, agent_apis.har(api, stream=stream))
    (task,) = report.tasks
    is_agent(task, "main", timed=False)
    calls = [call for turn in task.turns for call in turn.calls]
    assert [call.latency_s for call in calls] == [1.5, 1.5, 8.0]  # between the two requests
    assert task.carries.timing == "recorded"
    assert report.warnings["an entry that calls no chat model was left out"] == 2
    assert report.warnings["a request that failed was left out"] == 1


@pytest.mark.parametrize("wrapped", ["list", "lines", "object", "batch"])
def test_a_list_of_responses_items_is_a_task(wrapped, tmp_path):
    items = agent_apis.items(run.MAIN)
    documents = {
        "list": [items],
        "lines": items,
        "object": [{"input": items, "tools": run.TOOLS}],
        "batch": [[items, items]],
    }
    report = read(tmp_path, *documents[wrapped])
    for task in report.tasks:
        calls = [call for turn in task.turns for call in turn.calls]
        assert [call.tool for call in calls] == run.TOOLS_CALLED["main"]
        assert sum(call.error is not None for call in calls) == run.ERRORS
        assert (task.steps, task.carries.usage, task.question.text) == (3, "derived", run.QUESTION)
    assert len(report.tasks) == (2 if wrapped == "batch" else 1)


def test_responses_alone_are_threaded_by_the_response_they_name(tmp_path):
    rows = []
    before = None
    for model in (each for each in run.MODELS if each.agent == "main"):
        body = json.loads("".join(agent_apis.responses_answer(model, stream=False)))
        rows.append({**body, "previous_response_id": before, "created_at": run.EPOCH_S + model.begins_s})
        before = body["id"]
    (task,) = read(tmp_path, *rows).tasks
    is_agent_without_results = [call.tool for turn in task.turns for call in turn.calls]
    assert prompts(task) == run.PROMPTS["main"]
    assert outputs(task) == run.OUTPUTS["main"]
    assert is_agent_without_results == run.TOOLS_CALLED["main"]
    assert task.turns[0].calls[0].response_tokens > 50  # what the next prompt grew by


def test_an_agent_that_rewrites_its_prompt_restarts_its_context(tmp_path):
    spans = [agent_spans.agent_span("main", "json")]
    for number, model in enumerate(run.MODELS[:3]):
        told = [run.MAIN[0], {"role": "user", "content": f"Summary {number} of all so far."}]
        rewritten = run.Model(**{**vars(model), "prompt_messages": told if number else run.MAIN[:2]})
        spans.append(
            agent_spans.span(
                model.name, "agent-main", model.begins_s, model.ends_s, agent_spans.newest(rewritten, text=True)
            )
        )
    spans += [agent_spans.tool_span(each, "json") for each in run.RUNS[:3]]
    (task,) = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).tasks
    assert prompts(task) == run.PROMPTS["main"]
    assert [turn.reset is not None for turn in task.turns] == [False, True, True]
    assert [call.tool for turn in task.turns for call in turn.calls] == run.TOOLS_CALLED["main"]


def test_calls_at_once_within_an_agent_are_tasks_of_their_own(tmp_path):
    spans = [agent_spans.agent_span("main", "json")]
    for number in range(3):
        told = [run.MAIN[0], {"role": "user", "content": f"Part {number}."}]
        model = run.Model(0.0, 2.0 + number, 500, 10, run.MAIN[7], "main", told, f"p{number}")
        spans.append(
            agent_spans.span(
                model.name, "agent-main", model.begins_s, model.ends_s, agent_spans.newest(model, text=True)
            )
        )
    report = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    assert [prompts(task) for task in report.tasks] == [[500], [500], [500]]
