# SPDX-License-Identifier: Apache-2.0
"""Read events of the OpenHands agent SDK: each has a `kind`; those of one `llm_response_id` are one model call."""

from __future__ import annotations

import json
from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import joined
from sqsim.trace.formats.openhands.history import History

_SILENT = {
    "ConversationStateUpdateEvent",
    "PauseEvent",
    "CondensationRequest",
    "CondensationSummaryEvent",
    "TokenEvent",
    "LLMCompletionLogEvent",
    "ConversationErrorEvent",
    "HookExecutionEvent",
}


def read_kind(history: History, event: Node) -> None:
    """Read the next event. Raises `TraceError`."""
    kind = event.text("kind")
    if kind == "SystemPromptEvent":
        tools = event.get("tools")
        written = json.dumps(tools, ensure_ascii=False) if tools else ""
        history.system = joined(history.system, written, said(event, history.notes, "system_prompt").text)
    elif kind == "MessageEvent":
        _message(history, event)
    elif kind == "ActionEvent":
        _action(history, event)
    elif kind == "ObservationEvent":
        inner = event.node("observation")
        failed = inner.get("is_error") is True or inner.get("error") not in (None, False, "")
        told = next((inner.get(key) for key in ("content", "output", "text", "error") if inner.get(key)), "")
        _observed(history, event, told if isinstance(told, str | list) else json.dumps(told), failed=failed)
    elif kind == "AgentErrorEvent":
        _observed(history, event, event.optional_text("error"), failed=True)
    elif kind == "UserRejectObservation":
        _observed(history, event, event.optional_text("rejection_reason"), failed=True)
    elif kind == "Condensation":
        history.condensed(event.optional_text("summary"))
    elif kind not in _SILENT:
        history.notes[f"an event of unknown kind {kind[:40]} was left out"] += 1


def _message(history: History, event: Node) -> None:
    message = event.node("llm_message")
    if message.get("role") == "assistant":
        history.output(
            event,
            event.optional_text("llm_response_id"),
            said(message, history.notes).text,
            message.optional_text("reasoning_content"),
        )
        return
    extended = said(event, history.notes, "extended_content")
    told = said(message, history.notes)
    history.heard(Said(joined(told.text, extended.text), told.other_tokens + extended.other_tokens))


def _action(history: History, event: Node) -> None:
    step = history.output(
        event,
        event.optional_text("llm_response_id"),
        said(event, history.notes, "thought").text,
        event.optional_text("reasoning_content"),
    )
    call = event.node("tool_call") if isinstance(event.get("tool_call"), dict) else None
    inner = call.node("function") if call is not None and isinstance(call.get("function"), dict) else call
    arguments: Any = inner.get("arguments") if inner is not None else event.get("action")
    history.action(event, step, event.text("tool_name"), arguments, event.optional_text("tool_call_id"))


def _observed(history: History, event: Node, content: Any, *, failed: bool) -> None:
    if history.waits():
        history.observed(event, event.optional_text("tool_call_id"), content, failed=failed)
    else:
        history.notes["an observation without a call counts as a user's text"] += 1
        history.heard(Said(content if isinstance(content, str) else json.dumps(content)))
