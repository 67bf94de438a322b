# SPDX-License-Identifier: Apache-2.0
"""One agent run with a sub-agent, and its account, written by hand; agent_spans, agent_exports and agent_apis write it down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

EPOCH_S = 1_790_000_000
TRACE, SESSION = "5b8efff798038103d269b633813fc60c", "run-7"
SYSTEM = "You are a careful research agent."
QUESTION = "Which of the two harbours is older?"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("search", "ask")
]


@dataclass
class Model:
    """Model call; `said` is its answer, `heard` what the next prompt adds behind it."""

    begins_s: float
    ends_s: float
    prompt: int
    output: int
    said: dict[str, Any]
    agent: str
    prompt_messages: list[dict[str, Any]]
    name: str


@dataclass
class Tool:
    begins_s: float
    ends_s: float
    name: str
    call_id: str
    arguments: str
    result: str
    agent: str
    span: str
    failed: bool = False


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def assistant(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


FOUND, LOST = "The harbour of Arden was built in the year 1204. " * 20, "Error: no such page"
ANSWERED = "The harbour of Belmar was built in the year 1387, says the archive. " * 12
MAIN = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": QUESTION},
    assistant("I look at both.", call("search", "c1", q="Arden"), call("search", "c2", q="Belmar")),
    result("c1", FOUND),
    result("c2", LOST),
    assistant("", call("ask", "c3", who="archivist", about="Belmar")),
    result("c3", ANSWERED),
    assistant("Arden is older: 1204 against 1387."),
]
SUB = [
    {"role": "system", "content": "You are an archivist."},
    {"role": "user", "content": "When was Belmar built?"},
    assistant("", call("search", "d1", q="Belmar charter")),
    result("d1", ANSWERED[:300]),
    assistant("In 1387."),
]
MODELS = [
    Model(0.0, 2.0, 300, 40, MAIN[2], "main", MAIN[:2], "m1"),
    Model(3.5, 5.0, 600, 25, MAIN[5], "main", MAIN[:5], "m2"),
    Model(13.0, 14.0, 900, 15, MAIN[7], "main", MAIN[:7], "m3"),
    Model(6.0, 7.0, 200, 20, SUB[2], "sub", SUB[:2], "s1"),
    Model(9.0, 11.0, 310, 8, SUB[4], "sub", SUB[:4], "s2"),
]
RUNS = [
    Tool(2.0, 3.0, "search", "c1", '{"q": "Arden"}', FOUND, "main", "t1"),
    Tool(2.1, 2.6, "search", "c2", '{"q": "Belmar"}', LOST, "main", "t2", failed=True),
    Tool(5.0, 12.0, "ask", "c3", '{"who": "archivist", "about": "Belmar"}', ANSWERED, "main", "t3"),
    Tool(7.0, 8.5, "search", "d1", '{"q": "Belmar charter"}', ANSWERED[:300], "sub", "t4"),
]
PROMPTS = {"main": [300, 600, 900], "sub": [200, 310]}
OUTPUTS = {"main": [40, 25, 15], "sub": [20, 8]}
TOOLS_CALLED = {"main": ["search", "search", "ask"], "sub": ["search"]}
LATENCIES_S = {"main": [1.0, 0.5, 1.0], "sub": [1.5]}
"""Of the call that the sub-agent ran in, the time until the sub-agent's first call."""
ERRORS = 1


def iso(time_s: float) -> str:
    return datetime.fromtimestamp(EPOCH_S + time_s, UTC).isoformat().replace("+00:00", "Z")


def nanos(time_s: float) -> str:
    return str(EPOCH_S * 10**9 + round(time_s * 1e9))
