# SPDX-License-Identifier: Apache-2.0
"""Read OpenHands' older events: `action` and `observation`, with or without the model's response next to them."""

from __future__ import annotations

import json
from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import joined
from sqsim.trace.formats.openhands.history import History
from sqsim.trace.formats.trajectories import like

_SILENT = {
    "change_agent_state",
    "null",
    "recall",
    "pause",
    "resume",
    "condensation_request",
    "change_task_state",
}
_UNSEEN = {"agent_state_changed", "null", "task_state_changed"}
_NOT_GIVEN = {
    "thought",
    "keep_prompt",
    "is_confirmed",
    "confirmation_state",
    "action_risk",
    "security_risk",
    "is_input",
    "blocking",
    "hidden",
}


def read_event(history: History, event: Node) -> None:
    """Read the next event. Raises `TraceError`."""
    if event.get("action") is not None:
        _action(history, event)
    elif event.get("observation") is not None:
        _observation(history, event)
    else:
        history.notes["an event that is neither action nor observation was left out"] += 1


def _args(event: Node) -> Node:
    """Return an action's arguments; the oldest form has them in the event itself."""
    return event.node("args") if isinstance(event.get("args"), dict) else event


def _action(history: History, event: Node) -> None:
    kind, args = event.text("action"), _args(event)
    from_user = event.get("source") in ("user", "environment")
    if kind == "system":
        history.system = joined(history.system, _json(args.get("tools")), said(args, history.notes).text)
    elif kind == "condensation":
        history.condensed(args.optional_text("summary"))
    elif kind in _SILENT:
        return
    elif kind == "message" and (
        from_user or (event.get("source") is None and not history.steps and not history.question)
    ):
        history.heard(said(args, history.notes))
    elif from_user:
        history.notes["a user's own action was left out"] += 1
    else:
        _call(history, event, kind, args)


def _call(history: History, event: Node, kind: str, args: Node) -> None:
    metadata = event.node("tool_call_metadata") if isinstance(event.get("tool_call_metadata"), dict) else None
    own = str(event.get("id")) if event.get("id") is not None else ""
    if metadata is None:
        text = args.optional_text("thought") if kind != "message" else said(args, history.notes).text
        step = history.output(event, "", text)
        if kind not in {"message", "finish", "reject"}:
            given = {
                key: value
                for key, value in args.value.items()
                if key not in {*_NOT_GIVEN, "action", "id", "timestamp", "source", "message"}
            }
            history.action(event, step, kind, given, own)
        return
    response = (
        metadata.node("model_response")
        if isinstance(metadata.get("model_response"), dict)
        else like(metadata, {})
    )
    message = _message(response)
    step = history.output(
        event,
        response.optional_text("id"),
        said(message, history.notes).text or args.optional_text("thought"),
        message.optional_text("reasoning_content"),
    )
    if step.prompt is None and isinstance(response.get("usage"), dict):
        history.usage(step, response)
    call_id = metadata.optional_text("tool_call_id")
    written = next((call for call in _calls(message) if call.get("id") == call_id), None)
    function = (
        written.node("function") if written is not None and isinstance(written.get("function"), dict) else None
    )
    name = metadata.optional_text("function_name") or kind
    history.action(event, step, name, function.get("arguments") if function else args.value, call_id or own)


def _message(response: Node) -> Node:
    choices = response.nodes("choices") if response.get("choices") else []
    found = choices[0].get("message") if choices else None
    return choices[0].node("message") if isinstance(found, dict) else like(response, {})


def _calls(message: Node) -> list[Node]:
    return message.nodes("tool_calls") if message.get("tool_calls") else []


def _observation(history: History, event: Node) -> None:
    kind = event.text("observation")
    if kind in _UNSEEN:
        return
    told = said(event, history.notes)
    if kind in {"recall", "user_rejected"} and not history.waits():
        history.heard(told if told.text else Said(_json(event.get("extras"))))
        return
    if kind == "recall":
        history.heard(told)
        return
    metadata = event.get("tool_call_metadata")
    call_id = metadata.get("tool_call_id") if isinstance(metadata, dict) else None
    if not isinstance(call_id, str):
        call_id = str(event.get("cause")) if event.get("cause") is not None else ""
    extras = event.get("extras")
    details: dict[str, Any] = extras if isinstance(extras, dict) else event.value
    inner = details.get("metadata")
    code = inner.get("exit_code") if isinstance(inner, dict) else details.get("exit_code")
    if not history.waits():
        history.heard(told)
        return
    failed = kind == "error" or (isinstance(code, int) and code not in {0, -1})
    history.observed(event, call_id, event.get("content"), failed=failed)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value else ""
