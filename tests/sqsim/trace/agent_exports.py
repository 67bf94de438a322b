# SPDX-License-Identifier: Apache-2.0
"""Write the run of agent_run.py as exports of Langfuse and LangSmith."""

from __future__ import annotations

import json
from typing import Any

from tests.sqsim.trace.agent_run import (
    MODELS,
    RUNS,
    SESSION,
    TOOLS,
    TRACE,
    iso,
    result,
)


def langfuse() -> list[dict[str, Any]]:
    """Observations as its API gives them."""

    def row(
        name: str, kind: str, parent: str | None, begins_s: float, ends_s: float, **more: Any
    ) -> dict[str, Any]:
        return {
            "id": name,
            "traceId": TRACE,
            "type": kind,
            "name": name,
            "parentObservationId": parent,
            "startTime": iso(begins_s),
            "endTime": iso(ends_s),
            "level": "DEFAULT",
        } | more

    rows = [
        row("agent-main", "AGENT", None, 0.0, 14.0),
        row("agent-sub", "AGENT", "t3", 6.0, 11.5),
        row("note", "EVENT", "agent-main", 1.0, 1.0),
    ]
    for run in RUNS:
        more = {"level": "ERROR", "statusMessage": "no such page"} if run.failed else {}
        rows.append(
            row(
                run.span,
                "TOOL",
                f"agent-{run.agent}",
                run.begins_s,
                run.ends_s,
                input=run.arguments,
                output=run.result,
            )
            | {"name": run.name}
            | more
        )
    for index, model in enumerate(MODELS):
        cached = 100
        counts = [
            {
                "usageDetails": {
                    "input": model.prompt - cached,
                    "input_cached_tokens": cached,
                    "output": model.output,
                    "total": model.prompt + model.output,
                }
            },
            {
                "usage": {
                    "input": model.prompt,
                    "output": model.output,
                    "total": model.prompt + model.output,
                    "unit": "TOKENS",
                }
            },
            {"usage": {"promptTokens": model.prompt, "completionTokens": model.output}},
            {"inputUsage": model.prompt, "outputUsage": model.output},
            {
                "usageDetails": {
                    "input": model.prompt,
                    "output": model.output,
                    "input_cached_tokens": 9,
                    "total": model.prompt + model.output,
                }
            },
        ][index]
        prompt: Any = {"messages": model.prompt_messages, "tools": TOOLS}
        rows.append(
            row(model.name, "GENERATION", f"agent-{model.agent}", model.begins_s, model.ends_s)
            | {"input": json.dumps(prompt) if index % 2 else prompt, "output": model.said, "model": "gpt-x"}
            | counts
        )
    return rows


def langsmith() -> list[dict[str, Any]]:
    """Runs as the SDK's `Run.dict()` gives them, with LangChain's serialised messages."""
    kinds = {"system": "SystemMessage", "user": "HumanMessage", "assistant": "AIMessage", "tool": "ToolMessage"}

    def message(said: dict[str, Any]) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"content": said["content"]}
        if "tool_calls" in said:
            kwargs["tool_calls"] = [
                {
                    "name": each["function"]["name"],
                    "args": json.loads(each["function"]["arguments"]),
                    "id": each["id"],
                }
                for each in said["tool_calls"]
            ]
        if "tool_call_id" in said:
            kwargs["tool_call_id"] = said["tool_call_id"]
        return {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", kinds[said["role"]]],
            "kwargs": kwargs,
        }

    def run(
        name: str, kind: str, parent: str | None, begins_s: float, ends_s: float, **more: Any
    ) -> dict[str, Any]:
        return {
            "id": name,
            "trace_id": TRACE,
            "run_type": kind,
            "name": name,
            "parent_run_id": parent,
            "start_time": iso(begins_s),
            "end_time": iso(ends_s),
            "extra": {
                "metadata": {"thread_id": SESSION, "ls_model_name": "gpt-x"},
                "invocation_params": {"tools": TOOLS},
            },
            "error": None,
        } | more

    runs = [run("agent-main", "chain", None, 0.0, 14.0), run("agent-sub", "chain", "t3", 6.0, 11.5)]
    for each in RUNS:
        error = {"error": "no such page"} if each.failed else {}
        output = {"output": message(result(each.call_id, each.result))}
        runs.append(
            run(each.span, "tool", f"agent-{each.agent}", each.begins_s, each.ends_s, outputs=output)
            | {"name": each.name}
            | error
        )
    for model in MODELS:
        said = message(model.said)
        said["kwargs"]["usage_metadata"] = {"input_tokens": model.prompt, "output_tokens": model.output}
        runs.append(
            run(model.name, "llm", f"agent-{model.agent}", model.begins_s, model.ends_s)
            | {
                "inputs": {"messages": [[message(each) for each in model.prompt_messages]]},
                "outputs": {
                    "generations": [[{"text": model.said["content"], "message": said}]],
                    "llm_output": None,
                },
            }
        )
    return runs
