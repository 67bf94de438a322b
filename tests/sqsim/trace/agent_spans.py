# SPDX-License-Identifier: Apache-2.0
"""Write the run of agent_run.py as spans, by each of the conventions."""

from __future__ import annotations

import json
from typing import Any

from tests.sqsim.trace.agent_run import (
    EPOCH_S,
    MODELS,
    RUNS,
    SESSION,
    TOOLS,
    TRACE,
    Model,
    Tool,
    iso,
    nanos,
)


def any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(each) for each in value]}}
    if isinstance(value, dict):
        return {
            "kvlistValue": {"values": [{"key": key, "value": any_value(each)} for key, each in value.items()]}
        }
    return {"stringValue": value}


def span(
    name: str, parent: str, begins_s: float, ends_s: float, attributes: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": name,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": nanos(begins_s),
        "endTimeUnixNano": nanos(ends_s),
        "attributes": [{"key": key, "value": any_value(value)} for key, value in attributes.items()],
        "status": {},
    } | more


def gen_ai_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message by the JSON schema of the conventions since 1.37."""
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    parts = [{"type": "text", "content": message["content"]}] if message["content"] else []
    for each in message.get("tool_calls", ()):
        arguments = json.loads(each["function"]["arguments"])
        parts.append(
            {"type": "tool_call", "id": each["id"], "name": each["function"]["name"], "arguments": arguments}
        )
    return {"role": message["role"], "parts": parts}


def newest(model: Model, *, text: bool) -> dict[str, Any]:
    written = json.dumps if text else (lambda value: value)
    said = {**gen_ai_message(model.said), "finish_reason": "stop"}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.response.id": f"chatcmpl-{model.name}",
        "gen_ai.usage.input_tokens": model.prompt,
        "gen_ai.usage.output_tokens": model.output,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.system_instructions": written(
            [{"type": "text", "content": model.prompt_messages[0]["content"]}]
        ),
        "gen_ai.input.messages": written([gen_ai_message(each) for each in model.prompt_messages[1:]]),
        "gen_ai.output.messages": written([said]),
        "gen_ai.tool.definitions": written(TOOLS),
    }


def with_events(model: Model) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The conventions up to 1.36: a message an event."""
    events = []
    for message in model.prompt_messages:
        attributes: dict[str, Any] = {"content": message["content"]}
        if "tool_calls" in message:
            attributes["tool_calls"] = json.dumps(message["tool_calls"])
        if "tool_call_id" in message:
            attributes["id"] = message["tool_call_id"]
        events.append({"name": f"gen_ai.{message['role']}.message", "attributes": attributes})
    choice = {"index": 0, "finish_reason": "stop", "message": json.dumps(model.said)}
    events.append({"name": "gen_ai.choice", "attributes": choice})
    counted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.usage.input_tokens": model.prompt,
        "gen_ai.usage.output_tokens": model.output,
    }
    return counted, [
        {
            "name": each["name"],
            "attributes": [{"key": k, "value": any_value(v)} for k, v in each["attributes"].items()],
        }
        for each in events
    ]


def openllmetry(model: Model) -> dict[str, Any]:
    flat: dict[str, Any] = {
        "llm.request.type": "chat",
        "gen_ai.system": "OpenAI",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.usage.prompt_tokens": model.prompt,
        "gen_ai.usage.completion_tokens": model.output,
        "llm.usage.total_tokens": model.prompt + model.output,
    }
    for side, messages in (("prompt", model.prompt_messages), ("completion", [model.said])):
        for index, message in enumerate(messages):
            flat[f"gen_ai.{side}.{index}.role"] = message["role"]
            flat[f"gen_ai.{side}.{index}.content"] = message["content"]
            if "tool_call_id" in message:
                flat[f"gen_ai.{side}.{index}.tool_call_id"] = message["tool_call_id"]
            for number, each in enumerate(message.get("tool_calls", ())):
                at = f"gen_ai.{side}.{index}.tool_calls.{number}"
                flat |= {f"{at}.id": each["id"]} | {f"{at}.{k}": v for k, v in each["function"].items()}
    for index, tool in enumerate(TOOLS):
        flat[f"llm.request.functions.{index}.name"] = tool["function"]["name"]
    return flat


def open_inference(model: Model) -> dict[str, Any]:
    flat: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-x",
        "llm.token_count.prompt": model.prompt,
        "llm.token_count.completion": model.output,
        "llm.token_count.total": model.prompt + model.output,
        "llm.token_count.prompt_details.cache_read": 64,
        "input.value": json.dumps({"messages": model.prompt_messages}),
        "output.value": json.dumps({"choices": [{"message": model.said}]}),
    }
    for side, messages in (("input", model.prompt_messages), ("output", [model.said])):
        for index, message in enumerate(messages):
            at = f"llm.{side}_messages.{index}.message"
            flat |= {f"{at}.role": message["role"], f"{at}.content": message["content"]}
            if "tool_call_id" in message:
                flat[f"{at}.tool_call_id"] = message["tool_call_id"]
            for number, each in enumerate(message.get("tool_calls", ())):
                inner = f"{at}.tool_calls.{number}.tool_call"
                flat[f"{inner}.id"] = each["id"]
                flat |= {f"{inner}.function.{k}": v for k, v in each["function"].items()}
    for index, tool in enumerate(TOOLS):
        flat[f"llm.tools.{index}.tool.json_schema"] = json.dumps(tool)
    return flat


def tool_span(run: Tool, form: str) -> dict[str, Any]:
    status = {"code": 2, "message": "no such page"} if run.failed else {"code": 1}
    if form == "open_inference":
        attributes = {
            "openinference.span.kind": "TOOL",
            "tool.name": run.name,
            "input.value": run.arguments,
            "output.value": run.result,
        }
    elif form == "openllmetry":
        attributes = {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": run.name,
            "traceloop.entity.input": run.arguments,
            "traceloop.entity.output": run.result,
        }
    else:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": run.name,
            "gen_ai.tool.call.id": run.call_id,
            "gen_ai.tool.call.arguments": run.arguments,
            "gen_ai.tool.call.result": run.result,
        }
    return span(run.span, f"agent-{run.agent}", run.begins_s, run.ends_s, attributes, status=status)


def agent_span(agent: str, form: str) -> dict[str, Any]:
    kind = {
        "open_inference": {"openinference.span.kind": "AGENT"},
        "openllmetry": {"traceloop.span.kind": "agent", "traceloop.entity.name": agent},
    }.get(form, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent})
    begins_s, ends_s, parent = (0.0, 14.0, "root") if agent == "main" else (6.0, 11.5, "t3")
    return span(f"agent-{agent}", parent, begins_s, ends_s, kind)


def spans(form: str) -> list[dict[str, Any]]:
    found = [span("root", "", 0.0, 14.0, {"http.request.method": "POST", "session.id": SESSION})]
    found += [agent_span(agent, form) for agent in ("main", "sub")] + [tool_span(run, form) for run in RUNS]
    for model in MODELS:
        events: list[dict[str, Any]] = []
        if form == "events":
            attributes, events = with_events(model)
        elif form == "counts":
            attributes = {
                k: v for k, v in newest(model, text=True).items() if k.startswith("gen_ai.usage") or "name" in k
            }
        elif form in {"json", "any_value"}:
            attributes = newest(model, text=form == "json")
        else:
            attributes = {"openllmetry": openllmetry, "open_inference": open_inference}[form](model)
        found.append(
            span(model.name, f"agent-{model.agent}", model.begins_s, model.ends_s, attributes, events=events)
        )
    return found


FORMS = ("json", "any_value", "events", "openllmetry", "open_inference")


def otlp(form: str) -> dict[str, Any]:
    scope = {"scope": {"name": "test"}, "spans": spans(form)}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def python_dump(form: str) -> list[dict[str, Any]]:
    """Spans as `ReadableSpan.to_json` of the Python SDK writes them."""
    return [
        {
            "name": each["name"],
            "context": {"trace_id": f"0x{each['traceId']}", "span_id": each["spanId"], "trace_state": "[]"},
            "parent_id": each["parentSpanId"] or None,
            "start_time": iso(int(each["startTimeUnixNano"]) / 1e9 - EPOCH_S),
            "end_time": iso(int(each["endTimeUnixNano"]) / 1e9 - EPOCH_S),
            "status": {"status_code": "ERROR" if each["status"].get("code") == 2 else "UNSET"},
            "attributes": {a["key"]: _plain(a["value"]) for a in each["attributes"]},
            "events": [
                {"name": e["name"], "attributes": {a["key"]: _plain(a["value"]) for a in e["attributes"]}}
                for e in each.get("events", ())
            ],
        }
        for each in spans(form)
    ]


def _plain(value: dict[str, Any]) -> Any:
    ((kind, part),) = value.items()
    if kind == "intValue":
        return int(part)
    if kind == "arrayValue":
        return [_plain(each) for each in part["values"]]
    if kind == "kvlistValue":
        return {each["key"]: _plain(each["value"]) for each in part["values"]}
    return part
