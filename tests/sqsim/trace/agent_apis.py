# SPDX-License-Identifier: Apache-2.0
"""Write the run of agent_run.py as requests to the model APIs, whole and streamed, in a HAR recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.sqsim.trace.agent_run import (
    MODELS,
    QUESTION,
    SYSTEM,
    TOOLS,
    Model,
    iso,
)


def har(api: str, *, stream: bool) -> dict[str, Any]:
    """A recording of the calls of the main agent, with two entries that call no model and one that failed."""
    url, body, answer = {
        "chat": ("https://api.openai.com/v1/chat/completions", chat_request, chat_answer),
        "responses": ("https://api.openai.com/v1/responses", responses_request, responses_answer),
        "anthropic": ("https://api.anthropic.com/v1/messages", anthropic_request, anthropic_answer),
    }[api]
    entries = [entry("https://example.org/", None, "<html></html>", 0.0, 0.1)]
    for model in (each for each in MODELS if each.agent == "main"):
        text = "".join(answer(model, stream=stream))
        entries.append(
            entry(url, body(model, stream=stream), text, model.begins_s, model.ends_s - model.begins_s)
        )
    failed = entry(url, body(MODELS[0], stream=stream), '{"error": {"message": "slow down"}}', 1.0, 0.1)
    failed["response"]["status"] = 429
    entries += [
        failed,
        entry("https://example.org/v1/embeddings", {"input": "x", "model": "e"}, '{"data": []}', 2.0, 0.1),
    ]
    return {"log": {"version": "1.2", "creator": {"name": "test", "version": "1"}, "entries": entries}}


def entry(url: str, body: Any, text: str, begins_s: float, took_s: float) -> dict[str, Any]:
    request: dict[str, Any] = {"method": "GET" if body is None else "POST", "url": url, "headers": []}
    if body is not None:
        request["postData"] = {"mimeType": "application/json", "text": json.dumps(body)}
    return {
        "startedDateTime": iso(begins_s),
        "time": round(took_s * 1e3, 3),
        "request": request,
        "response": {"status": 200, "content": {"size": len(text), "mimeType": "text/plain", "text": text}},
    }


def event(data: dict[str, Any], kind: str = "") -> str:
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(data)}\n\n"


def pieces(text: str, size: int = 7) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def chat_request(model: Model, *, stream: bool) -> dict[str, Any]:
    return {"model": "gpt-x", "messages": model.prompt_messages, "tools": TOOLS, "stream": stream}


def chat_answer(model: Model, *, stream: bool) -> Iterator[str]:
    usage = {"prompt_tokens": model.prompt, "completion_tokens": model.output, "total_tokens": 0}
    head = {"id": f"chatcmpl-{model.name}", "model": "gpt-x"}
    if not stream:
        yield json.dumps({**head, "choices": [{"index": 0, "message": model.said}], "usage": usage})
        return

    def chunk(delta: dict[str, Any]) -> str:
        return event({**head, "choices": [{"index": 0, "delta": delta}], "usage": None})

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(model.said["content"]):
        yield chunk({"content": piece})
    for index, each in enumerate(model.said.get("tool_calls", ())):
        started = {
            "index": index,
            "id": each["id"],
            "function": {"name": each["function"]["name"], "arguments": ""},
        }
        yield chunk({"tool_calls": [started]})
        for piece in pieces(each["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({**head, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as Responses items; every answer has a reasoning item before it."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            found.append(
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": message["content"],
                }
            )
            continue
        if message["role"] != "assistant":
            found.append({"role": message["role"], "content": message["content"]})
            continue
        found.append({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"})
        if message["content"]:
            part = {"type": "output_text", "text": message["content"], "annotations": []}
            found.append({"type": "message", "role": "assistant", "content": [part]})
        found += [
            {"type": "function_call", "call_id": each["id"], **each["function"]}
            for each in message.get("tool_calls", ())
        ]
    return found


def responses_request(model: Model, *, stream: bool) -> dict[str, Any]:
    """The first request is whole; the later ones go on from a response."""
    mains = [each for each in MODELS if each.agent == "main"]
    before = mains[mains.index(model) - 1] if model is not mains[0] else None
    body: dict[str, Any] = {"model": "gpt-x", "instructions": SYSTEM, "tools": TOOLS, "stream": stream}
    if before is None:
        return {**body, "input": QUESTION}
    new = model.prompt_messages[len(before.prompt_messages) + 1 :]
    return {**body, "input": items(new), "previous_response_id": f"resp_{before.name}"}


def responses_answer(model: Model, *, stream: bool) -> Iterator[str]:
    usage = {
        "input_tokens": model.prompt,
        "output_tokens": model.output,
        "input_tokens_details": {"cached_tokens": 5},
    }
    body = {
        "id": f"resp_{model.name}",
        "object": "response",
        "model": "gpt-x",
        "output": items([model.said]),
        "usage": usage,
    }
    if not stream:
        yield json.dumps(body)
        return
    yield event(
        {"type": "response.created", "response": {**body, "output": [], "usage": None}}, "response.created"
    )
    for index, item in enumerate(body["output"]):
        yield event(
            {"type": "response.output_item.done", "output_index": index, "item": item},
            "response.output_item.done",
        )
    yield event({"type": "response.completed", "response": body}, "response.completed")


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    found = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for each in message.get("tool_calls", ()):
        given = json.loads(each["function"]["arguments"])
        found.append({"type": "tool_use", "id": each["id"], "name": each["function"]["name"], "input": given})
    return found


def anthropic_request(model: Model, *, stream: bool) -> dict[str, Any]:
    """Tool results of one turn are blocks of one user message; the last block has a caching mark."""
    messages: list[dict[str, Any]] = []
    for message in model.prompt_messages[1:]:
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            if messages[-1]["role"] == "user":
                messages[-1]["content"].append(block)
            else:
                messages.append({"role": "user", "content": [block]})
        else:
            messages.append({"role": message["role"], "content": blocks(message)})
    messages[-1]["content"][-1] = {**messages[-1]["content"][-1], "cache_control": {"type": "ephemeral"}}
    return {"model": "claude-x", "system": SYSTEM, "messages": messages, "tools": TOOLS, "stream": stream}


def anthropic_answer(model: Model, *, stream: bool) -> Iterator[str]:
    usage = {
        "input_tokens": model.prompt - 100,
        "cache_creation_input_tokens": 40,
        "cache_read_input_tokens": 60,
    }
    head = {"id": f"msg_{model.name}", "type": "message", "role": "assistant", "model": "claude-x"}
    if not stream:
        yield json.dumps(
            {**head, "content": blocks(model.said), "usage": {**usage, "output_tokens": model.output}}
        )
        return
    started = {**head, "content": [], "usage": {**usage, "output_tokens": 1}}
    yield event({"type": "message_start", "message": started}, "message_start")
    for index, block in enumerate(blocks(model.said)):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield event(
            {"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start"
        )
        kind, key, text = (
            ("text_delta", "text", block["text"])
            if block["type"] == "text"
            else ("input_json_delta", "partial_json", json.dumps(block["input"]))
        )
        for piece in pieces(text):
            delta = {"type": kind, key: piece}
            yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
    yield event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": model.output},
        }
    )
    yield event({"type": "message_stop"}, "message_stop")
