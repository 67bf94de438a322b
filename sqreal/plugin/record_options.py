# SPDX-License-Identifier: Apache-2.0
"""What a client may tell the recorder: `sqreal_log` in a request's `custom_params`, and the tools in chat messages.

`{"session": "a", "tools": [{"name": "search", "tokens": 120}]}`: the conversation that the request belongs to, and the
tools whose responses are new in its prompt, in their order; `tokens` (or `chars`) of each response may be left out.
It changes nothing for the request. A wrong value is recorded as a fault, not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqreal.plugin.checks import LARGEST, BadRequestError, short, whole
from sqreal.plugin.hooks import Hook, Need

LOG = "sqreal_log"
_MOST_TOOLS = 1024


def read(params: Any) -> dict[str, Any]:
    """Read the option of a request: `session` and `tools` where it has them, `fault` where it is wrong."""
    told = params.get(LOG) if isinstance(params, Mapping) else None
    if told is None:
        return {}
    try:
        return _read(told)
    except BadRequestError as fault:
        return {"fault": str(fault)}


def _read(told: Any) -> dict[str, Any]:
    if not isinstance(told, Mapping) or set(told) - {"session", "tools"}:
        raise BadRequestError(f'{LOG}: {short(told)} is not {{"session": id, "tools": [..]}}')
    found: dict[str, Any] = {}
    if told.get("session") is not None:
        if not isinstance(told["session"], str) or not told["session"]:
            raise BadRequestError(f"{LOG}: session: {short(told['session'])} is not a name")
        found["session"] = told["session"]
    if told.get("tools") is not None:
        found["tools"] = _tools(told["tools"])
    return found


def _tools(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > _MOST_TOOLS:
        raise BadRequestError(f"{LOG}: tools: {short(value)} is not a list of at most {_MOST_TOOLS} tools")
    for tool in value:
        good = isinstance(tool, Mapping) and isinstance(tool.get("name"), str) and tool["name"]
        sizes = [tool.get(key) for key in ("tokens", "chars")] if good else []
        if not good or not all(size is None or (whole(size) and 0 <= size <= LARGEST) for size in sizes):
            raise BadRequestError(
                f'{LOG}: tools: {short(tool)} is not {{"name": a name, "tokens": a whole number}}'
            )
    return [
        {key: tool[key] for key in ("name", "tokens", "chars") if tool.get(key) is not None} for tool in value
    ]


def tools_of(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """List the tools whose responses follow the last assistant's message, with the length of each response."""
    new: list[Any] = []
    names: dict[str, str] = {}
    for message in reversed(messages):
        if _part(message, "role") == "assistant":
            for call in _part(message, "tool_calls") or ():
                names[str(_part(call, "id"))] = str(_part(_part(call, "function"), "name") or "tool")
            break
        new.append(message)
    return [
        {
            "name": str(_part(message, "name") or names.get(str(_part(message, "tool_call_id"))) or "tool"),
            "chars": _chars(_part(message, "content")),
        }
        for message in reversed(new)
        if _part(message, "role") == "tool"
    ]


def _part(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(str(_part(part, "text") or "")) for part in content or ())


def converted(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Add the tools of a chat request's messages to what the scheduler sees, unless the client named them."""
    adapted, request = original(serving, request, raw_request)
    messages, sampling = getattr(request, "messages", None), adapted.sampling_params
    if isinstance(messages, list) and isinstance(sampling, dict):
        custom = sampling.get("custom_params") or {}
        told = custom.get(LOG) if isinstance(custom, Mapping) else custom
        if isinstance(custom, Mapping) and (
            told is None or (isinstance(told, Mapping) and "tools" not in told)
        ):
            sampling["custom_params"] = {**custom, LOG: {**(told or {}), "tools": tools_of(messages)}}
    return adapted, request


HOOKS = (
    Hook(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request",
        "self request raw_request",
        converted,
    ),
)
NEEDS = (
    Need("sglang.srt.entrypoints.openai.protocol.ChatCompletionRequest", "messages custom_params"),
    Need("sglang.srt.managers.io_struct.GenerateReqInput", "sampling_params"),
)
