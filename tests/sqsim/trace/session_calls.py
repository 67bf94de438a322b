# SPDX-License-Identifier: Apache-2.0
"""Count the tool calls of each model call in recorded sessions, from each format's public description and not by the importers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def calls_of_steps(path: Path, format: str, run: int) -> list[int]:  # noqa: A002 - the word of the labels
    """Number of tool calls of each model call of run number `run` in a file, in their order there."""
    return _COUNTS[format](path, run)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _claude_code(path: Path, _run: int) -> list[int]:
    counts: dict[str, int] = {}  # by message id: a message is written in several lines, one a content block
    for line in _lines(path):
        if line.get("type") == "assistant":
            message = line["message"]
            uses = sum(block["type"] == "tool_use" for block in message["content"])
            counts[message["id"]] = counts.get(message["id"], 0) + uses
    return list(counts.values())


def _codex(path: Path, _run: int) -> list[int]:
    """Count until each `token_count` event, which follows a model call; a call's last message may come just after it."""
    counts, calls = [], 0
    for line in _lines(path):
        payload = line["payload"]
        if line["type"] == "response_item" and payload["type"].endswith("_call"):
            calls += 1
        elif line["type"] == "event_msg" and payload["type"] == "token_count":
            counts.append(calls)
            calls = 0
    return counts


def _swe_agent(path: Path, _run: int) -> list[int]:
    return [1 for _ in json.loads(path.read_text(encoding="utf-8"))["trajectory"]]


def _openhands(path: Path, run: int) -> list[int]:
    """Each action but the first, which is the user's message, is a model call; `finish` is one without a tool."""
    actions = [event["action"] for event in _lines(path)[run]["history"] if "action" in event]
    return [int(action != "finish") for action in actions[1:]]


def _tau_bench(path: Path, run: int) -> list[int]:
    conversation = json.loads(path.read_text(encoding="utf-8"))[run]["traj"]
    return [len(said.get("tool_calls") or []) for said in conversation if said["role"] == "assistant"]


def _react_text(path: Path, run: int) -> list[int]:
    said = [message["content"] for message in _lines(path)[run]["messages"] if message["role"] == "assistant"]
    return [len(re.findall(r"<tool_call>", re.sub(r"(?s)<think>.*?</think>", "", text))) for text in said]


_COUNTS: dict[str, Callable[[Path, int], list[int]]] = {
    "claude_code": _claude_code,
    "codex": _codex,
    "swe_agent": _swe_agent,
    "openhands": _openhands,
    "openai_chat": _tau_bench,
    "react_text": _react_text,
}
