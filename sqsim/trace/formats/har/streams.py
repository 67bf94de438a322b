# SPDX-License-Identifier: Apache-2.0
"""Put streamed answers together: server-sent events of OpenAI chat, OpenAI Responses and Anthropic Messages.

Sources: the streaming references of these APIs. An answer has the form that the same API gives without streaming.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LAST = {"response.completed", "response.incomplete", "response.failed"}


def is_stream(text: str) -> bool:
    """Whether a body is a stream of events."""
    return text.lstrip("\ufeff \r\n").startswith(("data:", "event:", "id:", "retry:", ":"))


def answer_of_stream(text: str) -> dict[str, Any] | None:
    """Put a stream's answer together; None if it holds no event of a known API. A cut stream gives what came."""
    events = list(_events(text))
    kinds = {str(event.get("type")) for event in events}
    if kinds & {"message_start", "content_block_start", "content_block_delta"}:
        return _anthropic(events)
    if any(kind.startswith("response.") for kind in kinds):
        return _responses(events)
    if any(isinstance(event.get("choices"), list) for event in events):
        return _chat(events)
    return next((event for event in events if "error" in event), None)


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events' data; an event may be written over several lines, and the last may be cut off."""
    for block in text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
        written = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        # Some proxies drop the empty lines between the events.
        for data in ["\n".join(written), *written] if len(written) > 1 else written:
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
                if data not in written:
                    break


def _chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put chat completion chunks together; of several choices, the first."""
    body: dict[str, Any] = {}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[Any, dict[str, Any]] = {}
    legacy: dict[str, Any] = {}
    for event in events:
        for key in ("id", "model", "usage", "error"):
            if event.get(key):
                body[key] = event[key]
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            if isinstance(choice.get("text"), str):  # the older completions API
                message["content"] += choice["text"]
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                continue
            for key in ("content", "reasoning_content", "reasoning", "refusal"):
                if isinstance(delta.get(key), str):
                    message[key] = message.get(key, "") + delta[key]
            for number, call in enumerate(delta.get("tool_calls") or ()):
                if isinstance(call, dict):
                    index = call.get("index", number)
                    _add(calls.setdefault(index if isinstance(index, int) else number, {}), call)
            if isinstance(delta.get("function_call"), dict):
                _grow(legacy, delta["function_call"])
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if legacy:
        message["function_call"] = legacy
    if not message.get("refusal"):
        message.pop("refusal", None)
    return {**body, "choices": [{"index": 0, "message": message}]}


def _add(call: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta.get("id"):
        call["id"] = delta["id"]
    if isinstance(delta.get("function"), dict):
        _grow(call.setdefault("function", {}), delta["function"])


def _grow(function: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("name", "arguments"):
        if isinstance(delta.get(key), str):
            function[key] = function.get(key, "") + delta[key]


def _responses(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole response of the last event; of a cut stream, the items that were done."""
    body: dict[str, Any] = {"object": "response", "output": []}
    done: list[Any] = []
    for event in events:
        response = event.get("response")
        if isinstance(response, dict):
            body = {**body, **response}
        if str(event.get("type")) in _LAST and isinstance(body.get("output"), list) and body["output"]:
            return {**body, "object": "response"}
        if event.get("type") == "response.output_item.done":
            done.append(event.get("item"))
        if event.get("type") == "error":
            body["error"] = event.get("message") or event
    return {**body, "object": "response", "output": [item for item in done if isinstance(item, dict)]}


def _anthropic(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a message's blocks together. The counts of `message_delta` are totals, those of `message_start` its beginning."""
    body: dict[str, Any] = {"type": "message", "role": "assistant"}
    usage: dict[str, Any] = {}
    blocks: dict[Any, dict[str, Any]] = {}
    written: dict[Any, str] = {}
    for event in events:
        kind, index = event.get("type"), event.get("index")
        index = index if isinstance(index, int) else -1
        if kind == "message_start" and isinstance(event.get("message"), dict):
            body = {**body, **event["message"]}
            usage.update(_counted(event["message"]))
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            block, delta = blocks.setdefault(index, {"type": "text", "text": ""}), event["delta"]
            for key in ("text", "thinking"):
                if isinstance(delta.get(key), str):
                    before = block.get(key)
                    block[key] = (before if isinstance(before, str) else "") + delta[key]
            if isinstance(delta.get("partial_json"), str):
                written[index] = written.get(index, "") + delta["partial_json"]
        elif kind == "message_delta":
            usage.update(_counted(event))
        elif kind == "error":
            body["error"] = event.get("error") or event
    for index, text in written.items():
        try:
            blocks[index]["input"] = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            blocks[index]["input"] = text
    return {**body, "usage": usage, "content": [blocks[index] for index in sorted(blocks)]}


def _counted(event: dict[str, Any]) -> dict[str, Any]:
    usage = event.get("usage")
    return {key: value for key, value in usage.items() if value is not None} if isinstance(usage, dict) else {}
