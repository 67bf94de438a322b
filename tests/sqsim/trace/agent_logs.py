# SPDX-License-Identifier: Apache-2.0
"""Small runs of agent frameworks, written by hand from each format's public description."""

from __future__ import annotations

import json


def _at(second: float) -> str:
    return f"2026-01-02T03:04:{second:09.6f}Z"


def atif() -> dict:
    """ATIF-v1.7 (Harbor's RFC 0001): two calls with token ids, and a sub-agent that the first one's result refers to."""
    first, second = list(range(50)), [*range(50), *range(100, 120), *range(200, 230)]
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "run",
        "trajectory_id": "main",
        "agent": {"name": "a", "version": "1", "model_name": "m", "tool_definitions": [{"type": "function"}]},
        "steps": [
            {"step_id": 1, "source": "system", "message": "You are careful.", "timestamp": _at(1)},
            {"step_id": 2, "source": "user", "message": "Find the file.", "timestamp": _at(2)},
            {
                "step_id": 3,
                "source": "agent",
                "message": "I ask.",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "delegate", "arguments": {"q": "file"}}],
                "observation": {
                    "results": [
                        {
                            "source_call_id": "c1",
                            "content": "found in a.py",
                            "subagent_trajectory_ref": [{"trajectory_id": "child"}],
                        }
                    ]
                },
                "metrics": {
                    "prompt_tokens": 50,
                    "completion_tokens": 20,
                    "cached_tokens": 10,
                    "prompt_token_ids": first,
                    "completion_token_ids": list(range(100, 120)),
                },
            },
            {
                "step_id": 4,
                "source": "agent",
                "message": "It is a.py.",
                "metrics": {
                    "prompt_tokens": 100,
                    "completion_tokens": 7,
                    "prompt_token_ids": second,
                    "completion_token_ids": list(range(300, 307)),
                },
            },
        ],
        "subagent_trajectories": [
            {
                "schema_version": "ATIF-v1.7",
                "trajectory_id": "child",
                "agent": {"name": "b", "version": "1"},
                "steps": [
                    {"step_id": 1, "source": "user", "message": "Search."},
                    {
                        "step_id": 2,
                        "source": "agent",
                        "message": "a.py",
                        "metrics": {"prompt_tokens": 30, "completion_tokens": 5},
                    },
                ],
            }
        ],
    }


def inspect() -> dict:
    """Inspect log with two model events and one tool event of 1.5 s; the question is an attachment."""
    system, asked = (
        {"id": "s", "role": "system", "content": "Be brief."},
        {"id": "u", "role": "user", "content": "attachment://x"},
    )
    call = {
        "id": "a1",
        "role": "assistant",
        "content": [{"type": "reasoning", "reasoning": "I list."}, {"type": "text", "text": "Listing."}],
        "tool_calls": [{"id": "t1", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"}],
    }
    told = {"id": "t", "role": "tool", "tool_call_id": "t1", "function": "bash", "content": "a.py"}
    answer = {"id": "a2", "role": "assistant", "content": "a.py"}

    def model(at: float, given: list, message: dict, usage: dict) -> dict:
        output = {"model": "m", "choices": [{"message": message, "stop_reason": "stop"}], "usage": usage}
        return {"event": "model", "timestamp": _at(at), "model": "m", "input": given, "output": output}

    uses = (
        {"input_tokens": 40, "output_tokens": 10, "total_tokens": 90, "input_tokens_cache_read": 40},
        {"input_tokens": 120, "output_tokens": 3, "total_tokens": 123, "input_tokens_cache_read": 40},
    )
    sample = {
        "id": 1,
        "epoch": 1,
        "messages": [system, asked, call, told, answer],
        "events": [
            {"event": "sample_init", "timestamp": _at(0)},
            model(1, [system, asked], call, uses[0]),
            {"event": "tool", "id": "t1", "function": "bash", "timestamp": _at(3), "completed": _at(4.5)},
            model(5, [system, asked, call, told], answer, uses[1]),
        ],
        "attachments": {"x": "Which files are there?"},
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "t", "model": "m"},
        "plan": {},
        "samples": [sample],
    }


def tau2() -> dict:
    """tau2 results with a greeting, one tool call of 2 s, and a call that the user made itself."""
    call = {"id": "c", "name": "get_order", "arguments": {"id": "W1"}, "requestor": "assistant"}
    own = {"id": "d", "name": "check_phone", "arguments": {}, "requestor": "user"}
    messages = [
        {"role": "assistant", "content": "Hi! How can I help you today?", "timestamp": _at(0)},
        {
            "role": "user",
            "content": "Where is order W1?",
            "timestamp": _at(1),
            "usage": {"prompt_tokens": 9, "completion_tokens": 9},
        },
        {
            "role": "assistant",
            "tool_calls": [call],
            "timestamp": _at(3),
            "usage": {"prompt_tokens": 200, "completion_tokens": 20},
        },
        {
            "role": "tool",
            "id": "c",
            "content": "Error: no such order",
            "requestor": "assistant",
            "error": True,
            "timestamp": _at(5),
        },
        {
            "role": "assistant",
            "content": "Check your phone.",
            "timestamp": _at(6),
            "usage": {"prompt_tokens": 260, "completion_tokens": 8},
        },
        {"role": "user", "tool_calls": [own], "timestamp": _at(7)},
        {"role": "tool", "id": "d", "content": "off", "requestor": "user", "timestamp": _at(8)},
        {"role": "user", "content": "It is off.", "timestamp": _at(10)},
        {
            "role": "assistant",
            "content": "Switch it on.",
            "timestamp": _at(12),
            "usage": {"prompt_tokens": 290, "completion_tokens": 6},
        },
    ]
    run = {
        "id": "x",
        "task_id": "7",
        "trial": 0,
        "start_time": _at(0),
        "termination_reason": "user_stop",
        "reward_info": {"reward": 1.0},
        "messages": messages,
    }
    return {"info": {"environment_info": {"policy": "Be polite."}}, "tasks": [], "simulations": [run]}


def browsecomp() -> dict:
    """BrowseComp-Plus run: two searches and an answer."""
    call = {
        "type": "tool_call",
        "tool_name": "search",
        "arguments": '{"query": "x"}',
        "output": '[{"docid": "1", "snippet": "text"}]',
    }
    return {
        "metadata": {"model": "m"},
        "query_id": "12",
        "tool_call_counts": {"search": 2},
        "status": "completed",
        "retrieved_docids": ["1"],
        "result": [
            {"type": "reasoning", "output": ["I search."]},
            call,
            call,
            {"type": "output_text", "output": "The answer."},
        ],
    }


def openhands() -> dict:
    """Run of the OpenHands agent SDK: one response with two actions, of which one fails, then a message."""

    def action(name: str, at: float) -> dict:
        written = {"id": name, "name": "terminal", "arguments": '{"command": "ls"}'}
        return {
            "kind": "ActionEvent",
            "id": f"e{name}",
            "source": "agent",
            "timestamp": _at(at),
            "thought": [{"type": "text", "text": "I look."}],
            "action": {"kind": "TerminalAction", "command": "ls"},
            "tool_name": "terminal",
            "tool_call_id": name,
            "tool_call": written,
            "llm_response_id": "r1",
        }

    seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": "a.py"}], "is_error": False}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}
    asked = {"role": "user", "content": [{"type": "text", "text": "List."}]}
    return {
        "instance_id": "i-1",
        "instruction": "List.",
        "metadata": {},
        "history": [
            {
                "kind": "SystemPromptEvent",
                "id": "0",
                "source": "agent",
                "timestamp": _at(0),
                "system_prompt": {"type": "text", "text": "You act."},
                "tools": [],
            },
            {"kind": "MessageEvent", "id": "1", "source": "user", "timestamp": _at(1), "llm_message": asked},
            action("c1", 2),
            action("c2", 2),
            {
                "kind": "ObservationEvent",
                "id": "2",
                "source": "environment",
                "timestamp": _at(4),
                "tool_name": "terminal",
                "tool_call_id": "c1",
                "observation": seen,
            },
            {
                "kind": "AgentErrorEvent",
                "id": "3",
                "source": "agent",
                "timestamp": _at(5),
                "tool_name": "terminal",
                "tool_call_id": "c2",
                "error": "no shell",
            },
            {
                "kind": "MessageEvent",
                "id": "4",
                "source": "agent",
                "timestamp": _at(6),
                "llm_message": answer,
                "llm_response_id": "r2",
            },
        ],
        "metrics": {
            "token_usages": [
                {"response_id": "r1", "prompt_tokens": 60, "completion_tokens": 30, "cache_read_tokens": 5},
                {"response_id": "r2", "prompt_tokens": 130, "completion_tokens": 4},
            ]
        },
    }


def codex_bare() -> list[dict]:
    """Oldest Codex rollout: a header, then bare items; the second command fails."""

    def ran(name: str, code: int, seconds: float) -> list[dict]:
        output = json.dumps({"output": "a.py", "metadata": {"exit_code": code, "duration_seconds": seconds}})
        return [
            {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": name},
            {"type": "function_call_output", "call_id": name, "output": output},
        ]

    def message(role: str, kind: str, text: str) -> dict:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    return [
        {"id": "old", "timestamp": _at(0), "instructions": "Be careful.", "git": {}},
        {"record_type": "state"},
        message("user", "input_text", "List the files."),
        *ran("c1", 0, 0.5),
        *ran("c2", 2, 1.25),
        message("assistant", "output_text", "a.py"),
    ]
