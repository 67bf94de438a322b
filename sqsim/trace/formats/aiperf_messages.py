# SPDX-License-Identifier: Apache-2.0
"""Import `aiperf_messages`: AIPerf's Mooncake lines that hold texts: `messages`, `payload` or `text_input`.

A line is a request. Lines of one `session_id` are the steps of a task, with `delay` (ms) before each. `messages` and
`payload` hold the whole conversation, recorded answers included; `text_input` holds what the line adds, to which AIPerf
adds its server's answer (docs/reference/conversation-context-mode.md of ai-dynamo/aiperf). `message_mode` (`history`,
`delta`) says otherwise. An answer that no later line repeats has no text, only its `output_length`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import ROLES, Reader
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import print_of
from sqsim.trace.formats.steps import MARKUP_TOKENS, Step, Transcript
from sqsim.trace.formats.transcript import transcript_task
from sqsim.trace.schema import Task

_MODES = ("messages", "payload", "text_input")
_SURE = {"output_length", "delay", "text_input", "message_mode"}
_KEYS = {*_MODES, *_SURE, "session_id", "timestamp", "tools", "extra", "context_mode", "type"}


class AIPerfMessages(Format):
    """One task a session, or a line without one."""

    name = "aiperf_messages"

    def evidence(self, head: Sequence[Any]) -> str | None:
        for value in head:
            if not isinstance(value, dict) or not value.keys() <= _KEYS or _mode(value) is None:
                return None
        if not any(_SURE & value.keys() for value in head):
            return None
        modes = sorted({str(_mode(value)) for value in head})
        return f"every line has {' or '.join(modes)} and AIPerf's keys only"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        sessions: dict[str, list[Node]] = {}
        for number, node in enumerate(file.nodes()):
            named = node.get("session_id") is not None
            name = str(node.get("session_id")) if named else f"{file.stem}:{number}"
            sessions.setdefault(name, []).append(node)
        for name, nodes in sessions.items():
            yield transcript_task(_script(file, name, nodes, notes), notes)


def _mode(value: dict[str, Any]) -> str | None:
    """Return the key that holds a line's input; None if there is not exactly one."""
    given = [key for key in _MODES if value.get(key) is not None]
    return given[0] if len(given) == 1 else None


def _messages(node: Node) -> list[Node]:
    """List a line's messages, each with its place. Raises `TraceError`."""
    mode = _mode(node.value) if isinstance(node.value, dict) else None
    if mode is None:
        raise node.wrong("holds not exactly one input", None, f"give one of {', '.join(_MODES)}")
    if mode == "text_input":
        return [Node({"role": "user", "content": node.text(mode)}, node.file, node.line, mode)]
    if mode == "messages":
        found = node.nodes(mode)
    else:
        payload = node.node(mode)
        if payload.get("messages") is None:
            prompt = next((payload.get(key) for key in ("prompt", "input") if payload.get(key)), None)
            if not isinstance(prompt, str):
                raise payload.wrong("holds neither messages nor a prompt", "messages")
            return [Node({"role": "user", "content": prompt}, node.file, node.line, mode)]
        found = payload.nodes("messages")
    if not found:
        raise node.wrong("holds no message", mode, "a model call needs a prompt")
    for message in found:
        if not isinstance(message.value, dict) or message.value.get("role") not in ROLES:
            raise message.wrong("is no message with a role", None, f"roles are {', '.join(ROLES)}")
    return found


def _adds(nodes: Sequence[Node]) -> bool:
    """Whether a session's lines hold only what each adds."""
    for node in nodes:
        stated = node.get("message_mode")
        if stated is not None:
            if stated not in {"delta", "history"}:
                raise node.wrong(f"{stated!r} is no mode", "message_mode", "give delta or history")
            return bool(stated == "delta")
        if node.get("context_mode") is not None:
            return str(node.get("context_mode")).startswith("deltas")
    return all(_mode(node.value) == "text_input" for node in nodes)


def _script(file: SourceFile, name: str, nodes: Sequence[Node], notes: Notes) -> Transcript:
    first = nodes[0]
    lines = [_messages(node) for node in nodes]
    reader = Reader(notes, _tools(first))
    for message in lines[0]:
        _heard(reader, message, notes)
    adds, kept = _adds(nodes), None
    for index, node in enumerate(nodes):
        later = lines[index + 1] if index + 1 < len(lines) else None
        new = [] if later is None else later if adds else _added(lines[index], later)
        answer = new[0] if new and new[0].get("role") == "assistant" else None
        step = _said(reader, node, answer)
        step.restarted, step.kept = kept is not None, kept or ""
        kept = None
        if later is None:
            break
        if not new:
            notes["a prompt does not continue the one before it (compaction): the context restarts"] += 1
            kept = "\n".join(_told(message, notes).text for message in later if message.get("role") != "system")
        for message in new[answer is not None :]:
            _heard(reader, message, notes)
        _wait(step, nodes[index + 1])
    _estimated(reader)
    timed = any(node.get(key) is not None for node in nodes for key in ("delay", "timestamp"))
    payload = first.get("payload")
    model = payload.get("model") if isinstance(payload, dict) else None
    return Transcript(
        task_id=name,
        source=file.source(AIPerfMessages.name),
        prefix=reader.system,
        question=reader.question,
        question_other_tokens=reader.question_other_tokens,
        steps=reader.steps,
        timing="recorded" if timed else "absent",
        model=model if isinstance(model, str) else None,
        arrival_s=first.seconds("timestamp", 1e-3) if first.get("timestamp") is not None else None,
    )


def _added(before: Sequence[Node], later: Sequence[Node]) -> list[Node]:
    """Return what a conversation adds to the one before it; nothing if it does not continue it."""
    same = [print_of(node.value) for node in before] == [print_of(node.value) for node in later[: len(before)]]
    return list(later[len(before) :]) if same else []


def _said(reader: Reader, node: Node, answer: Node | None) -> Step:
    """Add a line's model call: its answer, if a later line repeats it, and its length, if the line states it."""
    if answer is None:
        reader.steps.append(Step())
    else:
        reader.says(answer)
    step = reader.steps[-1]
    if node.get("output_length") is not None:
        step.output = node.count("output_length")
    return step


def _heard(reader: Reader, message: Node, notes: Notes) -> None:
    """Read a message that a request sent: instructions, a user's words, or a tool's response."""
    role = message.get("role")
    if role in {"system", "developer", "user"} or (role != "assistant" and reader.steps):
        reader.read(message)
        return
    notes["a message of a model or tool that no line's request made is part of what was sent"] += 1
    reader.heard(_told(message, notes))


def _told(message: Node, notes: Notes) -> Said:
    """Write a message as text, its calls included, where it is read neither as a call nor as a response."""
    told = said(message, notes)
    calls = message.get("tool_calls")
    return Said(f"{told.text}{json.dumps(calls, ensure_ascii=False) if calls else ''}", told.other_tokens)


def _wait(step: Step, later: Node) -> None:
    """Give the wait before a line to the tools that ran in it, else to the user."""
    key = next((key for key in ("delay", "delay_ms") if later.get(key) is not None), None)
    wait_s = 0.0 if key is None else later.seconds(key, 1e-3)
    for call in step.calls:
        call.latency_s, call.parallel = wait_s, len(step.calls) > 1
    if not step.calls:
        step.user_wait_s = wait_s


def _tools(node: Node) -> str:
    """Write a line's tool definitions as JSON text; they are in every prompt."""
    payload = node.get("payload")
    found = [node.get("tools"), payload.get("tools") if isinstance(payload, dict) else None]
    return "\n".join(json.dumps(tools, ensure_ascii=False) for tools in found if tools)


def _estimated(reader: Reader) -> None:
    """Estimate the first prompt, which no line counts, so that the stated outputs count."""
    if all(step.output is None for step in reader.steps):
        return
    question = estimate_tokens(reader.question) + reader.question_other_tokens + 2 * MARKUP_TOKENS
    prefix = estimate_tokens(reader.system) + (MARKUP_TOKENS if reader.system else 0)
    reader.steps[0].prompt = prefix + question
    for step in reader.steps:
        step.estimated = True
