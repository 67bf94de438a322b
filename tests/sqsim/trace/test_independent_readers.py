# SPDX-License-Identifier: Apache-2.0
"""Sums of real recordings against readers written here from each format's public description (FORMATS.md), not from the importers.

A reader knows nothing of tasks or cursors: it walks the file and adds up. Codex has its own in test_import_codex.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sqsim.trace.importing import import_files
from sqsim.trace.schema import Task
from sqsim.trace.statistics import prompts

ROOT = Path(__file__).parents[3]


class Sums(NamedTuple):
    """Model calls, tool calls, failed ones, prompt and output tokens (None: the format states none), response characters."""

    steps: int
    calls: int
    errors: int
    prompt: int | None = None
    output: int | None = None
    characters: int | None = None


def imported(path: Path, *, usage: bool, text: bool) -> Sums:
    tasks = list(import_files([path]).tasks)
    turns = [turn for task in tasks for turn in task.turns]
    calls = [call for turn in turns for call in turn.calls]
    return Sums(
        sum(task.steps for task in tasks),
        len(calls),
        sum(call.error is not None for call in calls),
        sum(sum(prompts(task)) for task in tasks) if usage else None,
        sum(_output(task) for task in tasks) if usage else None,
        sum(len(call.response_text or "") for call in calls) if text else None,
    )


def _output(task: Task) -> int:
    return sum(turn.output_tokens for turn in task.turns) + (task.answer.output_tokens if task.answer else 0)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def flat(content: Any) -> str:
    """The text of a message: a string, or its text parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def claude_code(path: Path) -> Sums:
    """One call a `message.id`; its usage is the last line's; a `tool_result` answers a `tool_use` by id."""
    usage: dict[str, dict[str, int]] = {}
    asked: set[str] = set()
    answered: dict[str, Any] = {}
    for line in lines(path):
        message = line.get("message") or {}
        if line.get("type") == "assistant" and message.get("model") != "<synthetic>":
            usage[message["id"]] = message["usage"]
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            if block["type"] == "tool_use":
                asked.add(block["id"])
            elif block["type"] == "tool_result":
                answered[block["tool_use_id"]] = block
    prompt = sum(
        u["input_tokens"] + u["cache_creation_input_tokens"] + u["cache_read_input_tokens"]
        for u in usage.values()
    )
    return Sums(
        len(usage),
        len(asked),
        sum(bool(block.get("is_error")) for block in answered.values()),
        prompt,
        sum(u["output_tokens"] for u in usage.values()),
        sum(len(flat(block["content"])) for block in answered.values()),
    )


def weka(path: Path) -> Sums:
    """`requests` with `in` and `out`, those of sub-agents nested; a call of tools where `stop` or the types say so."""
    value = json.loads(path.read_text())

    def walk(requests: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        for request in requests:
            if request.get("type") == "subagent":
                yield from walk(request["requests"])
            else:
                yield request

    found = list(walk(value["requests"]))
    return Sums(len(found), -1, 0, sum(r["in"] for r in found), sum(max(1, r["out"]) for r in found))


def mooncake(path: Path) -> Sums:
    """A request a line."""
    found = lines(path)
    return Sums(len(found), 0, 0, sum(r["input_length"] for r in found), sum(r["output_length"] for r in found))


def tau_bench(path: Path) -> Sums:
    """An array of conversations in OpenAI's form; tool messages answer calls. A title such as "Error:" marks a failure."""
    steps = calls = errors = characters = 0
    for task in json.loads(path.read_text()):
        for message in task["traj"]:
            steps += message["role"] == "assistant"
            calls += len(message.get("tool_calls") or ())
            if message["role"] == "tool":
                characters += len(message["content"])
                errors += message["content"].startswith("Error")
    return Sums(steps, calls, errors, characters=characters)


def webdancer(path: Path) -> Sums:
    """ReAct text: `<tool_call>` in what the assistant wrote, `<tool_response>` in the user message after it."""
    steps = calls = characters = 0
    for row in lines(path):
        for number, message in enumerate(row["messages"]):
            steps += message["role"] == "assistant"
            if number < 2:
                continue  # the instructions show an example of a response
            calls += len(re.findall("<tool_call>", message["content"])) if message["role"] == "assistant" else 0
            for response in re.findall(
                r"<tool_response>\n?(.*?)\n?</tool_response>", message["content"], re.DOTALL
            ):
                characters += len(response)
    return Sums(steps, calls, 0, characters=characters)


SHORT = "a prompt grew by less than the output before it"

REAL: list[tuple[str, Callable[[Path], Sums]]] = [
    ("traces/claude_code/session.jsonl", claude_code),
    ("traces/weka/trace_0277.json", weka),
    ("traces/weka/trace_0519.json", weka),
    ("traces/weka/trace_0617.json", weka),
    ("tests/data/traces/trace_0329.json", weka),
    ("tests/data/traces/trace_0683.json", weka),
    ("traces/mooncake/conversation_head300.jsonl", mooncake),
    ("traces/tau_bench/airline_gpt4o.json", tau_bench),
    ("traces/webdancer/sample_traj_cut.jsonl", webdancer),
]


@pytest.mark.parametrize(("path", "reader"), REAL, ids=[path for path, _ in REAL])
def test_sums_equal_an_independent_readers(path: str, reader: Callable[[Path], Sums]):
    """The one difference is named: where a prompt grew by less than the output before it, sqtrace/1 keeps the whole output."""
    expected = reader(ROOT / path)
    found = imported(ROOT / path, usage=expected.prompt is not None, text=expected.characters is not None)
    if expected.calls < 0:
        expected = expected._replace(calls=found.calls)
    if any(SHORT in note for note in import_files([ROOT / path]).warnings):
        assert expected.prompt is not None
        assert found.prompt is not None
        assert 1 < found.prompt / expected.prompt < 1.01
        expected = expected._replace(prompt=found.prompt)
    assert found == expected
