# SPDX-License-Identifier: Apache-2.0
"""Find the prompt, the answer, the tool definitions and a tool's result among a span's attributes and events.

Each convention keeps them elsewhere: OpenTelemetry GenAI in JSON attributes (1.37 and later) or events (before), OpenLLMetry
and OpenInference flattened over many attributes, the AI SDK in attributes of its own, Monocle in events.
"""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.dialects import chat_answer, chat_messages, parsed
from sqsim.trace.formats.dialects.values import as_text, first_text, mapping
from sqsim.trace.formats.spans.forms import Span

_MOST = 100_000
"""Highest index of a flattened list that is believed."""
_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_PROMPTS = ("ai.prompt.messages", "gen_ai.prompt", "langfuse.observation.input", "input.value", "input")
_ANSWERS = ("gen_ai.completion", "langfuse.observation.output", "output.value", "output")
_RESULTS = (
    "gen_ai.tool.call.result",
    "ai.toolCall.result",
    "langfuse.observation.output",
    "output.value",
    "traceloop.entity.output",
    "gen_ai.tool.message",
    "tool_response",
    "output",
)


def flattened(attributes: dict[str, Any], prefix: str) -> list[Any]:
    """Rebuild a list that was flattened to `prefix.0.key`, `prefix.1.key.0.other`; empty if there is none."""
    given = parsed(attributes.get(prefix))
    if isinstance(given, list):
        return given
    tree: dict[Any, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(f"{prefix}."):
            continue
        place = tree
        *above, last = key[len(prefix) + 1 :].split(".")
        for step in above:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place.setdefault(last, value)
    tree.pop("count", None)  # Monocle counts its entities among them
    found = _listed(tree)
    return found if isinstance(found, list) else []


def _listed(tree: Any) -> Any:
    """Turn objects whose keys are all indices into lists."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _listed(value) for key, value in tree.items()}
    if inner and all(isinstance(key, str) and key.isdecimal() and int(key[:9]) < _MOST for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def prompt_of(span: Span) -> list[dict[str, Any]]:
    """Return the messages of a model call's prompt as chat messages; empty where none were recorded."""
    own = span.attributes
    details = next(
        (each for name, each in span.events if name == "gen_ai.client.inference.operation.details"), {}
    )
    for place in (own, details):
        system = parsed(place.get("gen_ai.system_instructions"))
        found = chat_messages(place.get("gen_ai.input.messages"))
        if found:
            return chat_messages({"messages": found, "system": system} if system else found) or found
    for key in ("llm.input_messages", "gen_ai.prompt"):
        found = chat_messages([_unwrapped(each) for each in flattened(own, key)])
        if found:
            return found
    found = _event_messages(span)
    if found:
        return found
    for key in _PROMPTS:
        found = chat_messages(own.get(key))
        if found:
            return found
    return []


def answer_of(span: Span) -> dict[str, Any] | None:
    """Return the message that a model call gave; None where none was recorded."""
    own = span.attributes
    details = next(
        (each for name, each in span.events if name == "gen_ai.client.inference.operation.details"), {}
    )
    for given in (own.get("gen_ai.output.messages"), details.get("gen_ai.output.messages")):
        found = chat_answer(given)
        if found is not None:
            return found
    for key in ("llm.output_messages", "gen_ai.completion"):
        listed = [
            {"role": "assistant", **each}
            for each in map(_unwrapped, flattened(own, key))
            if isinstance(each, dict)
        ]
        if listed:
            return chat_answer(listed[:1])
    for name, event in span.events:
        if name == "gen_ai.choice":
            message = parsed(event.get("message"))
            return chat_answer(
                {"role": "assistant", **(message if isinstance(message, dict) else _event(event))}
            )
        if name in {"gen_ai.content.completion", "data.output"}:
            given = event.get("gen_ai.completion", event.get("response", event.get("output")))
            return chat_answer(given[-1:] if isinstance(given, list) else given)
    if own.get("ai.response.text") or own.get("ai.response.toolCalls") or own.get("ai.response.object"):
        calls = parsed(own.get("ai.response.toolCalls"))
        parts = (
            [{**call, "type": "tool-call"} for call in calls if isinstance(call, dict)]
            if isinstance(calls, list)
            else []
        )
        text = own.get("ai.response.text") or own.get("ai.response.object") or ""
        return chat_answer({"role": "assistant", "parts": [*([{"text": text}] if text else []), *parts]})
    answers = (chat_answer(own.get(key)) for key in _ANSWERS)
    return next((each for each in answers if each is not None), None)


def _unwrapped(message: Any) -> Any:
    """Return a flattened message as a chat message: OpenInference wraps messages, contents and calls in objects."""
    if not isinstance(message, dict):
        return message
    message = message["message"] if isinstance(message.get("message"), dict) else message
    said = {key: value for key, value in message.items() if key not in {"contents", "tool_calls"}}
    contents = message.get("contents")
    if isinstance(contents, list) and not said.get("content"):
        inner = (part.get("message_content", part) if isinstance(part, dict) else part for part in contents)
        said["content"] = [part for part in inner if part is not None]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        said["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    return said


def _call(call: dict[str, Any]) -> dict[str, Any]:
    call = call["tool_call"] if isinstance(call.get("tool_call"), dict) else call
    function = mapping(call, "function") or call
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function.get("name") or "tool", "arguments": function.get("arguments")},
    }


def _event_messages(span: Span) -> list[dict[str, Any]]:
    messages: list[Any] = []
    for name, event in span.events:
        if name in _ROLES:
            messages.append({"role": _ROLES[name], **_event(event)})
        elif name == "gen_ai.content.prompt":
            messages += chat_messages(event.get("gen_ai.prompt")) or []
        elif name == "data.input":
            messages += chat_messages(event.get("input")) or []
    logged = parsed(span.attributes.get("events"))  # Logfire keeps the events in an attribute
    for event in logged if isinstance(logged, list) else ():
        if isinstance(event, dict) and str(event.get("event.name")) in _ROLES:
            messages.append({"role": _ROLES[event["event.name"]], **_event(event)})
    return chat_messages(messages) or []


def _event(event: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a message that an event holds; its other attributes describe the event."""
    said = {key: event[key] for key in ("content", "role", "reasoning_content") if event.get(key) is not None}
    calls = parsed(event.get("tool_calls"))
    if isinstance(calls, list):
        said["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    if isinstance(event.get("id"), str):
        said["tool_call_id"] = event["id"]
    return said


def tools_of_span(attributes: dict[str, Any]) -> list[Any]:
    """Return the tool definitions of a model call, as they were sent or nearly so."""
    for key in ("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools"):
        found = parsed(attributes.get(key))
        if isinstance(found, list) and found:
            return [parsed(each) for each in found]
    tools = flattened(attributes, "llm.tools")
    if tools:
        inner = (tool.get("tool", tool) if isinstance(tool, dict) else tool for tool in tools)
        return [parsed(tool.get("json_schema", tool)) if isinstance(tool, dict) else tool for tool in inner]
    return flattened(attributes, "llm.request.functions")


def entity_of(attributes: dict[str, Any], kind: str) -> str:
    """Return the name of Monocle's entity of a kind (`model`, `tool`), empty if there is none."""
    entities = (each for each in flattened(attributes, "entity") if isinstance(each, dict))
    named = (each for each in entities if str(each.get("type")).split(".")[0] == kind)
    return next((first_text(each, "name") for each in named), "")


def arguments_of(span: Span) -> Any:
    """Return the arguments of a tool's run; None where they were not recorded."""
    for key in (
        "gen_ai.tool.call.arguments",
        "ai.toolCall.args",
        "input.value",
        "traceloop.entity.input",
        "input",
    ):
        if span.attributes.get(key) is not None:
            return parsed(span.attributes[key])
    given = (event.get("input") for name, event in span.events if name == "data.input")
    return next((parsed(value) for value in given if value is not None), None)


def result_of(span: Span) -> str | None:
    """Return the text of a tool's result; None where it was not recorded."""
    for key in _RESULTS:
        value = span.attributes.get(key)
        if value is not None:
            return as_text(value)
    given = (event.get("response", event.get("output")) for name, event in span.events if name == "data.output")
    return next((as_text(value) for value in given if value is not None), None)
