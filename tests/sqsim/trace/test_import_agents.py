# SPDX-License-Identifier: Apache-2.0
"""Trajectories of agent frameworks: sums equal an independent reader's, written from each format's description."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sqsim.errors import TraceError
from sqsim.trace.formats import FORMATS
from sqsim.trace.formats.notes import Notes
from sqsim.trace.gathering import gathered
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Parent, Spawn, Task
from sqsim.trace.statistics import prompts
from sqsim.trace.store import write_tasks
from tests.sqsim.trace import agent_logs

DATA = Path(__file__).parents[2] / "data/agents"


class Totals(NamedTuple):
    """Sums over a file; prompt and output are None where the file does not state them for every call."""

    prompt: int | None
    output: int | None
    calls: int
    tools: int
    errors: int


def imported_totals(report: ImportReport) -> Totals:
    calls = [call for task in report.tasks for turn in task.turns for call in turn.calls]
    outputs = sum(turn.output_tokens for task in report.tasks for turn in task.turns)
    outputs += sum(task.answer.output_tokens for task in report.tasks if task.answer)
    stated = report.usage == "recorded for 100 % of calls"
    return Totals(
        sum(sum(prompts(task)) for task in report.tasks) if stated else None,
        outputs if stated else None,
        sum(task.steps for task in report.tasks),
        len(calls),
        sum(call.error is not None for call in calls),
    )


def _sum(values: list[Any]) -> int | None:
    return None if None in values else sum(values)


def atif(value: Any) -> Totals:
    steps = [step for part in [value, *value.get("subagent_trajectories", [])] for step in part["steps"]]
    agent = [step for step in steps if step["source"] == "agent"]
    metrics = [step.get("metrics", {}) for step in agent]
    tools = sum(len(step.get("tool_calls", [])) for step in agent)
    return Totals(
        _sum([m.get("prompt_tokens") for m in metrics]),
        _sum([m.get("completion_tokens") for m in metrics]),
        len(agent),
        tools,
        0,
    )


def swe_agent(value: Any) -> Totals:
    """Every entry of `trajectory` is one call with one action."""
    actions = [step for step in value["trajectory"] if step["action"].strip()]
    return Totals(None, None, len(value["trajectory"]), len(actions), 0)


def inspect(value: Any) -> Totals:
    events = [event for sample in value["samples"] for event in sample["events"]]
    uses = [event["output"]["usage"] for event in events if event["event"] == "model"]
    tools = [event for event in events if event["event"] == "tool"]
    return Totals(
        sum(use["total_tokens"] - use["output_tokens"] for use in uses),
        sum(use["output_tokens"] for use in uses),
        len(uses),
        len(tools),
        sum(event.get("error") is not None for event in tools),
    )


def tau2(value: Any) -> Totals:
    messages = [message for run in value["simulations"] for message in run["messages"]]
    agent = [message for message in messages if message["role"] == "assistant" and message.get("usage")]
    told = [
        message for message in messages if message["role"] == "tool" and message["requestor"] == "assistant"
    ]
    return Totals(
        sum(message["usage"]["prompt_tokens"] for message in agent),
        sum(message["usage"]["completion_tokens"] for message in agent),
        len(agent),
        len(told),
        sum(message.get("error", False) for message in told),
    )


def langgraph(value: Any) -> Totals:
    messages = value["values"]["messages"]
    tools = [message for message in messages if message["type"] == "tool"]
    return Totals(
        None,
        None,
        sum(message["type"] == "ai" for message in messages),
        len(tools),
        sum(message.get("status") == "error" for message in tools),
    )


def openhands(value: Any) -> Totals:
    events = value["history"]
    if "kind" not in events[0]:
        agent = [event for event in events[1:] if "action" in event]
        tools = [event for event in agent if event["action"] not in {"message", "finish"}]
        return Totals(None, None, len(agent), len(tools), 0)
    uses = value["metrics"]["token_usages"]
    return Totals(
        sum(use["prompt_tokens"] for use in uses),
        sum(use["completion_tokens"] for use in uses),
        len({event["llm_response_id"] for event in events if "llm_response_id" in event}),
        sum(event["kind"] == "ActionEvent" for event in events),
        sum(event["kind"] == "AgentErrorEvent" for event in events),
    )


def browsecomp(value: Any) -> Totals:
    kinds = [item["type"] for item in value["result"]]
    return Totals(
        None, None, kinds.count("tool_call") + kinds.count("output_text"), kinds.count("tool_call"), 0
    )


def codex_bare(value: Any) -> Totals:
    outputs = [json.loads(item["output"]) for item in value if item.get("type") == "function_call_output"]
    failed = sum(output["metadata"]["exit_code"] != 0 for output in outputs)
    return Totals(None, None, len(outputs) + 1, len(outputs), failed)


def loaded(path: Path) -> Any:
    text = path.read_text()
    lines = text.splitlines()
    return json.loads(lines[0]) if path.name == "openhands_resolver.jsonl" else json.loads(text)


REAL: dict[str, tuple[str, Callable[[Any], Totals]]] = {
    "atif_login.json": ("atif", atif),
    "swe_agent_text.traj": ("swe_agent", swe_agent),
    "swe_agent_calls.traj": ("swe_agent", swe_agent),
    "inspect_popularity.json": ("inspect_log", inspect),
    "langgraph_thread.json": ("langgraph", langgraph),
    "openhands_resolver.jsonl": ("openhands", openhands),
}

WRITTEN: dict[str, tuple[Any, Callable[[Any], Totals]]] = {
    "atif": (agent_logs.atif(), atif),
    "inspect_log": (agent_logs.inspect(), inspect),
    "tau2": (agent_logs.tau2(), tau2),
    "openhands": (agent_logs.openhands(), openhands),
    "browsecomp_plus": (agent_logs.browsecomp(), browsecomp),
    "codex_bare": (agent_logs.codex_bare(), codex_bare),
}


def saved(folder: Path, value: Any, name: str = "in.json") -> Path:
    path = folder / name
    whole = isinstance(value, dict)
    path.write_text(json.dumps(value) if whole else "".join(json.dumps(line) + "\n" for line in value))
    return path


def read(folder: Path, value: Any) -> ImportReport:
    return import_files([saved(folder, value)])


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


@pytest.mark.parametrize("name", REAL)
def test_sums_of_real_recordings(name):
    known, reader = REAL[name]
    report = import_files([DATA / name])
    assert report.evidence[0].text.startswith(f"{known}: ")
    assert imported_totals(report) == reader(loaded(DATA / name))


@pytest.mark.parametrize("name", WRITTEN)
def test_sums_of_written_recordings(name, tmp_path):
    value, reader = WRITTEN[name]
    report = read(tmp_path, value)
    assert report.evidence[0].text.startswith(f"{name}: ")
    assert imported_totals(report) == reader(value)


def test_sums_of_tracelab_rounds():
    """Outputs, calls and tools are exact; a prompt may be above the recorded one where reasoning left it."""
    lines = [json.loads(line) for line in (DATA / "tracelab_rounds.jsonl").read_text().splitlines()]
    report = import_files([DATA / "tracelab_rounds.jsonl"])
    found = imported_totals(report)
    tools = [tool for line in lines for tool in line["tools"]]
    assert found.output == sum(line["output_tokens"] for line in lines)
    assert (found.calls, found.tools) == (len(lines), len(tools))
    assert found.errors == sum(tool["is_error"] is True for tool in tools)
    recorded = sum(line["input_tokens_total"] for line in lines)
    assert found.prompt is not None
    assert recorded <= found.prompt <= 1.01 * recorded
    assert report.carries["text"] == {"absent": 2}
    assert report.carries["timing"] == {"recorded": 2}


@pytest.mark.parametrize("name", [*REAL, "tracelab_rounds.jsonl"])
def test_no_two_formats_claim_a_file(name):
    """Each recording has the evidence of one format alone, whatever the order in which they are asked."""
    found = gathered([DATA / name], "auto", [], Notes())
    ((_, (file,)),) = found.known
    assert sum(known.evidence(file.head) is not None for known in FORMATS.values()) == 1


@pytest.mark.parametrize("name", WRITTEN)
def test_an_import_is_read_back(name, tmp_path):
    report = read(tmp_path, WRITTEN[name][0])
    path = tmp_path / "out.jsonl"
    write_tasks(path, report.tasks)
    assert import_files([path]).tasks == report.tasks


# ATIF


def test_atif_token_ids_are_those_of_the_prompts(tmp_path):
    """Prefix and question are the first prompt's ids; every part follows the one before it."""
    main, child = read(tmp_path, agent_logs.atif()).tasks
    given = agent_logs.atif()["steps"]
    assert main.prefix.token_ids is not None
    assert main.question.token_ids is not None
    assert [*main.prefix.token_ids, *main.question.token_ids] == given[2]["metrics"]["prompt_token_ids"]
    (turn,) = main.turns
    (call,) = turn.calls
    parts = (
        turn.reasoning_token_ids,
        turn.text_token_ids,
        call.call_token_ids,
        turn.template_token_ids,
        call.response_token_ids,
    )
    assert [each for part in parts for each in part or ()] == given[3]["metrics"]["prompt_token_ids"][50:]
    assert child.prefix.token_ids is None


def test_atif_sub_agent_starts_with_the_call_that_refers_to_it(tmp_path):
    _, child = read(tmp_path, agent_logs.atif()).tasks
    assert child.task_id == "main/child"
    assert (child.parent, child.spawn) == (Parent(task_id="main", turn=0), Spawn(turn=0, join_turn=1))


@pytest.mark.parametrize("minor", range(8))
def test_atif_versions(minor, tmp_path):
    value = {**agent_logs.atif(), "schema_version": f"ATIF-v1.{minor}"}
    report = read(tmp_path, value)
    assert len(report.tasks) == 2
    assert not any("is read as" in text for text in report.warnings)


def test_atif_steps_that_are_no_calls(tmp_path):
    """Copied context, a dispatch without a model, and a call written a second time with its result."""
    call = {"tool_call_id": "c9", "function_name": "ls", "arguments": {}}
    value = agent_logs.atif()
    value["subagent_trajectories"] = []
    value["steps"] = [
        {"source": "agent", "message": "old", "is_copied_context": True},
        {"source": "user", "message": "go on"},
        {"source": "agent", "message": "dispatch", "llm_call_count": 0},
        {"source": "agent", "message": "", "tool_calls": [call]},
        {
            "source": "agent",
            "message": "",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c9", "content": "a"}]},
        },
    ]
    report = read(tmp_path, value)
    task = only(report)
    assert (task.steps, [len(turn.calls) for turn in task.turns]) == (1, [1])
    assert task.question.text == "old\ngo on\ndispatch"
    assert (
        sum("copied" in text or "llm_call_count 0" in text or "repeats" in text for text in report.warnings)
        == 3
    )


def test_atif_compaction_is_a_reset(tmp_path):
    value = agent_logs.atif()
    value["subagent_trajectories"] = []
    summary = {"results": [{"content": "Summary: a.py."}]}
    boundary = {"context_management": {"type": "compaction", "boundary": "replace"}}
    value["steps"].insert(
        3, {"source": "system", "message": "compacted", "observation": summary, "extra": boundary}
    )
    value["steps"][4]["metrics"] = {"prompt_tokens": 40, "completion_tokens": 7}
    turns = only(read(tmp_path, value)).turns
    assert [turn.reset is not None for turn in turns] == [False, True]
    assert turns[1].reset is not None
    assert turns[1].reset.keep_text == "Summary: a.py."


# SWE-agent


def test_swe_agent_demonstration_is_prefix_and_agents_are_tasks(tmp_path):
    def said(role: str, text: str, **more: Any) -> dict:
        return {"role": role, "content": text, "agent": "main", **more}

    value = {
        "trajectory": [{"action": "ls", "observation": "a.py"}],
        "history": [
            said("system", "SETTING"),
            said("user", "a demonstration", is_demo=True),
            said("user", "Fix it."),
            said("assistant", "I list.\nls", action="ls"),
            said("user", "a.py"),
            said("assistant", "Looks good.", agent="reviewer"),
        ],
        "info": {"exit_status": "exit_context"},
    }
    report = read(tmp_path, value)
    main, reviewer = report.tasks
    assert (main.prefix.text, main.question.text) == ("SETTING\na demonstration", "Fix it.")
    assert [(call.tool, call.call_text, call.response_text) for call in main.turns[0].calls] == [
        ("ls", "ls", "a.py")
    ]
    assert (reviewer.steps, main.outcome.finish) == (1, "context_limit")
    assert report.warnings["a message of a demonstration (is_demo) is prefix, not a call"] == 1


def test_swe_agent_execution_times():
    value = json.loads((DATA / "swe_agent_calls.traj").read_text())
    task = only(import_files([DATA / "swe_agent_calls.traj"]))
    assert task.carries.timing == "recorded"
    took = [call.latency_s for turn in task.turns for call in turn.calls]
    assert took == [round(step["execution_time"], 3) for step in value["trajectory"]]


# Inspect


def archived(path: Path, value: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "header.json", json.dumps({key: part for key, part in value.items() if key != "samples"})
        )
        for sample in value["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path


@pytest.mark.parametrize(
    "value", [agent_logs.inspect(), json.loads((DATA / "inspect_popularity.json").read_text())]
)
def test_inspect_archive_gives_what_the_document_gives(value, tmp_path):
    whole = import_files([saved(tmp_path, value)]).tasks
    packed = import_files([archived(tmp_path / "in.eval", value)]).tasks
    assert [task.model_copy(update={"source": whole[0].source}) for task in packed] == [
        task.model_copy(update={"source": whole[0].source}) for task in whole
    ]


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"PK\x03\x04" + bytes(200)])
def test_inspect_archive_that_is_broken(content, tmp_path):
    path = tmp_path / "in.eval"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="zip cannot be read"):
        import_files([path])


def test_inspect_attachments_and_tool_times(tmp_path):
    task = only(read(tmp_path, agent_logs.inspect()))
    assert task.question.text == "Which files are there?"
    assert [call.latency_s for call in task.turns[0].calls] == [1.5]
    assert task.turns[0].reasoning_text == "I list."
    assert (task.carries.timing, task.arrival_s) == ("recorded", 0.0)


def test_inspect_calls_outside_the_messages_are_tasks(tmp_path):
    """A grader's call is in no message of the sample."""
    value = agent_logs.inspect()
    event = json.loads(json.dumps(value["samples"][0]["events"][1]))
    event["input"] = [{"id": "g", "role": "user", "content": "Grade it."}]
    event["output"]["choices"][0]["message"] = {"id": "ga", "role": "assistant", "content": "C"}
    value["samples"][0]["events"].append(event)
    report = read(tmp_path, value)
    assert [task.question.text for task in report.tasks] == ["Which files are there?", "Grade it."]
    assert imported_totals(report) == inspect(value)


# The others


def test_tau2_times_greeting_and_user(tmp_path):
    """The call at 3 s was answered at 5 s; the user came back 4 s after the second message, at 10 s."""
    task = only(read(tmp_path, agent_logs.tau2()))
    assert task.prefix.text == "Be polite."
    assert task.question.text == "Hi! How can I help you today?\nWhere is order W1?"
    assert [call.latency_s for turn in task.turns for call in turn.calls] == [2.0]
    assert [turn.user_wait_s for turn in task.turns] == [0.0, 4.0]
    assert (task.outcome.correct, task.carries.timing) == (True, "recorded")


def test_tau2_times_are_used_in_every_message_or_none(tmp_path):
    value = agent_logs.tau2()
    del value["simulations"][0]["messages"][-1]["timestamp"]
    task = only(import_files([saved(tmp_path, value)], timing="none"))
    assert task.carries.timing == "absent"
    assert [turn.user_wait_s for turn in task.turns] == [0.0, 0.0]


def test_openhands_actions_of_one_response_are_one_call(tmp_path):
    task = only(read(tmp_path, agent_logs.openhands()))
    assert [(call.latency_s, call.error) for call in task.turns[0].calls] == [(2.0, None), (3.0, "no shell")]
    assert task.task_id == "in:i-1"


def test_langgraph_history_counts_its_longest_state(tmp_path):
    state = json.loads((DATA / "langgraph_thread.json").read_text())
    short = {**state, "values": {"messages": state["values"]["messages"][:2]}}
    path = tmp_path / "history.json"
    path.write_text(json.dumps([state, short]))
    assert only(import_files([path])).turns == only(import_files([DATA / "langgraph_thread.json"])).turns


def test_codex_bare_durations(tmp_path):
    task = only(read(tmp_path, agent_logs.codex_bare()))
    assert [(call.latency_s, call.error) for turn in task.turns for call in turn.calls] == [
        (0.5, None),
        (1.25, "exit code 2"),
    ]
    assert (task.carries.timing, task.prefix.text, task.arrival_s) == ("recorded", "Be careful.", 0.0)


def test_arrivals_count_from_the_first_run_of_all_files(tmp_path):
    """Two simulations 90 s apart; a run without a start takes the arrivals of all."""
    value = agent_logs.tau2()
    first = saved(tmp_path, value, "a.json")
    value["simulations"][0] |= {"start_time": "2026-01-02T03:05:30Z", "task_id": "8"}
    second = saved(tmp_path, value, "b.json")
    assert [task.arrival_s for task in import_files([first, second]).tasks] == [0.0, 90.0]
    del value["simulations"][0]["start_time"]
    saved(tmp_path, value, "b.json")
    report = import_files([first, second])
    assert [task.arrival_s for task in report.tasks] == [None, None]
    assert report.warnings["a run does not state when it began: no run has an arrival"] == 1


def test_mini_swe_agent_arrives_as_it_states(tmp_path):
    value = json.loads((DATA.parent / "faults/22-mini-v2-usage-and-times-ignored/mini_v2.json").read_text())
    first = saved(tmp_path, value, "a.json")
    for message in value["messages"]:
        if isinstance(message.get("extra"), dict) and "timestamp" in message["extra"]:
            message["extra"]["timestamp"] += 60
    second = saved(tmp_path, value, "b.json")
    assert [task.arrival_s for task in import_files([first, second]).tasks] == [0.0, 60.0]
