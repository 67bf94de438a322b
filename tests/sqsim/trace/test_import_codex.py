# SPDX-License-Identifier: Apache-2.0
"""Codex rollouts: three threads with counts read by hand, a real one, and an independent reader's sums."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Parent, Spawn, Task
from sqsim.trace.statistics import prompts
from sqsim.trace.store import write_tasks
from tests.sqsim.trace.reports import changes

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data/codex"
MAIN = DATA / "rollout-2026-06-01T10-00-00-main.jsonl"
REAL = ROOT / "traces/codex/session.jsonl"


def values(path: Path = MAIN) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


def outputs(task: Task) -> list[int]:
    return [turn.output_tokens for turn in task.turns] + ([task.answer.output_tokens] if task.answer else [])


def calls(task: Task) -> list[tuple]:
    return [(call.tool, call.error) for turn in task.turns for call in turn.calls]


# The thread that was made by hand


def test_counts_are_those_of_the_file():
    """Eight different token counts; input_tokens and output_tokens of each `last_token_usage`."""
    task = only(import_files([MAIN]))
    assert prompts(task) == [1000, 1200, 1400, 1550, 3300, 3400, 900, 1000]
    assert outputs(task) == [80, 120, 50, 60, 40, 200, 30, 20]
    assert [turn.reasoning_tokens for turn in task.turns] == [30, 40, 0, 10, 0, 0, 0]
    assert (task.model, task.arrival_s, task.carries.usage) == ("gpt-5.4", 0.0, "recorded")
    assert task.task_id == "00000001-0000-7000-8000-000000000000"


def test_calls_and_their_errors():
    """`rg` found nothing (exit code 1), and pytest could not be started."""
    assert calls(only(import_files([MAIN]))) == [
        ("exec_command", None),
        ("exec_command", "exit code 1"),
        ("apply_patch", None),
        ("exec_command", "exec_command failed for `pytest -q`: No such file or directory"),
        ("spawn_agent", None),
        ("exec_command", None),
    ]


def test_times():
    """Calls at 4 and 4.5 s, answered at 5.25 and 6 s; the user came back 30 s after the answer."""
    turns = only(import_files([MAIN])).turns
    assert [(call.latency_s, call.parallel) for call in turns[0].calls] == [(1.25, True), (1.5, True)]
    assert [turn.user_wait_s for turn in turns] == [0, 0, 0, 30, 0, 0, 0]


def test_a_compaction_is_a_reset_behind_its_own_call():
    report = import_files([MAIN])
    turns = only(report).turns
    assert [turn.reset is not None for turn in turns] == [False] * 6 + [True]
    assert turns[6].reset.keep_text == "The parser was mended; docs/parser.py is being written."
    assert turns[5].output_tokens == 200
    assert changes(report) == {
        "a content part of type input_image counts as 1500 tokens (assumed)": 1,
        "a model call without items in the log (as a compaction's own) has its recorded counts only": 1,
    }


def test_a_patch_refers_to_what_it_quotes():
    assert only(import_files([MAIN])).turns[1].uses == (0,)


def test_the_picture_is_in_the_prompt_and_no_text_is_said_twice():
    """`event_msg` lines repeat messages for the screen."""
    task = only(import_files([MAIN]))
    assert task.turns[3].template_tokens == 3300 - 1550 - 60
    assert task.turns[3].text == "The parser takes empty lines now; there is no pytest here."
    assert task.question.text.count("mend it") == 1


# Threads that belong together


def test_a_spawned_thread_is_a_sub_agent_and_a_fork_begins_at_its_first_own_call():
    report = import_files([DATA])
    main, spawned, forked = report.tasks
    assert spawned.parent == Parent(task_id=main.task_id, turn=4)
    assert spawned.spawn == Spawn(turn=4, join_turn=6), "the first call that began after its end, at 70.5 s"
    assert (prompts(spawned), outputs(spawned)) == ([700, 800], [20, 30])
    assert (prompts(forked), outputs(forked), forked.arrival_s) == ([1500], [40], 100.0)
    assert forked.prefix == main.prefix
    assert forked.question.text == "Use a regular expression instead."
    assert report.warnings["a call that a fork repeats from its origin was left out"] == 2


def test_the_order_of_the_files_does_not_matter():
    names = sorted(DATA.glob("*.jsonl"))
    there, back = import_files(names).tasks, import_files(names[::-1]).tasks
    assert {task.task_id: task for task in there} == {task.task_id: task for task in back}


def test_without_their_origin_they_are_tasks_of_their_own():
    spawned, forked = sorted(DATA.glob("*.jsonl"))[1:]
    report = import_files([spawned])
    assert only(report).parent is None
    assert "a sub-agent without its parent's rollout is a task of its own" in report.warnings
    assert prompts(only(import_files([forked]))) == [1000, 1200, 1500]


# Other orders of the same lines


def test_counts_that_stand_before_their_call_give_the_same_calls(tmp_path):
    """Older versions wrote a call's items when its response was over, behind its token count."""
    moved: list[dict] = []
    start = None  # of the call's items
    for line in values():
        kind = line["payload"].get("type")
        spoken = {"reasoning", "function_call", "custom_tool_call"}
        if start is None and (kind in spoken or line["payload"].get("role") == "assistant"):
            start = len(moved)
        if kind == "token_count" and line["payload"]["info"]:
            moved.insert(len(moved) if start is None else start, line)
            start = None
        else:
            moved.append(line)
    plain, made = only(import_files([MAIN])), only(import_files([written(tmp_path / "r.jsonl", moved)]))
    assert (prompts(made), outputs(made), calls(made)) == (prompts(plain), outputs(plain), calls(plain))
    assert [turn.reset is not None for turn in made.turns] == [turn.reset is not None for turn in plain.turns]


def test_totals_are_enough(tmp_path):
    lines = values()
    for line in lines:
        if line["payload"].get("type") == "token_count" and line["payload"]["info"]:
            del line["payload"]["info"]["last_token_usage"]
    made = only(import_files([written(tmp_path / "r.jsonl", lines)]))
    assert (sum(prompts(made)), sum(outputs(made))) == (13_750, 600)


def test_without_counts_texts_are_estimated(tmp_path):
    lines = [line for line in values() if line["payload"].get("type") != "token_count"]
    report = import_files([written(tmp_path / "r.jsonl", lines)])
    task = only(report)
    assert task.carries.usage == "derived"
    assert report.usage == "estimated for 100 % of calls"
    assert calls(task) == calls(only(import_files([MAIN])))
    assert task.steps == 7, "the compaction's own call is seen by its count only"


def test_a_user_who_goes_back_restarts_the_context(tmp_path):
    lines = values()
    at = next(n for n, line in enumerate(lines) if line["payload"].get("turn_id") == "2")
    lines.insert(at, {**lines[at], "payload": {"type": "thread_rolled_back", "num_turns": 1}})
    report = import_files([written(tmp_path / "r.jsonl", lines)])
    assert report.warnings["a user went back (thread_rolled_back): the context restarts"] == 1
    assert only(report).turns[4].reset is not None


def test_reasoning_that_a_user_s_message_drops_is_no_compaction(tmp_path):
    """The server leaves earlier reasoning (80 tokens so far) out behind a user's message; a cursor stays open."""
    text = MAIN.read_text().replace(
        '"last_token_usage":{"input_tokens":3300', '"last_token_usage":{"input_tokens":1500'
    )
    (tmp_path / "r.jsonl").write_text(text)
    task, made = only(import_files([MAIN])), only(import_files([tmp_path / "r.jsonl"]))
    assert [turn.reset is not None for turn in made.turns][:5] == [False] * 5
    assert outputs(made) == outputs(task)


# Against an independent reader


def sums(path: Path) -> tuple[int, int, int, int, int]:
    """Prompt and output tokens, model calls, tool calls and errors, as the format's description says."""
    items = [value["payload"] for value in values(path)]
    infos = [item["info"] for item in items if item.get("type") == "token_count" and item["info"]]
    total = infos[-1]["total_token_usage"]
    different = {json.dumps(info["total_token_usage"]) for info in infos}
    tools = [item for item in items if item.get("type") in ("function_call", "custom_tool_call")]
    results = [item["output"] for item in items if str(item.get("type")).endswith("call_output")]
    bad = [
        text
        for text in results
        if re.search(r"^Process exited with code [^0]|^\w+ failed\b", text, re.MULTILINE)
    ]
    return total["input_tokens"], total["output_tokens"], len(different), len(tools), len(bad)


def test_sums_of_the_thread_made_by_hand_are_an_independent_reader_s():
    task = only(import_files([MAIN]))
    errors = sum(error is not None for _, error in calls(task))
    assert sums(MAIN) == (13_750, 600, 8, 6, 2)
    assert (sum(prompts(task)), sum(outputs(task)), task.steps, len(calls(task)), errors) == sums(MAIN)


def test_sums_of_a_real_thread_are_an_independent_reader_s():
    """Prompts but for the reasoning that two user messages drop, which the simulated context keeps: under 1 %."""
    task = only(import_files([REAL]))
    errors = sum(error is not None for _, error in calls(task))
    prompt, *rest = sums(REAL)
    assert [sum(outputs(task)), task.steps, len(calls(task)), errors] == rest == [1_912, 9, 10, 2]
    assert 0 <= sum(prompts(task)) - prompt < 0.01 * prompt
    assert not any(turn.reset for turn in task.turns)


# Whatever a file holds


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0, 1))
def test_a_log_that_is_cut_anywhere_is_read_up_to_it_or_named(share, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    whole = MAIN.read_bytes()
    (folder / "r.jsonl").write_bytes(whole[: round(share * len(whole))])
    try:
        report = import_files([folder / "r.jsonl"])
    except TraceError as fault:
        report, problem = None, str(fault)
    if report is None:
        assert "r.jsonl" in problem
        return
    made, plain = only(report), only(import_files([MAIN]))
    write_tasks(folder / "out.jsonl", [made])
    complete = made.steps - 1  # the last one may lack its count
    assert outputs(made)[:complete] == outputs(plain)[:complete]
    assert prompts(made)[:complete] == prompts(plain)[:complete]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"type": "web_search_call", "action": {"query": "x"}}, "a web_search_call ran on the server"),
        ({"type": "hologram", "content": "x"}, "a response item of unknown type hologram counts as its JSON text"),
        ({"type": "function_call_output", "call_id": "gone", "output": "x"}, "a tool output whose call is not in the log"),
    ],
)  # fmt: skip
def test_what_is_not_a_call_with_its_answer_is_counted(item, says, tmp_path):
    lines = values()
    lines.insert(7, {"timestamp": lines[7]["timestamp"], "type": "response_item", "payload": item})
    report = import_files([written(tmp_path / "r.jsonl", lines)])
    assert any(text.startswith(says) for text in report.warnings)
    assert outputs(only(report)) == outputs(only(import_files([MAIN])))


@pytest.mark.parametrize(
    "output", [{"content": "no", "success": False}, '{"output":"","metadata":{"exit_code":2}}']
)
def test_older_outputs_say_that_they_failed_in_other_ways(output, tmp_path):
    lines = values()
    for line in lines:
        if line["payload"].get("call_id") == "call_1" and "output" in line["payload"]:
            line["payload"]["output"] = output
    task = only(import_files([written(tmp_path / "r.jsonl", lines)]))
    assert task.turns[0].calls[0].error in {"no", "exit code 2"}


def test_a_time_that_is_none_is_named(tmp_path):
    lines = values()
    lines[9]["timestamp"] = "yesterday"
    with pytest.raises(TraceError, match="'yesterday' is not a time; give ISO 8601"):
        import_files([written(tmp_path / "r.jsonl", lines)])


def test_without_times_latencies_are_drawn(tmp_path):
    lines = [{key: part for key, part in line.items() if key != "timestamp"} for line in values()]
    task = only(import_files([written(tmp_path / "r.jsonl", lines)]))
    assert (task.carries.timing, task.arrival_s) == ("synthesised", None)
