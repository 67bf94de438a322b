# SPDX-License-Identifier: Apache-2.0
"""AIPerf's own loaders read sqsim's exports: the same sessions, lengths, delays, hash ids and messages.

They run in .venv-aiperf (`make aiperf`), as AIPerf pins other versions of what sqsim uses.
"""

from __future__ import annotations

import json
import subprocess
from itertools import accumulate
from pathlib import Path

import pytest

from sqsim.trace.exports import export
from sqsim.trace.importing import import_files
from sqsim.trace.schema import Task
from sqsim.trace.statistics import prompts
from sqsim.trace.store import read_tasks
from sqsim.trace.synthesis import synthesise
from tests.sqsim.trace.test_exports import KINDS, outputs, texted

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-aiperf/bin/python"
READ = Path(__file__).parent / "aiperf/read_exports.py"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-aiperf; `make aiperf` makes it")


def aiperf(kind: str, path: Path) -> dict:
    done = subprocess.run([PYTHON, READ, kind, path], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def delays(task: Task) -> list[float | None]:
    """Milliseconds before each step: none before the first."""
    waits = [round((turn.tool_wait_s + turn.user_wait_s) * 1e3, 3) for turn in task.turns]
    return [None, *(waits if task.answer is not None else waits[:-1])]


def several() -> list[Task]:
    """Tasks of many kinds under ids of their own, without resets, which deltas cannot say."""
    kinds = ("plain", "parallel calls", "failed call", "user waits", "shared prefix", "hash ids", "no answer")
    made = [
        each.model_copy(update={"task_id": f"{kind}/{each.task_id}"}) for kind in kinds for each in KINDS[kind]
    ]
    return [*made, *synthesise("coding", 6, 1)]


def test_aiperf_adds_up_deltas_to_the_prompts_of_the_trace(tmp_path):
    """Its default for these lines is deltas without responses: it sends all lines so far and its server's answers."""
    made = several()
    export(made, tmp_path / "d.jsonl", "aiperf")
    read = aiperf("mooncake", tmp_path / "d.jsonl")
    assert read["block_size"] == 512
    assert list(read["sessions"]) == [task.task_id for task in made]
    for task in made:
        session = read["sessions"][task.task_id]
        assert session["mode"] is None, "AIPerf falls through to its default, deltas_without_responses"
        turns = session["turns"]
        assert [turn["max_tokens"] for turn in turns] == outputs(task)
        sums = accumulate(turn["input_length"] + turn["max_tokens"] for turn in turns)
        assert [total - turn["max_tokens"] for total, turn in zip(sums, turns, strict=True)] == prompts(task)
        assert [turn["delay"] for turn in turns] == delays(task)
        arrival = None if task.arrival_s is None else task.arrival_s * 1e3
        assert [turn["timestamp"] for turn in turns] == [arrival, *[None] * (len(turns) - 1)]
        for turn in turns:
            assert len(turn["hash_ids"] or ()) == -(-turn["input_length"] // 512), (
                "its generator wants one id a block"
            )
    shared = [read["sessions"][f"shared prefix/{name}"]["turns"][0]["hash_ids"] for name in ("a", "b")]
    assert shared[0][:2] == shared[1][:2]


def test_aiperf_s_own_deltas_survive_the_way_through_sqsim(tmp_path):
    """Import AIPerf's example, export it for AIPerf: its loader sees the same lengths and delays as in the original."""
    original = ROOT / "tests/data/faults/01-aiperf-deltas/in.jsonl"
    tasks = import_files([original]).tasks
    export(tasks, tmp_path / "d.jsonl", "aiperf")
    before, after = (aiperf("mooncake", path)["sessions"] for path in (original, tmp_path / "d.jsonl"))
    (old,), (new,) = before.values(), after.values()
    for key in ("input_length", "max_tokens", "delay", "timestamp"):
        assert [turn[key] for turn in new["turns"]] == [turn[key] for turn in old["turns"]], key
    assert [len(turn["hash_ids"]) for turn in new["turns"]] == [len(turn["hash_ids"]) for turn in old["turns"]]


def test_aiperf_sends_the_messages_of_the_trace(tmp_path):
    made = [texted(each) for kind in ("plain", "compaction", "user waits") for each in KINDS[kind]]
    made = [each.model_copy(update={"task_id": str(number)}) for number, each in enumerate(made)]
    path = tmp_path / "m.jsonl"
    export(made, path, "aiperf_messages")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    sessions = aiperf("mooncake", path)["sessions"]
    assert [turn["messages"] for session in sessions.values() for turn in session["turns"]] == [
        line["messages"] for line in lines
    ]
    for task in made:
        session = sessions[task.task_id]
        assert session["mode"] == "message_array_with_responses"
        assert [turn["delay"] for turn in session["turns"]] == delays(task)
        assert [turn["max_tokens"] for turn in session["turns"]] == outputs(task)
    last = sessions["0"]["turns"][-1]["messages"]
    assert [message["role"] for message in last] == ["system", "user", *["assistant", "tool"] * 4]
    assert [message["content"] for message in last if message["role"] == "tool"] == [
        f"page {n}0" for n in range(4)
    ]


@pytest.mark.parametrize("source", ["recorded", "made"])
def test_aiperf_reads_weka_s_sessions_and_sub_agents(source, tmp_path):
    made = (
        list(read_tasks(ROOT / "traces/weka/trace_0277.json")) if source == "recorded" else KINDS["sub-agent"]
    )
    export(made, tmp_path / "w", "weka_trace")
    read = aiperf("weka", tmp_path / "w")
    assert read["split"] == 0, "AIPerf takes no part of a session for another agent"
    root, *below = made
    names = {root.task_id: root}
    names |= {f"{root.task_id}::sa:{each.task_id.removeprefix(root.task_id + '/')}": each for each in below}
    assert read["agents"].keys() == names.keys()
    joins = {each.spawn.join_turn for each in below}
    for name, task in names.items():
        requests = read["agents"][name]
        assert [request["input_length"] for request in requests] == prompts(task)
        assert [request["output_length"] for request in requests] == outputs(task)
        assert [len(request["hash_ids"]) for request in requests] == [n // 64 for n in prompts(task)]
        for index, (request, wait) in enumerate(zip(requests, delays(task), strict=True)):
            if name != root.task_id or index not in joins:
                assert request["delay"] == (wait if wait is None else pytest.approx(wait, abs=0.01))
    ends = {each.spawn.join_turn: read["agents"][name][-1] for name, each in names.items() if each.spawn}
    for join, last in ends.items():
        assert read["agents"][root.task_id][join]["t"] >= last["t"], "the parent waits for its sub-agents"
