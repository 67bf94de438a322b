# SPDX-License-Identifier: Apache-2.0
"""Scenarios for replays: the same tasks simulated and on a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from sqreal.replay.replay import Replay
from sqreal.server.server import attach
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import Scenario, make_scenario
from sqsim.trace.schema import Parent, Spawn, Task
from sqsim.trace.store import write_tasks
from tests.sqreal.fake_server import FakeServer
from tests.sqsim.tasks import call, chain, task, turn

POLICIES = {
    "none": {"name": "none"},
    "keep_last": {"name": "keep_last", "n": 1, "after_eviction": "reprefill"},
    "sidequest": {
        "name": "sidequest",
        "k": 2,
        "recall": 0.8,
        "false_rate": 0.1,
        "aux_tokens": 20,
        "after_eviction": "reprefill",
    },
    "compaction": {"name": "compaction", "trigger_tokens": 150, "summary_tokens": 20},
    "pause": {"name": "pause", "above": 0.5, "below": 0.4},
    "pin_ttl": {"name": "pin_ttl", "ttl_s": 0.05},  # of sessions: only where there are some
}
WITHOUT_SESSIONS = [name for name in POLICIES if name != "pin_ttl"]
"""What goes with the radix cache too."""
CLEARING = {"keep_last", "sidequest", "compaction"}
"""Those that clear cursors."""
ACCOUNTED = ("task", "turn", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens")
NAMED = (
    "task",
    "spawn_turn",
    "state",
    "fork_tokens",
    "prompt_tokens",
    "output_tokens",
    "named",
    "applied_turn",
)
EVICTED = ("task", "turn", "cursor", "tokens", "by", "age_turns", "last_use_turn", "used_later")


def scenario(directory: Path, made: Sequence[Task], **changes) -> Scenario:
    """Tasks on the tiny model; `changes` are top-level scenario keys, `engine` merges into the defaults."""
    write_tasks(directory / "tasks.jsonl", made)
    engine = {"gpu": "cpu", "kv_capacity": 20_000, "context_length": 4096, **changes.pop("engine", {})}
    content = {"traces": str(directory / "tasks.jsonl"), "model": "tiny-llama", "engine": engine, **changes}
    return make_scenario({"load": {"concurrency": 1}, **content})


def family(name: str = "parent") -> list[Task]:
    """A task whose first turn starts a sub-agent, which its third turn waits for."""
    child = chain(2, name=f"{name}.sub", parent=Parent(task_id=name, turn=0), spawn=Spawn(turn=0, join_turn=2))
    return [chain(4, name=name, uses={3: (1,)}), child]


def busy(name: str = "busy") -> Task:
    """Failed and parallel calls, a user who thinks, reasoning that is stripped, one token said."""
    return task(
        turn(call(0, 30), call(None, 20, parallel=True), reasoning=12),
        turn(call(1, 80), call(2, 40, parallel=True), text=0, reasoning=0),
        turn(reasoning=30, text=10, template_tokens=15, user_wait_s=1.0),
        turn(call(3, 60, tokens=1), reasoning=0, text=0),
        turn(call(4, 60), uses=(3,)),
        name=name,
        reasoning_kept=False,
    )


def rows(table: pa.Table, columns: Sequence[str]) -> list[dict]:
    """Some columns, in an order that does not depend on when things happened."""
    return sorted(
        table.select(list(columns)).to_pylist(), key=lambda row: (row["task"], *map(str, row.values()))
    )


def on(
    server: FakeServer, run: Scenario, *, time_scale: float = 0.02, await_aux: bool = False
) -> tuple[Replay, RunRecord]:
    with attach(server.url) as attached:
        replay = Replay(run, attached, time_scale=time_scale, await_aux=await_aux)
        return replay, replay.run()
